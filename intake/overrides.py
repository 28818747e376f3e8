"""`job.skip`, `job.move` and `job.unskip`: override one occurrence, named by its instant.

Under the job's locks, the overdue occurrences fire and the runs ahead are retracted. The timer is then set to the first
instant without a record, due at the scheduler's next wakeup for the job. An occurrence that still has a run has started
meanwhile and cannot be overridden. A pause goes on: its skipped occurrences are decided when it ends. Rows written:
overrides and timers, and skips of occurrences that no timer covers any more.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from tidewheel.errors import FieldError, InvalidInput, Refused, ScheduleRefused, UnknownJob
from tidewheel.intake.lifecycle import existing_jobs
from tidewheel.intake.locks import JobRow, Locked, lock_jobs
from tidewheel.intake.overdue import apply_overdue
from tidewheel.intake.override_rows import delete_overrides, drop_moves, read_upcoming_overrides
from tidewheel.intake.override_rules import UpcomingOccurrences
from tidewheel.intake.request import ReceivedRequest, accepted, rejected
from tidewheel.intake.timers import TimerToPut, put_timers, read_timer_runs
from tidewheel.jobs.requests import JobMove, JobSkip, JobUnskip
from tidewheel.jobs.values import format_timestamp
from tidewheel.outbox import OutboxRow, append
from tidewheel.postgres.pg_binary import instants, uuids
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements
from tidewheel.runs import FINAL, RunState
from tidewheel.schedules.decide import next_wakeup
from tidewheel.schedules.decision import HoldReason, Override
from tidewheel.schedules.policies import policies_from_text
from tidewheel.schedules.schedule import TICK
from tidewheel.schedules.timer_state import DaySets, timer_state
from tidewheel.schemas.generated.records import Reply
from tidewheel.transitions.decision_inputs import read_day_sets
from tidewheel.transitions.events import lifecycle_row
from tidewheel.transitions.installation import Installation

_SQL = Statements("tidewheel.intake")
_PUT_OVERRIDES = _SQL["put_overrides"]
_REVIVE_JOBS = _SQL["revive_jobs"]


@dataclass(frozen=True, slots=True)
class _Change:
    """The change of one occurrence's override."""

    request: JobSkip | JobMove | JobUnskip
    upcoming: UpcomingOccurrences
    override: Override | None

    @property
    def job(self) -> JobRow:
        """The occurrence's job."""
        return self.upcoming.job

    @property
    def changes(self) -> bool:
        """True if the occurrence had another override, or none."""
        previous = self.upcoming.overrides.get(self.request.at)
        return previous is None or self.override is None or previous.moved_to != self.override.moved_to

    @property
    def drops_move(self) -> bool:
        """True if it skips a moved occurrence whose own instant has passed: no timer covers it."""
        return self.override is not None and self.override.moved_to is None and self.request.at <= self.upcoming.now

    @property
    def shifts_timer(self) -> bool:
        """True if the timer may be due at another time; a job without computed instants has other rules."""
        return self.changes and self.upcoming.computed


@dataclass(frozen=True, slots=True)
class _TimerRow:
    """The columns of a timer that a decision needs."""

    job_id: UUID
    tenant: str
    schedule_json: str
    policy_json: str
    scheduled_at: datetime
    catch_up_end: datetime | None = None


def apply_overrides(connection: Conn, installation: Installation, batch: Sequence[ReceivedRequest]) -> list[Reply]:
    """Skip, move or restore one occurrence each of different jobs, in the caller's transaction."""
    locked = lock_jobs(connection, installation, batch)
    jobs = existing_jobs(locked, batch)
    day_sets = _day_sets(connection, jobs)
    overrides = read_upcoming_overrides(connection, [job.job_id for job in jobs], locked.now)
    changes: dict[UUID, _Change] = {}
    refused: dict[UUID, Refused] = {}
    for received in batch:
        job_id = received.job_id
        try:
            if job_id not in overrides:
                raise UnknownJob(received.tenant, received.key or "")
            job = locked.jobs[job_id]
            changes[job_id] = _change(received, _upcoming(job, overrides[job_id].values(), day_sets, locked.now))
        except Refused as error:
            refused[job_id] = error.without_frames()
    effective = [change for change in changes.values() if change.changes]
    after, started = _apply_changes(connection, installation, locked, effective, day_sets)
    refused |= started
    return [
        rejected(received, refused[received.job_id])
        if received.job_id in refused
        else _reply(received, changes[received.job_id], after, locked)
        for received in batch
    ]


