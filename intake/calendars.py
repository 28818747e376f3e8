"""`calendar.put` and `calendar.delete`: named sets of days, and the timers of the jobs that name them.

A change takes effect at once and exactly. One transaction fires the overdue occurrences under the old days, retracts
the runs whose instant is ahead, and sets the timers under the new days, all by one reading of the clock. Lock order:
calendars, timers, jobs, job_runs. A submit locks its calendars for share before it locks timers, so that no change
misses it. Firing only reads calendars, since a change holds the timers. Rows written: calendars, job_calendars, timers.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from difflib import get_close_matches
from typing import cast
from uuid import UUID

from psycopg.rows import class_row

from tidewheel.errors import FieldError, InvalidInput, ScheduleRefused, Unavailable, UnknownCalendar
from tidewheel.intake.locks import JobRow, Locked, lock_jobs_by_id
from tidewheel.intake.overdue import apply_overdue
from tidewheel.intake.request import ReceivedRequest, accepted, rejected
from tidewheel.intake.timers import TimerToPut, put_timers
from tidewheel.jobs.requests import CalendarDelete, CalendarPut
from tidewheel.jobs.spec import JobSpec
from tidewheel.postgres.database_clock import read_now
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements
from tidewheel.schedules.decide import next_cursor, next_wakeup
from tidewheel.schedules.decision import DaySet, Decision, HoldReason
from tidewheel.schedules.open_days import MAX_SHIFT_DAYS
from tidewheel.schedules.schedule import TICK
from tidewheel.schedules.timer_state import timer_state
from tidewheel.schemas.generated.records import Reply
from tidewheel.transitions.decision_inputs import DecisionInputs, read_day_sets, read_decision_inputs
from tidewheel.transitions.installation import Installation
from tidewheel.transitions.timers import LockedTimer, advance_timers

_SQL = Statements("tidewheel.intake")
_INSERT_CALENDAR_PLACEHOLDER = _SQL["insert_calendar_placeholder"]
_LOCK_CALENDAR = _SQL["lock_calendar"]
_UPDATE_CALENDAR = _SQL["update_calendar"]
_DELETE_CALENDAR = _SQL["delete_calendar"]
_LOCK_CALENDARS_FOR_SHARE = _SQL["lock_calendars_for_share"]
_CALENDAR_NAMES = _SQL["calendar_names"]
_FIND_CALENDAR_JOBS = _SQL["find_calendar_jobs"]
_COUNT_CALENDAR_JOBS = _SQL["count_calendar_jobs"]
_ADD_JOB_CALENDARS = _SQL["add_job_calendars"]
_DROP_JOB_CALENDARS = _SQL["drop_job_calendars"]
_READ_LOCKED_TIMERS = _SQL["read_locked_timers"]
_READ_JOBS_WITHOUT_TIMER = _SQL["read_jobs_without_timer"]
_REVIVE_JOBS = _SQL["revive_jobs"]

MAX_JOBS = 50_000
"""The jobs that a change may reach: about 0.1 ms each, 0.3 ms for an overdue one, of the 60 s of a transaction."""

_TRIES = 3  # another transaction may delete the calendar between two statements


@dataclass(frozen=True, slots=True)
class _CalendarRow:
    """A calendar's row, locked; a new one has the version 0."""

    version: int
    days: DaySet
    source: str | None


def apply_calendar_puts(connection: Conn, installation: Installation, batch: Sequence[ReceivedRequest]) -> list[Reply]:
    """Create or replace calendars in the caller's transaction; return a reply for each request."""
    return [_put_calendar(connection, installation, received) for received in batch]


def apply_calendar_deletes(connection: Conn, _: Installation, batch: Sequence[ReceivedRequest]) -> list[Reply]:
    """Delete calendars that no job names, in the caller's transaction; return a reply for each."""
    return [_delete_calendar(connection, received) for received in batch]


