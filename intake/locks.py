"""Lock jobs for a change: timers first, then job rows, each in job_id order, as firing does.

The holder of a timer's lock sees each firing of the job before or after its change, never half of one. Before a change,
the version in force fires the overdue occurrences, and the runs whose instant is ahead are retracted.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from psycopg.rows import class_row

from tidewheel.errors import ScheduleRefused
from tidewheel.ids import JobId
from tidewheel.intake.lock_wait import RowLocked, try_lock
from tidewheel.intake.request import ReceivedRequest
from tidewheel.postgres.database_clock import read_now
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements
from tidewheel.schedules.decide import MAX_CAUGHT_UP, decide, hold_for_run, on_resume, skip_paused, with_jitter
from tidewheel.schedules.decision import Decision, HoldReason
from tidewheel.schedules.timer_state import TimerState, timer_state
from tidewheel.transitions.decision_inputs import DecisionInputs, read_decision_inputs
from tidewheel.transitions.events import append_job_events
from tidewheel.transitions.installation import Installation
from tidewheel.transitions.timers import LockedTimer, advance_timers, find_open_fixed_delay_runs, retract_runs

_SQL = Statements("tidewheel.intake")
_LOCK_TIMERS = _SQL["lock_timers"]
_READ_LOCKED_TIMERS = _SQL["read_locked_timers"]
_LOCK_JOBS = _SQL["lock_jobs"]
_LOCK_JOBS_TO_DELETE = _SQL["lock_jobs_to_delete"]
_READ_LOCKED_JOBS = _SQL["read_locked_jobs"]
_RESUME_JOBS = _SQL["resume_jobs"]

_TICK = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class JobRow:
    """A job's locked row with its schedule and policy in force."""

    job_id: UUID
    tenant: str
    key: str
    shard: int
    version: int
    spec_hash: bytes | None
    interval_anchor: datetime | None
    interval_us: int | None
    paused: bool
    paused_until: datetime | None
    consecutive_failures: int
    pause_on_failure: int | None
    created_at: datetime
    finished_at: datetime | None
    deleted_at: datetime | None
    schedule_json: str | None
    policy_json: str | None
    quarantined: bool

    @property
    def exists(self) -> bool:
        """True if the job exists: it has a version and is not deleted."""
        return self.version > 0 and self.deleted_at is None


def absent_job(job: JobId, tenant: str, key: str, now: datetime) -> JobRow:
    """Return the row of a job that does not exist yet."""
    return JobRow(
        job_id=job,
        tenant=tenant,
        key=key,
        shard=0,
        version=0,
        spec_hash=None,
        interval_anchor=None,
        interval_us=None,
        paused=False,
        paused_until=None,
        consecutive_failures=0,
        pause_on_failure=None,
        created_at=now,
        finished_at=None,
        deleted_at=None,
        schedule_json=None,
        policy_json=None,
        quarantined=False,
    )


@dataclass(frozen=True, slots=True)
class Locked:
    """Jobs that are locked for a change.

    Args:
        now: The time by the database's clock, read after the locks were acquired.
        jobs: The jobs' rows, by id.
        timers: The timers of the jobs that have one, by id.
    """

    now: datetime
    jobs: Mapping[UUID, JobRow]
    timers: Mapping[UUID, LockedTimer]


def lock_jobs(
    connection: Conn, installation: Installation, batch: Sequence[ReceivedRequest], *, to_delete: bool = False
) -> Locked:
    """Lock the jobs of these requests, and end the pauses whose time has passed.

    Args:
        connection: Inside a transaction.
        installation: Shards and topics.
        batch: The requests.
        to_delete: Lock the keys too, which excludes triggers; every other change lets triggers go on.

    Raises:
        RowLocked: A user's own transaction has triggered a job that is to be deleted: roll back and try again.
    """
    ids = {received.job_id for received in batch}
    if to_delete:
        _lock_keys(connection, batch)
    return lock_jobs_by_id(connection, installation, ids)


