"""The timers of jobs that change: fire what is overdue before the change, set the timers after it.

The caller has locked the jobs. It ends the pauses whose time has passed, decides what freezes have held, fires the
overdue occurrences by the version in force, retracts the runs whose instant is ahead, writes its change, and sets the
timers.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Protocol, cast
from uuid import UUID

from tidewheel.errors import ScheduleRefused
from tidewheel.ids import RunId, run_id
from tidewheel.intake.writing import Writing
from tidewheel.postgres.pg_binary import uuids
from tidewheel.postgres.statements import Statements
from tidewheel.runs import Cause, RunState, SkipReason
from tidewheel.schedules.decide import MAX_CAUGHT_UP, decide, hold_for_run, on_resume, skip_paused, with_jitter
from tidewheel.schedules.decision import Decision, HoldReason, Skip
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
from tidewheel.transitions.timers import LockedTimer, advance_timers, find_open_fixed_delay_runs, retract_runs

_SQL = Statements("tidewheel.intake")

_MAX_FREEZES = 100  # that have held one job since its timer moved; firing decides what is left
_NEVER = datetime.max.replace(tzinfo=UTC)


class PausableJob(JobFields, Protocol):
    """The columns of a job that a timer and the end of a pause need."""

    @property
    def paused_until(self) -> datetime | None: ...  # noqa: D102 - the column of that name


@dataclass(frozen=True, slots=True)
class TimerToPut:
    """The new position of a job's timer."""

    job: PausableJob
    scheduled_at: datetime  # the first instant without a record
    due_at: datetime | None = None  # the time of its next wakeup; None for `scheduled_at`
    hold_reason: HoldReason | None = None
    until: datetime | None = None
    version: int | None = None


def lift_ended_pauses(
    writing: Writing, jobs: Mapping[UUID, PausableJob], timers: Mapping[UUID, LockedTimer], now: datetime
) -> bool:
    """End the overdue pauses of locked jobs as firing would; True if there were any."""
    held = [jobs[job] for job, timer in timers.items() if timer.hold_reason == HoldReason.PAUSE]
    ends = {job.job_id: job.paused_until for job in held if job.paused_until and job.paused_until <= now}
    if not ends:
        return False
    ended = [timers[job] for job in ends]
    _lift(writing, ended, lambda timer, state: on_resume(state, now=ends[timer.job_id] - TICK), now=now, repeats=True)
    writing.execute(_SQL["resume_jobs"], job_ids=list(ends), now=now)
    resumed, reasons = [jobs[job] for job in ends], dict.fromkeys(ends, "paused_until has passed")
    append_job_events(writing.connection, writing.installation, "job.resumed", resumed, now=now, reasons=reasons)
    return True


def decide_frozen(writing: Writing, timers: Mapping[UUID, LockedTimer], jobs: Sequence[UUID], now: datetime) -> bool:
    """Decide what freezes have held so far, by the versions in force; True if they have held anything.

    No scheduler need have seen the freeze: its row says which instants it holds. Until the thaw firing holds the timers
    again, and no claim starts the runs.
    """
    connection = writing.connection
    if not has_freeze(connection) and all(timer.hold_reason != HoldReason.FREEZE for timer in timers.values()):
        return False
    written = find_written_ahead_of(connection, jobs)
    if written:
        retract_frozen(connection, written)
        timers = read_locked_timers(writing, jobs)
    has_held = bool(written)
    for _ in range(_MAX_FREEZES):
        concerned = [timer for timer in timers.values() if _may_be_frozen(timer, now)]
        if not concerned:
            break
        frozen = hold_frozen(connection, concerned)
        undecided = _fire_before(writing, frozen.earlier, now)
        held = {*frozen.held, *(timer.job_id for timer in concerned if timer.hold_reason == HoldReason.FREEZE)}
        if held:
            has_ended = decide_held(connection, writing.installation, sorted(held), standing=True)
            undecided += [job for job, ended in has_ended.items() if ended]  # a later freeze may hold the timer too
        has_held = has_held or bool(held or undecided)
        if not undecided:
            break
        timers = read_locked_timers(writing, undecided)
    return has_held


def read_locked_timers(writing: Writing, job_ids: Sequence[UUID]) -> dict[UUID, LockedTimer]:
    """Return the timers of these jobs, which the caller has locked."""
    return {timer.job_id: timer for timer in writing.read_as(LockedTimer, _SQL["read_locked_timers"], job_ids=job_ids)}