def _day_sets(connection: Conn, jobs: Sequence[JobRow]) -> DaySets:
    calendars = {(job.tenant, name) for job in jobs for name in policies_from_text(job.policy_json or "{}").calendars}
    return read_day_sets(connection, calendars)


def _upcoming(
    job: JobRow, overrides: Iterable[Override], day_sets: DaySets, now: datetime, cursor: datetime | None = None
) -> UpcomingOccurrences:
    """Return the upcoming occurrences of a locked job, from a cursor on, or from now."""
    by_instant = {each.scheduled_at: each for each in overrides}
    row = _TimerRow(job.job_id, job.tenant, job.schedule_json or "", job.policy_json or "{}", cursor or now + TICK)
    try:
        return UpcomingOccurrences(job, timer_state(row, day_sets, list(by_instant.values())), by_instant, now)
    except ScheduleRefused as unread:
        problem = f"the schedule of its version {job.version} cannot be read: {unread.errors[0].problem}"
        raise InvalidInput([FieldError("key", problem, "submit the job again")]) from unread


def _change(received: ReceivedRequest, upcoming: UpcomingOccurrences) -> _Change:
    request = received.request
    match request:
        case JobSkip():
            return _Change(request, upcoming, upcoming.skipped(request.at))
        case JobMove():
            return _Change(request, upcoming, upcoming.moved(request.at, request.to))
        case _:
            assert isinstance(request, JobUnskip)  # noqa: S101 - by the table of `apply`
            return _Change(request, upcoming, upcoming.restored(request.at))


def _apply_changes(
    connection: Conn, installation: Installation, locked: Locked, changes: Sequence[_Change], day_sets: DaySets
) -> tuple[dict[UUID, UpcomingOccurrences], dict[UUID, Refused]]:
    """Write the changes of different jobs; return their upcoming occurrences, and what came too late."""
    if not changes:
        return {}, {}
    shifting = [change for change in changes if change.shifts_timer]
    # The end of a pause decides the occurrences in it, and no run is written ahead during a pause.
    active = [change.job.job_id for change in shifting if not change.job.paused]
    remaining = apply_overdue(connection, installation, locked.timers, active, now=locked.now)
    started = _started(connection, shifting)
    applied = [change for change in changes if change.job.job_id not in started]
    _write(connection, installation, applied, locked.now)
    overrides = read_upcoming_overrides(connection, [change.job.job_id for change in changes], locked.now)
    after: dict[UUID, UpcomingOccurrences] = {}
    timers: list[TimerToPut] = []
    for change in changes:
        job_id = change.job.job_id
        late = job_id in started
        cursor = _cursor(change, locked, remaining.get(job_id), late=late)
        after[job_id] = _upcoming(change.job, overrides[job_id].values(), day_sets, locked.now, cursor)
        # Also after a late change: the other runs that were retracted must fire.
        if change.shifts_timer and (not late or job_id in remaining):
            timers.append(_timer(after[job_id], locked))
    put_timers(connection, timers)
    # The retracted run may have been the last of its job.
    connection.execute(_REVIVE_JOBS, {"job_ids": [timer.job_id for timer in timers]})
    append(connection, [_event(change, installation, locked.now) for change in applied], shards=installation.shards)
    return after, started


def _started(connection: Conn, shifting: Sequence[_Change]) -> dict[UUID, Refused]:
    """Return the refusals for occurrences that still have a run: an attempt has started."""
    occurrences = [(change.job.job_id, change.request.at) for change in shifting]
    return {job: _has_a_run(at, state) for (job, at), state in read_timer_runs(connection, occurrences).items()}