def _lock_keys(connection: Conn, batch: Sequence[ReceivedRequest]) -> None:
    ids = sorted({received.job_id for received in batch})
    connection.execute(_LOCK_TIMERS, {"job_ids": ids})
    if try_lock(connection, _LOCK_JOBS_TO_DELETE, {"job_ids": ids}):
        return
    for received in batch:
        # Find the first locked job: lock one at a time in the order of the batch, and wait for 200 ms at most for each.
        if not try_lock(connection, _LOCK_JOBS_TO_DELETE, {"job_ids": [received.job_id]}):
            what = f"job {received.key!r}"
            raise RowLocked(what, [received])


def lock_jobs_by_id(connection: Conn, installation: Installation, job_ids: Iterable[UUID]) -> Locked:
    """Lock these jobs as `lock_jobs` does."""
    ids = sorted(job_ids)
    connection.execute(_LOCK_TIMERS, {"job_ids": ids})
    connection.execute(_LOCK_JOBS, {"job_ids": ids})
    # Again: the transaction that the jobs' locks waited for may have written a job's first timer.
    connection.execute(_LOCK_TIMERS, {"job_ids": ids})
    locked = _read_locked(connection, ids)
    return _read_locked(connection, ids) if _lift_ended_pauses(connection, installation, locked) else locked


def _read_locked(connection: Conn, ids: Sequence[UUID]) -> Locked:
    with connection.cursor(row_factory=class_row(LockedTimer), binary=True) as cursor:
        timers = {timer.job_id: timer for timer in cursor.execute(_READ_LOCKED_TIMERS, {"job_ids": ids})}
    with connection.cursor(row_factory=class_row(JobRow), binary=True) as cursor:
        jobs = {job.job_id: job for job in cursor.execute(_READ_LOCKED_JOBS, {"job_ids": ids})}
    return Locked(read_now(connection), jobs, timers)


def _lift_ended_pauses(connection: Conn, installation: Installation, locked: Locked) -> bool:
    """End the overdue pauses as firing would; return True if there were any."""
    ended = [
        t for t in locked.timers.values() if t.hold_reason == HoldReason.PAUSE and t.due_at and t.due_at <= locked.now
    ]
    if not ended:
        return False
    inputs, waiting = read_decision_inputs(connection, ended), find_open_fixed_delay_runs(connection, ended)

    def decide_by(timer: LockedTimer) -> Decision:
        decision = after_pause(timer, inputs, (timer.due_at or locked.now) - _TICK)
        return hold_for_run(decision) if timer.job_id in waiting else decision

    advance_timers(connection, installation, ended, decide_by, now=locked.now, repeats=True)
    columns: dict[str, object] = {"job_ids": [timer.job_id for timer in ended], "now": locked.now}
    connection.execute(_RESUME_JOBS, columns)
    jobs = [locked.jobs[timer.job_id] for timer in ended]
    append_job_events(
        connection,
        installation,
        "job.resumed",
        jobs,
        now=locked.now,
        reasons=dict.fromkeys((job.job_id for job in jobs), "paused_until has passed"),
    )
    return True


def apply_overdue(
    connection: Conn,
    installation: Installation,
    locked: Locked,
    job_ids: Sequence[UUID],
    *,
    keep_pauses: Collection[UUID] = (),
    drop_once: Collection[UUID] = (),
) -> dict[UUID, datetime]:
    """Retract the runs whose instant is ahead, and fire the overdue occurrences by the version in force.

    A quarantined job could not be fired by that version and is not tried again: its new version starts from now.

    Args:
        connection: Inside the transaction that has locked the jobs.
        installation: Shards and topics.
        locked: The locked jobs.
        job_ids: The jobs to change.
        keep_pauses: Paused jobs whose skipped occurrences are decided when the pause ends. For other paused jobs they
            are recorded now, before their version is replaced.
        drop_once: Paused jobs whose `once` will not fire any more if its instant has come.

    Returns:
        The instant that the version in force would fire next, of each job that keeps its timer or had a run retracted.
    """
    retracted = retract_runs(connection, job_ids, now=locked.now)
    timers = [_with_retracted(locked.timers[job], retracted.get(job)) for job in job_ids if job in locked.timers]
    next_at = retracted | {timer.job_id: timer.scheduled_at for timer in timers}
    due = [timer for timer in timers if _is_due(timer, locked.now)]
    paused = [timer for timer in due if timer.hold_reason == HoldReason.PAUSE and timer.job_id not in keep_pauses]
    _skip_paused(connection, installation, paused, now=locked.now, drop_once=drop_once)
    overdue = [timer for timer in due if timer.hold_reason is None]
    while overdue:
        inputs = read_decision_inputs(connection, overdue)
        decide_by = _OverdueDecider(inputs, locked.now, installation)
        decisions = advance_timers(connection, installation, overdue, decide_by, now=locked.now, repeats=True)
        moved = [(timer, decision) for timer, decision in zip(overdue, decisions, strict=True)]
        for timer, decision in moved:
            if decision.next_at is None:
                del next_at[timer.job_id]
            else:
                next_at[timer.job_id] = decision.next_at
        # A decision has a limit, and a catch-up may have ended meanwhile: repeat until nothing is overdue.
        overdue = [left for timer, decision in moved if (left := _still_overdue(timer, decision, locked.now))]
    return next_at


