"""Fire the overdue occurrences of jobs before a change, by the version in force.

The caller has locked the jobs. It ends the pauses whose time has passed and decides what freezes have held. It retracts
the runs whose instant is ahead, and then writes its change.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import Protocol
from uuid import UUID

from psycopg.rows import class_row

from tidewheel.errors import ScheduleRefused
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements
from tidewheel.schedules.decide import MAX_CAUGHT_UP, decide, hold_for_run, on_resume, skip_paused, with_jitter
from tidewheel.schedules.decision import Decision, HoldReason, Skip, SkipReason
from tidewheel.schedules.schedule import TICK
from tidewheel.schedules.timer_state import TimerState, timer_state
from tidewheel.transitions.decision_inputs import DecisionInputs, read_decision_inputs
from tidewheel.transitions.events import JobFields, append_job_events
from tidewheel.transitions.frozen_timers import (
    decide_held,
    find_written_ahead_of,
    has_freeze,
    hold_frozen,
    retract_frozen,
)
from tidewheel.transitions.installation import Installation
from tidewheel.transitions.timers import LockedTimer, advance_timers, find_open_fixed_delay_runs, retract_runs

_SQL = Statements("tidewheel.intake")
_RESUME_JOBS = _SQL["resume_jobs"]
_READ_LOCKED_TIMERS = _SQL["read_locked_timers"]

_MAX_FREEZES = 100  # that have held one job since its timer moved; firing decides what is left


class PausableJob(JobFields, Protocol):
    """The columns of a job that the end of its pause needs."""

    @property
    def paused_until(self) -> datetime | None: ...  # noqa: D102 - the column of that name


def lift_ended_pauses(
    connection: Conn,
    installation: Installation,
    jobs: Mapping[UUID, PausableJob],
    timers: Mapping[UUID, LockedTimer],
    now: datetime,
) -> bool:
    """End the overdue pauses of locked jobs as firing would; True if there were any."""
    held = [jobs[job] for job, timer in timers.items() if timer.hold_reason == HoldReason.PAUSE]
    ends = {job.job_id: job.paused_until for job in held if job.paused_until and job.paused_until <= now}
    if not ends:
        return False
    ended = [timers[job] for job in ends]
    inputs, waiting = read_decision_inputs(connection, ended), find_open_fixed_delay_runs(connection, ended)

    def decide_by(timer: LockedTimer) -> Decision:
        decision = after_pause(timer, inputs, ends[timer.job_id] - TICK)
        return hold_for_run(decision) if timer.job_id in waiting else decision

    advance_timers(connection, installation, ended, decide_by, now=now, repeats=True)
    columns: dict[str, object] = {"job_ids": list(ends), "now": now}
    connection.execute(_RESUME_JOBS, columns)
    resumed = [jobs[job] for job in ends]
    append_job_events(
        connection,
        installation,
        "job.resumed",
        resumed,
        now=now,
        reasons=dict.fromkeys(ends, "paused_until has passed"),
    )
    return True


def decide_frozen(
    connection: Conn,
    installation: Installation,
    timers: Mapping[UUID, LockedTimer],
    jobs: Sequence[UUID],
    now: datetime,
) -> bool:
    """Decide what freezes have held so far, by the versions in force; True if there is a freeze.

    No scheduler need have seen the freeze: its row says which instants it holds. Until the thaw firing holds the timers
    again, and no claim starts the runs.
    """
    if not has_freeze(connection) and all(timer.hold_reason != HoldReason.FREEZE for timer in timers.values()):
        return False
    retract_frozen(connection, find_written_ahead_of(connection, jobs))
    undecided = list(jobs)
    for _ in range(_MAX_FREEZES):
        timers = read_locked_timers(connection, undecided)
        concerned = [timer for timer in timers.values() if _may_be_frozen(timer, now)]
        if not concerned:
            break
        frozen = hold_frozen(connection, concerned)
        undecided = _fire_before(connection, installation, frozen.earlier, now)
        held = {*frozen.held, *(timer.job_id for timer in concerned if timer.hold_reason == HoldReason.FREEZE)}
        has_ended = decide_held(connection, installation, sorted(held), standing=True)
        undecided += [job for job, ended in has_ended.items() if ended]  # a later freeze may hold the timer too
    return True


def read_locked_timers(connection: Conn, job_ids: Sequence[UUID]) -> dict[UUID, LockedTimer]:
    """Return the timers of these jobs, which the caller has locked."""
    with connection.cursor(row_factory=class_row(LockedTimer), binary=True) as cursor:
        return {timer.job_id: timer for timer in cursor.execute(_READ_LOCKED_TIMERS, {"job_ids": job_ids})}


def _fire_before(
    connection: Conn, installation: Installation, earlier: Mapping[datetime, Sequence[LockedTimer]], now: datetime
) -> list[UUID]:
    """Decide instants before the begin of a freeze, as of then; return the jobs that had any."""
    moved: list[UUID] = []
    for began, timers in earlier.items():
        decide_by = _OverdueDecider(read_decision_inputs(connection, timers), began, installation)
        decisions = advance_timers(connection, installation, timers, decide_by, now=now, repeats=True)
        moved += [timer.job_id for timer, done in zip(timers, decisions, strict=True) if done.fires or done.skips]
    return moved


def apply_overdue(
    connection: Conn,
    installation: Installation,
    timers: Mapping[UUID, LockedTimer],
    job_ids: Sequence[UUID],
    *,
    now: datetime,
    keep_pauses: Collection[UUID] = (),
    drop_once: Collection[UUID] = (),
    skip_quarantined: Mapping[UUID, str] = MappingProxyType({}),
) -> dict[UUID, datetime]:
    """Retract the runs whose instant is ahead, and fire the overdue occurrences by the version in force.

    A quarantined job could not be fired by that version, and is not tried again here.

    Args:
        connection: Inside the transaction that has locked the jobs.
        now: The time by the database's clock, read after the locks were acquired.
        keep_pauses: Paused jobs whose skipped occurrences are decided when the pause ends. For other paused jobs they
            are recorded now, before their version is replaced.
        drop_once: Paused jobs whose `once` will not fire any more if its instant has come.
        skip_quarantined: Quarantined jobs, with their keys, whose occurrences are recorded as missed now, since their
            schedule ends. Those of other quarantined jobs are decided when the job is released.

    Returns:
        The instant that the version in force would fire next, of each job that keeps its timer or had a run retracted.
    """
    retracted = retract_runs(connection, job_ids, now=now)
    moving = [_with_retracted(timers[job], retracted.get(job)) for job in job_ids if job in timers]
    next_at = retracted | {timer.job_id: timer.scheduled_at for timer in moving}
    due = [timer for timer in moving if _is_due(timer, now)]
    # A paused timer's due_at is the end of the pause: only its state has the occurrences that were moved ahead.
    may_be_due = [timer for timer in moving if timer.overridden or _is_due(timer, now)]
    paused = [t for t in may_be_due if t.hold_reason == HoldReason.PAUSE and t.job_id not in keep_pauses]
    _skip_paused(connection, installation, paused, now=now, drop_once=drop_once)
    quarantined = [t for t in due if t.hold_reason == HoldReason.QUARANTINED and t.job_id in skip_quarantined]
    _skip_quarantined(connection, installation, quarantined, skip_quarantined, now=now)
    overdue = [timer for timer in due if timer.hold_reason is None]
    while overdue:
        inputs = read_decision_inputs(connection, overdue)
        decide_by = _OverdueDecider(inputs, now, installation)
        decisions = advance_timers(connection, installation, overdue, decide_by, now=now, repeats=True)
        moved = [(timer, decision) for timer, decision in zip(overdue, decisions, strict=True)]
        for timer, decision in moved:
            if decision.next_at is None:
                del next_at[timer.job_id]
            else:
                next_at[timer.job_id] = decision.next_at
        # A decision has a limit, and a catch-up may have ended meanwhile: repeat until nothing is overdue.
        overdue = [left for timer, decision in moved if (left := _still_overdue(timer, decision, now))]
    return next_at


def after_pause(timer: LockedTimer, inputs: DecisionInputs, now: datetime) -> Decision:
    """Return the decision for a timer whose pause ends, as `on_resume` says."""
    return _by(timer, inputs, lambda state: on_resume(state, now=now))


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


def _skip_quarantined(
    connection: Conn,
    installation: Installation,
    quarantined: Sequence[LockedTimer],
    keys: Mapping[UUID, str],
    *,
    now: datetime,
) -> None:
    inputs = read_decision_inputs(connection, quarantined)

    def decide_by(timer: LockedTimer) -> Decision:
        try:
            state = timer_state(timer, inputs.day_sets, inputs.of(timer))
            decision = skip_paused(state, now=now, once_too=True, reason=SkipReason.MISFIRE)
        except Exception:  # noqa: BLE001 - the error that quarantined it: only its first occurrence is known
            first = Skip(SkipReason.MISFIRE, timer.scheduled_at, now, 1, exact=False)
            decision = Decision(skips=(first,), next_at=now + TICK)
        return decision._replace(hold_reason=HoldReason.QUARANTINED, due_at=None)

    advance_timers(connection, installation, quarantined, decide_by, now=now, keys=keys)


def _with_retracted(timer: LockedTimer, earliest: datetime | None) -> LockedTimer:
    """Return the timer after the runs ahead were retracted."""
    if earliest is None:
        return timer
    return timer._replace(scheduled_at=min(timer.scheduled_at, earliest), overridden=True)


def _may_be_frozen(timer: LockedTimer, now: datetime) -> bool:
    return timer.hold_reason == HoldReason.FREEZE or (timer.hold_reason is None and _is_due(timer, now))


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