def _has_a_run(at: datetime, state: RunState) -> InvalidInput:
    problem = f"{format_timestamp(at)} has become a run already, which is {state}"
    remedy = "trigger the job to run it again" if state in FINAL else "cancel its run"
    return InvalidInput([FieldError("at", problem, remedy)])


def _write(connection: Conn, installation: Installation, applied: Sequence[_Change], now: datetime) -> None:
    """Write the new overrides."""
    delete_overrides(
        connection, [(change.job.job_id, change.request.at) for change in applied if change.override is None]
    )
    drop_moves(connection, installation, [(each.job, each.request.at) for each in applied if each.drops_move], now)
    overrides = [
        (change.job, change.override) for change in applied if change.override is not None and not change.drops_move
    ]
    reasons = {change.job.job_id: change.request.reason for change in applied}
    if overrides:
        columns: dict[str, object] = {
            "job_ids": uuids(job.job_id for job, _ in overrides),
            "instants": instants(override.scheduled_at for _, override in overrides),
            "tenants": [job.tenant for job, _ in overrides],
            "moved_to": instants(override.moved_to for _, override in overrides),
            "reasons": [reasons[job.job_id] for job, _ in overrides],
            "now": now,
        }
        connection.execute(_PUT_OVERRIDES, columns)


def _cursor(change: _Change, locked: Locked, remaining: datetime | None, *, late: bool) -> datetime:
    """Return the first instant of a job without a record; the runs ahead of now were retracted.

    The occurrence of a request that came too late has a record.
    """
    timer = locked.timers.get(change.job.job_id)
    position = timer.scheduled_at if timer is not None and change.job.paused else remaining
    ahead = [change.request.at] if change.request.at > locked.now and not late else []
    return min([*ahead, position] if position is not None else ahead, default=locked.now + TICK)


def _timer(upcoming: UpcomingOccurrences, locked: Locked) -> TimerToPut:
    job, cursor = upcoming.job, upcoming.state.cursor
    return TimerToPut(
        job.job_id,
        job.tenant,
        job.shard,
        job.version,
        cursor,
        # If no occurrence is left, the scheduler finds that out then and finishes the job.
        due_at=next_wakeup(upcoming.state, cursor - TICK) or cursor,
        hold_reason=_held(job, locked),
        until=job.paused_until,
    )


def _held(job: JobRow, locked: Locked) -> HoldReason | None:
    """Return the reason why the timer is on hold; the timer of a fixed_delay is not changed here."""
    if job.paused:
        return HoldReason.PAUSE
    timer = locked.timers.get(job.job_id)
    return HoldReason.QUARANTINED if timer is not None and timer.hold_reason == HoldReason.QUARANTINED else None


def _event(change: _Change, installation: Installation, now: datetime) -> OutboxRow:
    job, request = change.job, change.request
    suffix = {JobSkip: "skipped", JobMove: "moved", JobUnskip: "restored"}[type(request)]
    detail = {"at": format_timestamp(request.at)}
    if isinstance(request, JobMove):
        detail["to"] = format_timestamp(request.to)
    return lifecycle_row(
        installation,
        kind=f"job.occurrence_{suffix}",
        tenant=job.tenant,
        job_id=job.job_id,
        job_key=job.key,
        job_version=job.version,
        shard=job.shard,
        now=now,
        reason=request.reason,
        detail=detail,
    )


def _reply(
    received: ReceivedRequest, change: _Change, after: Mapping[UUID, UpcomingOccurrences], locked: Locked
) -> Reply:
    job = change.job
    upcoming = after.get(job.job_id, change.upcoming)
    return accepted(
        received,
        job_id=str(job.job_id),
        job_version=job.version,
        next_run_at=upcoming.next_run if _held(job, locked) is None else None,
        unchanged=not change.changes,
    )
