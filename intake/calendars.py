"""`calendar.put` and `calendar.delete`; the calendars and the overrides of jobs that change.

A change takes effect at once and exactly. One transaction fires the overdue occurrences under the old days, retracts
the runs whose instant is ahead, and sets the timers under the new days, all by one reading of the clock. Lock order:
calendars, timers, jobs, job_runs. A submit locks its calendars for share before it locks timers, so that no change
misses it. Firing only reads calendars, since a change holds the timers. Rows written: calendars, job_calendars, timers.

When a job changes, a moved occurrence whose own instant is in the future belongs to the new version, or is deleted.
One whose own instant has passed is still due: the version in force fires it at the time it was moved to. If no version
can, it is recorded as skipped by request, so that each occurrence has a record. Rows written: overrides, skips.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from difflib import get_close_matches
from functools import partial
from typing import cast
from uuid import UUID

from tidewheel.errors import FieldError, InvalidInput, ScheduleRefused, Unavailable, UnknownCalendar, refuse
from tidewheel.intake.locks import JobRow, Locked, lock_jobs_by_id
from tidewheel.intake.request import ReceivedRequest, accepted, rejected
from tidewheel.intake.timers import TimerToPut, apply_overdue, put_timers
from tidewheel.intake.writing import Writing
from tidewheel.jobs.requests import CalendarDelete, CalendarPut, JobSubmit
from tidewheel.jobs.spec import JobSpec
from tidewheel.postgres.pg_binary import instants, integers, uuids
from tidewheel.postgres.session import Conn, at_commit
from tidewheel.postgres.statements import Statements
from tidewheel.process.metrics import metrics
from tidewheel.runs import SkipReason
from tidewheel.schedules.calendars import is_occurrence
from tidewheel.schedules.decide import next_cursor, next_wakeup
from tidewheel.schedules.decision import DaySet, Decision, HoldReason, Override, Skip
from tidewheel.schedules.open_days import MAX_SHIFT_DAYS
from tidewheel.schedules.schedule import TICK, FixedDelay, Manual, Once, Schedule
from tidewheel.schedules.timer_state import timer_state
from tidewheel.schemas.generated.records import Reply
from tidewheel.transitions.decision_inputs import DecisionInputs, read_day_sets, read_decision_inputs
from tidewheel.transitions.events import skip_event
from tidewheel.transitions.timers import LockedTimer, advance_timers

_SQL = Statements("tidewheel.intake")

MAX_JOBS = 50_000
"""The jobs that a change may reach: about 0.1 ms each, 0.3 ms for an overdue one, of the 60 s of a transaction."""

_TRIES = 3  # another transaction may delete the calendar between two statements


@dataclass(frozen=True, slots=True)
class _CalendarRow:
    """A calendar's row, locked; a new one has the version 0."""

    version: int
    days: DaySet
    source: str | None


def apply_calendar_puts(writing: Writing, batch: Sequence[ReceivedRequest]) -> list[Reply]:
    """Create or replace calendars."""
    return [_put_calendar(writing, received) for received in batch]


def named_calendars(batch: Iterable[ReceivedRequest]) -> set[tuple[str, str]]:
    """Return the calendars that these submits name, by tenant; a cached spec names none."""
    return {
        (received.tenant, name)
        for received in batch
        if isinstance(received.request, JobSubmit) and received.request.cached is None
        for name in (*received.request.job.exclude_calendars, *received.request.job.include_calendars)
    }


def lock_calendars(connection: Conn, calendars: Collection[tuple[str, str]]) -> Mapping[tuple[str, str], DaySet]:
    """Lock calendars for share until the transaction ends, before any timer; return their days."""
    if not calendars:
        return {}
    pairs = sorted(set(calendars))
    columns = {"tenants": [tenant for tenant, _ in pairs], "names": [name for _, name in pairs]}
    connection.execute(_SQL["lock_calendars_for_share"], columns)
    return read_day_sets(connection, pairs)