def _fire_before(writing: Writing, earlier: Mapping[datetime, Sequence[LockedTimer]], now: datetime) -> list[UUID]:
    """Decide instants before the begin of a freeze, as of then; return the jobs that had any."""
    moved: list[UUID] = []
    for began, timers in earlier.items():
        decide_by = _OverdueDecider(writing, timers, began)
        decisions = advance_timers(writing.connection, writing.installation, timers, decide_by, now=now, repeats=True)
        moved += [timer.job_id for timer, done in zip(timers, decisions, strict=True) if done.fires or done.skips]
    return moved


def end_pauses(writing: Writing, timers: Sequence[LockedTimer], now: datetime) -> None:
    """Decide the occurrences of pauses that end now, as `on_resume` says."""
    _lift(writing, timers, lambda _, state: on_resume(state, now=now), now=now)


def _lift(
    writing: Writing,
    timers: Sequence[LockedTimer],
    resume: Callable[[LockedTimer, TimerState], Decision],
    *,
    now: datetime,
    repeats: bool = False,
) -> None:
    inputs = read_decision_inputs(writing.connection, timers)
    waiting = find_open_fixed_delay_runs(writing.connection, timers)

    def decide_by(timer: LockedTimer) -> Decision:
        decision = _by(timer, inputs, lambda state: resume(timer, state))
        return hold_for_run(decision) if timer.job_id in waiting else decision

    advance_timers(writing.connection, writing.installation, timers, decide_by, now=now, repeats=repeats)