def _skip_paused(
    connection: Conn,
    installation: Installation,
    paused: Sequence[LockedTimer],
    *,
    now: datetime,
    drop_once: Collection[UUID],
) -> None:
    inputs = read_decision_inputs(connection, paused)

    def decide_by(timer: LockedTimer) -> Decision:
        once_too = timer.job_id in drop_once
        decision = _by(timer, inputs, lambda state: skip_paused(state, now=now, once_too=once_too))
        return decision._replace(hold_reason=HoldReason.PAUSE, due_at=timer.due_at)

    advance_timers(connection, installation, paused, decide_by, now=now)


def _with_retracted(timer: LockedTimer, earliest: datetime | None) -> LockedTimer:
    """Return the timer after the runs ahead were retracted."""
    if earliest is None:
        return timer
    return timer._replace(scheduled_at=min(timer.scheduled_at, earliest), overridden=True)


def _is_due(timer: LockedTimer, now: datetime) -> bool:
    return min(timer.scheduled_at, timer.due_at or timer.scheduled_at) <= now


def _still_overdue(timer: LockedTimer, decision: Decision, now: datetime) -> LockedTimer | None:
    """Return the timer after a decision, if an occurrence is still overdue."""
    if decision.next_at is None or decision.hold_reason is not None or not (decision.fires or decision.skips):
        return None
    left = timer._replace(
        scheduled_at=decision.next_at,
        due_at=decision.due_at or decision.next_at,
        catch_up_end=decision.catch_up_end,
        overridden=decision.overridden,
    )
    return left if _is_due(left, now) else None


def after_pause(timer: LockedTimer, inputs: DecisionInputs, now: datetime) -> Decision:
    """Return the decision for a timer whose pause ends, as `on_resume` says."""
    return _by(timer, inputs, lambda state: on_resume(state, now=now))


def _by(timer: LockedTimer, inputs: DecisionInputs, decide_by: Callable[[TimerState], Decision]) -> Decision:
    try:
        return decide_by(timer_state(timer, inputs.day_sets, inputs.of(timer)))
    except ScheduleRefused:
        # The schedule cannot be read: firing quarantines the job, or the change replaces the version.
        return Decision(next_at=timer.scheduled_at)


class _OverdueDecider:
    """Decides the overdue occurrences of jobs that are about to change, as firing would."""

    def __init__(self, inputs: DecisionInputs, now: datetime, installation: Installation) -> None:
        self._inputs, self._now, self._misfire_after = inputs, now, installation.misfire_after

    def __call__(self, timer: LockedTimer) -> Decision:
        return _by(timer, self._inputs, lambda state: self._decide(state, timer.job_id))

    def _decide(self, state: TimerState, job: UUID) -> Decision:
        # A whole catch-up, plus one occurrence a second for misfire_after: one decision is usually enough.
        limit = int(self._misfire_after.total_seconds()) + 2 + MAX_CAUGHT_UP
        decision = decide(state, now=self._now, horizon=self._now, misfire_after=self._misfire_after, limit=limit)
        return with_jitter(decision, state, job)