def unknown_calendars(
    connection: Conn, tenant: str, spec: JobSpec, known: Collection[tuple[str, str]]
) -> InvalidInput | None:
    """Return the refusal of a spec that names calendars which do not exist; None if all exist."""
    missing = [
        (f"job.{field}.{number}", name)
        for field in ("exclude_calendars", "include_calendars")
        for number, name in enumerate(cast("tuple[str, ...]", getattr(spec, field)))
        if (tenant, name) not in known
    ]
    if not missing:
        return None
    names, problem = _names(connection, tenant), f"tenant {tenant!r} has no calendar "
    return InvalidInput([FieldError(path, f"{problem}{name!r}", _suggestion(name, names)) for path, name in missing])


def write_job_calendars(writing: Writing, named: Mapping[UUID, tuple[str, Iterable[str]]]) -> None:
    """Write the calendars that jobs name: by job, its tenant and the locked calendars' names."""
    if not named:
        return
    writing.execute(_SQL["drop_job_calendars"], job_ids=list(named))
    rows = sorted({(tenant, name, job) for job, (tenant, names) in named.items() for name in names})
    if rows:
        tenants, names, job_ids = map(list, zip(*rows, strict=True))
        writing.execute(_SQL["add_job_calendars"], tenants=tenants, names=names, job_ids=job_ids)


def _put_calendar(writing: Writing, received: ReceivedRequest) -> Reply:
    request = received.of(CalendarPut)
    row = _lock_or_insert(writing, received.tenant, request.name)
    new = DaySet(frozenset(request.days), frozenset(request.weekdays))
    if row.version and (row.days, row.source) == (new, request.source):
        return accepted(received, unchanged=True)
    columns: dict[str, object] = {
        "tenant": received.tenant,
        "name": request.name,
        "days": sorted(new.days),
        "weekdays": sorted(new.weekdays),
        "source": request.source,
    }
    jobs = _jobs_of(writing, received.tenant, request.name) if row.version and row.days != new else []
    if not jobs:
        writing.execute(_SQL["update_calendar"], **columns, since=_since(row, new, writing.now()))
        return accepted(received)
    if len(jobs) > MAX_JOBS:
        return rejected(received, _too_many(len(jobs)))
    locked = lock_jobs_by_id(writing, jobs)
    existing_jobs = [job.job_id for job in locked.jobs.values() if job.exists]
    apply_overdue(writing, locked.timers, existing_jobs, now=locked.now, keep_pauses=existing_jobs)
    writing.execute(_SQL["update_calendar"], **columns, since=_since(row, new, locked.now))
    _reset_timers(writing, locked)
    return accepted(received)


def _too_many(jobs: int) -> InvalidInput:
    problem = f"{jobs} jobs use this calendar, but a change can update at most {MAX_JOBS}"
    remedy = "create a second calendar with the new days, and move jobs to it until fewer use this one"
    return InvalidInput([FieldError("name", problem, remedy)])


def _since(row: _CalendarRow, new: DaySet, now: datetime) -> datetime | None:
    """Return now if the change concerns started days that may still shift an occurrence."""
    latest = now.astimezone(UTC).date() + timedelta(days=1)
    days = (latest - timedelta(days=number) for number in range(MAX_SHIFT_DAYS + 3))
    return now if row.version and any((day in row.days) != (day in new) for day in days) else None


def delete_calendar(writing: Writing, received: ReceivedRequest) -> Reply:
    """Delete a calendar that no job names."""
    name, tenant = received.of(CalendarDelete).name, received.tenant
    if not writing.read(_SQL["lock_calendar"], tenant=tenant, name=name):
        raise UnknownCalendar(tenant, name, _suggestion(name, _names(writing.connection, tenant)))
    for key, jobs in writing.read(_SQL["count_calendar_jobs"], tenant=tenant, name=name):
        problem = f"{jobs} jobs use it, {key!r} first" if jobs != 1 else f"the job {key!r} uses it"
        refuse("name", problem, "remove it from the jobs, or delete them")
    writing.execute(_SQL["delete_calendar"], tenant=tenant, name=name)
    return accepted(received)