def apply_overdue(
    writing: Writing,
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
        now: The time by the database's clock, read after the locks were acquired.
        keep_pauses: Paused jobs whose skipped occurrences are decided when the pause ends. For other paused jobs they
            are recorded now, before their version is replaced.
        drop_once: Paused jobs whose `once` will not fire any more if its instant has come.
        skip_quarantined: Quarantined jobs, with their keys, whose occurrences are recorded as missed now, since their
            schedule ends. Those of other quarantined jobs are decided when the job is released.

    Returns:
        The instant that the version in force would fire next, of each job that keeps its timer or had a run retracted.
    """
    retracted = retract_runs(writing.connection, job_ids, now=now)
    moving = [_with_retracted(timers[job], retracted.get(job)) for job in job_ids if job in timers]
    next_at = retracted | {timer.job_id: timer.scheduled_at for timer in moving}
    due = [timer for timer in moving if _is_due(timer, now)]
    # A paused timer's due_at is the end of the pause: only its state has the occurrences that were moved ahead.
    may_be_due = [timer for timer in moving if timer.overridden or _is_due(timer, now)]
    paused = [t for t in may_be_due if t.hold_reason == HoldReason.PAUSE and t.job_id not in keep_pauses]
    _skip_paused(writing, paused, now=now, drop_once=drop_once)
    quarantined = [t for t in due if t.hold_reason == HoldReason.QUARANTINED and t.job_id in skip_quarantined]
    _skip_quarantined(writing, quarantined, skip_quarantined, now=now)
    overdue = [timer for timer in due if timer.hold_reason is None]
    while overdue:
        decide_by = _OverdueDecider(writing, overdue, now)
        decisions = advance_timers(writing.connection, writing.installation, overdue, decide_by, now=now, repeats=True)
        moved = list(zip(overdue, decisions, strict=True))
        for timer, decision in moved:
            if decision.next_at is None:
                del next_at[timer.job_id]
            else:
                next_at[timer.job_id] = decision.next_at
        # A decision has a limit, and a catch-up may have ended meanwhile: repeat until nothing is overdue.
        overdue = [left for timer, decision in moved if (left := _still_overdue(timer, decision, now))]
    return next_at


def put_timers(writing: Writing, timers: Sequence[TimerToPut]) -> None:
    """Set timers; overrides of single occurrences stay in force."""
    if timers:
        writing.execute(
            _SQL["put_timers"],
            job_ids=[timer.job.job_id for timer in timers],
            tenants=[timer.job.tenant for timer in timers],
            shards=[timer.job.shard for timer in timers],
            due_at=[_due_at(timer) for timer in timers],
            scheduled_at=[timer.scheduled_at for timer in timers],
            versions=[timer.version or timer.job.version for timer in timers],
            hold_reasons=[timer.hold_reason for timer in timers],
        )


def next_instants(writing: Writing, job_ids: Sequence[UUID]) -> dict[UUID, datetime]:
    """Return the time of each job's next run; none for jobs on hold."""
    if not job_ids:
        return {}
    found = writing.read(_SQL["read_timers"], job_ids=list(job_ids))
    rows = cast("list[tuple[UUID, datetime, bool, datetime | None]]", found)
    # A timer with overrides or calendars is also due to record a skip, which is no run.
    undecided = {job for job, _, may_skip, written in rows if may_skip and written is None}
    decided = {job: written or due for job, due, _, written in rows if job not in undecided}
    return decided | _next_fires(writing, undecided) if undecided else decided


def _next_fires(writing: Writing, job_ids: Collection[UUID]) -> dict[UUID, datetime]:
    """Return the next fire time of jobs with overrides or calendars, decided as the scheduler does."""
    timers = writing.read_as(LockedTimer, _SQL["read_locked_timers"], job_ids=list(job_ids))
    inputs = read_decision_inputs(writing.connection, timers)
    found: dict[UUID, datetime] = {}
    for timer in timers:
        with suppress(ScheduleRefused):  # firing quarantines the job
            state = timer_state(timer, inputs.day_sets, inputs.of(timer))
            following = state.live.after(state.cursor - TICK)
            found[timer.job_id] = min([*state.moved.values(), following or _NEVER])
    return {job: at for job, at in found.items() if at is not _NEVER}


def read_timer_runs(
    writing: Writing, occurrences: Sequence[tuple[UUID, datetime]]
) -> dict[tuple[UUID, datetime], RunState]:
    """Return the states of the runs of these occurrences of locked jobs; none where there is no run."""
    if not occurrences:
        return {}
    named = {run_id(job, at, Cause.TIMER): (job, at) for job, at in occurrences}
    rows = writing.read(_SQL["read_timer_runs"], run_ids=uuids(named))
    return {named[run]: RunState(state) for run, state in cast("list[tuple[RunId, str]]", rows)}


def _due_at(timer: TimerToPut) -> str:
    at = timer.due_at or timer.scheduled_at if timer.hold_reason is None else timer.until
    return "infinity" if at is None else at.isoformat()


def _skip_paused(
    writing: Writing, paused: Sequence[LockedTimer], *, now: datetime, drop_once: Collection[UUID]
) -> None:
    inputs = read_decision_inputs(writing.connection, paused)

    def decide_by(timer: LockedTimer) -> Decision:
        once_too = timer.job_id in drop_once
        decision = _by(timer, inputs, lambda state: skip_paused(state, now=now, once_too=once_too))
        return decision._replace(hold_reason=HoldReason.PAUSE, due_at=timer.due_at)

    advance_timers(writing.connection, writing.installation, paused, decide_by, now=now)


def _skip_quarantined(
    writing: Writing, quarantined: Sequence[LockedTimer], keys: Mapping[UUID, str], *, now: datetime
) -> None:
    inputs = read_decision_inputs(writing.connection, quarantined)

    def decide_by(timer: LockedTimer) -> Decision:
        try:
            state = timer_state(timer, inputs.day_sets, inputs.of(timer))
            decision = skip_paused(state, now=now, once_too=True, reason=SkipReason.MISFIRE)
        except MemoryError:
            raise
        except Exception:  # noqa: BLE001 - the error that quarantined it: only its first occurrence is known
            first = Skip(SkipReason.MISFIRE, timer.scheduled_at, now, 1, exact=False)
            decision = Decision(skips=(first,), next_at=now + TICK)
        return decision._replace(hold_reason=HoldReason.QUARANTINED, due_at=None)

    advance_timers(writing.connection, writing.installation, quarantined, decide_by, now=now, keys=keys)


def _with_retracted(timer: LockedTimer, earliest: datetime | None) -> LockedTimer:
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

    def __init__(self, writing: Writing, timers: Sequence[LockedTimer], now: datetime) -> None:
        self._inputs = read_decision_inputs(writing.connection, timers)
        self._now, self._misfire_after = now, writing.installation.misfire_after

    def __call__(self, timer: LockedTimer) -> Decision:
        return _by(timer, self._inputs, lambda state: self._decide(state, timer.job_id))

    def _decide(self, state: TimerState, job: UUID) -> Decision:
        # A whole catch-up, plus one occurrence a second for misfire_after: one decision is usually enough.
        limit = int(self._misfire_after.total_seconds()) + 2 + MAX_CAUGHT_UP
        decision = decide(state, now=self._now, horizon=self._now, misfire_after=self._misfire_after, limit=limit)
        return with_jitter(decision, state, job)