def lock_calendars(connection: Conn, calendars: Collection[tuple[str, str]]) -> Mapping[tuple[str, str], DaySet]:
    """Lock calendars for share until the transaction ends, before any timer; return their days."""
    if not calendars:
        return {}
    pairs = sorted(set(calendars))
    columns = {"tenants": [tenant for tenant, _ in pairs], "names": [name for _, name in pairs]}
    connection.execute(_LOCK_CALENDARS_FOR_SHARE, columns)
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
    names = _names(connection, tenant)
    return InvalidInput(
        [
            FieldError(path, f"tenant {tenant!r} has no calendar {name!r}", _suggestion(name, names))
            for path, name in missing
        ]
    )


def write_job_calendars(connection: Conn, named: Mapping[UUID, tuple[str, Iterable[str]]]) -> None:
    """Write the calendars that jobs name: by job, its tenant and the locked calendars' names."""
    if not named:
        return
    connection.execute(_DROP_JOB_CALENDARS, {"job_ids": list(named)})
    rows = sorted({(tenant, name, job) for job, (tenant, names) in named.items() for name in names})
    if rows:
        columns = {
            "tenants": [tenant for tenant, _, _ in rows],
            "names": [name for _, name, _ in rows],
            "job_ids": [job for _, _, job in rows],
        }
        connection.execute(_ADD_JOB_CALENDARS, columns)


def _put_calendar(connection: Conn, installation: Installation, received: ReceivedRequest) -> Reply:
    request = received.request
    assert isinstance(request, CalendarPut)  # noqa: S101 - by the table of `apply`
    row = _lock_or_insert(connection, received.tenant, request.name)
    new = DaySet(frozenset(request.days), frozenset(request.weekdays))
    if row.version and (row.days, row.source) == (new, request.source):
        return accepted(received, unchanged=True)
    columns: dict[str, object] = {
        "tenant": received.tenant,
        "name": request.name,
        "days": sorted(new.days),
        "weekdays": sorted(new.weekdays),
        "source": request.source,
        "since": None,
    }
    jobs = _jobs_of(connection, received.tenant, request.name) if row.version and row.days != new else []
    if not jobs:
        columns["since"] = _since(row, new, read_now(connection))
        connection.execute(_UPDATE_CALENDAR, columns)
        return accepted(received)
    if len(jobs) > MAX_JOBS:
        return rejected(received, _too_many(len(jobs)))
    locked = lock_jobs_by_id(connection, installation, jobs)
    existing_jobs = [job.job_id for job in locked.jobs.values() if job.exists]
    apply_overdue(connection, installation, locked.timers, existing_jobs, now=locked.now, keep_pauses=existing_jobs)
    columns["since"] = _since(row, new, locked.now)
    connection.execute(_UPDATE_CALENDAR, columns)
    _reset_timers(connection, installation, locked)
    return accepted(received)


def _too_many(jobs: int) -> InvalidInput:
    problem = f"{jobs} jobs name this calendar, and a change reaches all of them at once: {MAX_JOBS} at most"
    remedy = "put the new days under a second name, and submit jobs with that one until fewer name this one"
    return InvalidInput([FieldError("name", problem, remedy)])


def _since(row: _CalendarRow, new: DaySet, now: datetime) -> datetime | None:
    """Return now if the change concerns started days that may still shift an occurrence."""
    latest = now.astimezone(UTC).date() + timedelta(days=1)
    days = (latest - timedelta(days=number) for number in range(MAX_SHIFT_DAYS + 3))
    return now if row.version and any((day in row.days) != (day in new) for day in days) else None