def _lock_or_insert(writing: Writing, tenant: str, name: str) -> _CalendarRow:
    for _ in range(_TRIES):
        writing.execute(_SQL["insert_calendar_placeholder"], tenant=tenant, name=name)
        found = writing.read(_SQL["lock_calendar"], tenant=tenant, name=name)
        for version, days, weekdays, source in cast("list[tuple[int, list[date], list[int], str | None]]", found):
            return _CalendarRow(version, DaySet(frozenset(days), frozenset(weekdays)), source)
    raise Unavailable(f"calendar {name!r} is repeatedly created and deleted by other transactions")


def _jobs_of(writing: Writing, tenant: str, name: str) -> list[UUID]:
    return [cast("UUID", job) for (job,) in writing.read(_SQL["find_calendar_jobs"], tenant=tenant, name=name)]


def _names(connection: Conn, tenant: str) -> list[str]:
    return [str(name) for (name,) in connection.execute(_SQL["calendar_names"], {"tenant": tenant}, binary=True)]


def _suggestion(name: str, names: Sequence[str]) -> str:
    near = get_close_matches(name, names, n=1)
    if near:
        return f"did you mean {near[0]!r}?"
    return f"write one of {', '.join(names[:10])}" if names else "create the calendar first"


def _reset_timers(writing: Writing, locked: Locked) -> None:
    """Set the jobs' timers under the new days; a finished job that has occurrences again gets a timer.

    A pause stays, and so does a quarantine. Occurrences up to `locked.now` have their records; later ones that are
    overdue fire under the new days.
    """
    columns: dict[str, object] = {"job_ids": sorted(locked.jobs), "now": locked.now}
    left = writing.read_as(LockedTimer, _SQL["read_locked_timers"], **columns)
    timers = [timer for timer in left if timer.hold_reason != HoldReason.QUARANTINED]
    inputs = read_decision_inputs(writing.connection, timers)
    connection, installation, now = writing.connection, writing.installation, locked.now
    advance_timers(connection, installation, timers, lambda timer: _reset(timer, inputs, now), now=now)
    had = {timer.job_id for timer in left}
    without = writing.read_as(LockedTimer, _SQL["read_jobs_without_timer"], **columns)
    timerless = [row for row in without if row.job_id not in had]
    inputs = read_decision_inputs(writing.connection, timerless)
    decided = ((locked.jobs[row.job_id], _reset(row, inputs, locked.now)) for row in timerless)
    revived = [_timer(job, at, decision) for job, decision in decided if (at := decision.next_at) is not None]
    if revived:
        put_timers(writing, revived)
        writing.execute(_SQL["revive_jobs"], job_ids=[timer.job.job_id for timer in revived])


def _reset(timer: LockedTimer, inputs: DecisionInputs, now: datetime) -> Decision:
    """Return the timer's new position; the occurrences up to now have their records."""
    try:
        state = timer_state(timer, inputs.day_sets, inputs.of(timer))
    except ScheduleRefused:  # firing quarantines the job
        held = HoldReason(timer.hold_reason) if timer.hold_reason else None
        return Decision(next_at=timer.scheduled_at, due_at=timer.due_at, hold_reason=held, overridden=timer.overridden)
    paused = timer.hold_reason == HoldReason.PAUSE
    # An occurrence that a pause has not decided, such as a `once` whose instant lies in it, is upcoming.
    recorded = min(now, timer.scheduled_at - TICK) if paused else now
    wakeup = next_wakeup(state, recorded)
    if wakeup is None:
        return Decision()
    return Decision(
        next_at=next_cursor(state, recorded) or wakeup,
        due_at=timer.due_at if paused else wakeup,
        hold_reason=HoldReason.PAUSE if paused else None,
        overridden=bool(state.moved) or (state.overridden_until is not None and state.overridden_until > recorded),
    )


def _timer(job: JobRow, at: datetime, decision: Decision) -> TimerToPut:
    return TimerToPut(job, at, decision.due_at, HoldReason.PAUSE if job.paused else None, job.paused_until)


def read_upcoming_overrides(
    connection: Conn, job_ids: Sequence[UUID], now: datetime
) -> dict[UUID, dict[datetime, Override]]:
    """Return the overrides of upcoming occurrences of locked jobs, by job and instant, in their order."""
    columns = {"job_ids": uuids(job_ids), "now": now}
    rows = connection.execute(_SQL["read_upcoming_overrides"], columns, binary=True).fetchall()
    found: dict[UUID, dict[datetime, Override]] = {job: {} for job in job_ids}
    for job, at, moved_to, done in cast("list[tuple[UUID, datetime, datetime | None, bool]]", rows):
        found[job][at] = Override(at, moved_to, done)
    return found


def fit_moves(writing: Writing, changed: Mapping[UUID, tuple[JobRow, Schedule]], now: datetime) -> None:
    """Delete or drop the moved occurrences that the new versions of jobs do not have.

    `changed` has each job's old row, and the schedule of its new version under its calendars.
    """
    if not changed:
        return
    deleted: list[tuple[UUID, datetime]] = []
    dropped: list[tuple[JobRow, datetime]] = []
    for job_id, overrides in read_upcoming_overrides(writing.connection, list(changed), now).items():
        job, schedule = changed[job_id]
        for at in lost_moves(overrides, schedule, now):
            if at > now:
                deleted.append((job_id, at))
            else:
                dropped.append((job, at))
    delete_overrides(writing, deleted)
    drop_moves(writing, dropped, now)


def lost_moves(overrides: Mapping[datetime, Override], schedule: Schedule, now: datetime) -> list[datetime]:
    """Return the instants of moved occurrences that have not fired, and never fire by a new schedule."""
    alone = isinstance(schedule, Once | FixedDelay | Manual)
    return [at for at in _pending_moves(overrides) if (at > now or alone) and not is_occurrence(schedule, at)]


def delete_all_overrides(writing: Writing, jobs: Sequence[JobRow], now: datetime) -> None:
    """Delete the overrides of upcoming occurrences of jobs that are being deleted."""
    if not jobs:
        return
    found = read_upcoming_overrides(writing.connection, [job.job_id for job in jobs], now)
    # An occurrence that fired before its own instant keeps its override: a job created again must not fire it twice.
    ahead = [
        (job, at) for job, overrides in found.items() for at, each in overrides.items() if at > now and not each.done
    ]
    delete_overrides(writing, ahead)
    passed = [(job, at) for job in jobs for at in _pending_moves(found[job.job_id]) if at <= now]
    drop_moves(writing, passed, now)


def delete_overrides(writing: Writing, gone: Sequence[tuple[UUID, datetime]]) -> None:
    """Delete the overrides of these occurrences."""
    if gone:
        writing.execute(
            _SQL["delete_overrides"], job_ids=uuids(job for job, _ in gone), instants=instants(at for _, at in gone)
        )


def drop_moves(writing: Writing, gone: Sequence[tuple[JobRow, datetime]], now: datetime) -> None:
    """Record moved occurrences whose own instant has passed as skipped by request."""
    if not gone:
        return
    writing.execute(
        _SQL["drop_moves"],
        job_ids=uuids(job.job_id for job, _ in gone),
        instants=instants(at for _, at in gone),
        versions=integers(job.version for job, _ in gone),
        reason=SkipReason.MANUAL,
        now=now,
    )
    at_commit(writing.connection, partial(metrics.count, "occurrences", len(gone), SkipReason.MANUAL))
    skips = ((job, Skip(SkipReason.MANUAL, at, at, 1)) for job, at in gone)
    writing.append([skip_event(writing.installation, job, job.key, skip, now) for job, skip in skips])


def _pending_moves(overrides: Mapping[datetime, Override]) -> list[datetime]:
    return [at for at, each in overrides.items() if each.moved_to is not None and not each.done]