def _delete_calendar(connection: Conn, received: ReceivedRequest) -> Reply:
    request = received.request
    assert isinstance(request, CalendarDelete)  # noqa: S101 - by the table of `apply`
    columns = {"tenant": received.tenant, "name": request.name}
    if connection.execute(_LOCK_CALENDAR, columns, binary=True).fetchone() is None:
        remedy = _suggestion(request.name, _names(connection, received.tenant))
        return rejected(received, UnknownCalendar(received.tenant, request.name, remedy))
    found = connection.execute(_COUNT_CALENDAR_JOBS, columns, binary=True).fetchone()
    if found is not None:
        key, jobs = found
        problem = f"{jobs} jobs name it, {key!r} first" if jobs != 1 else f"the job {key!r} names it"
        return rejected(received, InvalidInput([FieldError("name", problem, "leave it out of them, or delete them")]))
    connection.execute(_DELETE_CALENDAR, columns)
    return accepted(received)


def _lock_or_insert(connection: Conn, tenant: str, name: str) -> _CalendarRow:
    """Return the calendar's locked row; insert it if it does not exist."""
    columns = {"tenant": tenant, "name": name}
    for _ in range(_TRIES):
        connection.execute(_INSERT_CALENDAR_PLACEHOLDER, columns)
        found = connection.execute(_LOCK_CALENDAR, columns, binary=True).fetchone()
        if found is not None:
            version, days, weekdays, source = cast("tuple[int, list[date], list[int], str | None]", found)
            return _CalendarRow(version, DaySet(frozenset(days), frozenset(weekdays)), source)
    message = f"calendar {name!r} is created and deleted by other transactions again and again"
    raise Unavailable(message)


def _jobs_of(connection: Conn, tenant: str, name: str) -> list[UUID]:
    rows = connection.execute(_FIND_CALENDAR_JOBS, {"tenant": tenant, "name": name}, binary=True).fetchall()
    return [cast("UUID", job) for (job,) in rows]


def _names(connection: Conn, tenant: str) -> list[str]:
    return [str(name) for (name,) in connection.execute(_CALENDAR_NAMES, {"tenant": tenant}, binary=True)]


def _suggestion(name: str, names: Sequence[str]) -> str:
    near = get_close_matches(name, names, n=1)
    if near:
        return f"did you mean {near[0]!r}?"
    return f"write one of {', '.join(names[:10])}" if names else "put the calendar first"


def _reset_timers(connection: Conn, installation: Installation, locked: Locked) -> None:
    """Set the jobs' timers under the new days; a finished job that has occurrences again gets a timer.

    A pause stays, and so does a quarantine. Occurrences up to `locked.now` have their records; later ones that are
    overdue fire under the new days.
    """
    columns = {"job_ids": sorted(locked.jobs), "now": locked.now}
    with connection.cursor(row_factory=class_row(LockedTimer), binary=True) as cursor:
        left = list(cursor.execute(_READ_LOCKED_TIMERS, columns))
    timers = [timer for timer in left if timer.hold_reason != HoldReason.QUARANTINED]
    inputs = read_decision_inputs(connection, timers)
    advance_timers(connection, installation, timers, lambda timer: _reset(timer, inputs, locked.now), now=locked.now)
    with connection.cursor(row_factory=class_row(LockedTimer), binary=True) as cursor:
        had = {timer.job_id for timer in left}
        timerless = [row for row in cursor.execute(_READ_JOBS_WITHOUT_TIMER, columns) if row.job_id not in had]
    inputs = read_decision_inputs(connection, timerless)
    revived = [
        _timer(locked.jobs[row.job_id], decision)
        for row in timerless
        if (decision := _reset(row, inputs, locked.now)).next_at is not None
    ]
    if revived:
        put_timers(connection, revived)
        connection.execute(_REVIVE_JOBS, {"job_ids": [timer.job_id for timer in revived]})


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


def _timer(job: JobRow, decision: Decision) -> TimerToPut:
    assert decision.next_at is not None  # noqa: S101 - the caller has checked
    return TimerToPut(
        job.job_id,
        job.tenant,
        job.shard,
        job.version,
        decision.next_at,
        due_at=decision.due_at,
        hold_reason=HoldReason.PAUSE if job.paused else None,
        until=job.paused_until,
    )
