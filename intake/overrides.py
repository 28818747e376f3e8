"""`job.skip`, `job.move` and `job.unskip`: override one occurrence, named by its instant.

Under the job's locks, the overdue occurrences fire and the runs ahead are retracted. The timer is then set to the first
instant without a record, due at the scheduler's next wakeup for the job. An occurrence that still has a run has started
meanwhile and cannot be overridden. A pause goes on: its skipped occurrences are decided when it ends. Rows written:
overrides and timers, and skips of occurrences that no timer covers any more.

An occurrence is upcoming while its instant, or the time it was moved to, is in the future: no run of it has started.
The rules of `UpcomingOccurrences` are pure, on facts that were read under the job's lock.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from tidewheel.errors import FieldError, InvalidInput, Refused, ScheduleRefused, UnknownJob, refuse
from tidewheel.intake.calendars import delete_overrides, drop_moves, read_upcoming_overrides
from tidewheel.intake.locks import JobRow, Locked, lock_jobs
from tidewheel.intake.next_version import NextTimer
from tidewheel.intake.request import ReceivedRequest, accepted, rejected
from tidewheel.intake.timers import TimerToPut, apply_overdue, put_timers, read_timer_runs
from tidewheel.intake.writing import Writing
from tidewheel.jobs.requests import JobMove, JobSkip, JobUnskip
from tidewheel.jobs.values import format_timestamp
from tidewheel.outbox import OutboxRow
from tidewheel.postgres.pg_binary import instants, uuids
from tidewheel.postgres.statements import Statements
from tidewheel.runs import FINAL, RunState
from tidewheel.schedules.calendars import is_occurrence
from tidewheel.schedules.decide import next_wakeup
from tidewheel.schedules.decision import HoldReason, Override, policies_from_text
from tidewheel.schedules.schedule import TICK, FixedDelay, Manual
from tidewheel.schedules.timer_state import DaySets, TimerState, timer_state
from tidewheel.schemas.generated.records import Reply
from tidewheel.transitions.decision_inputs import read_day_sets
from tidewheel.transitions.events import job_event

_SQL = Statements("tidewheel.intake")

MAX_OVERRIDES = 1_000  # upcoming ones of one job: the scheduler reads each of them when the job fires
MAX_MOVE = timedelta(days=400)  # from the occurrence's own instant; equal to the longest delay of a trigger

_MAX_SHOWN = 3


@dataclass(frozen=True, slots=True)
class UpcomingOccurrences:
    """The upcoming occurrences of a job."""

    job: JobRow
    state: TimerState
    overrides: Mapping[datetime, Override]
    now: datetime

    @property
    def computed(self) -> bool:
        """True if the schedule has instants that can be computed ahead."""
        return not isinstance(self.state.schedule, FixedDelay | Manual)

    @property
    def next_run(self) -> datetime | None:
        """The time of the next run, unless the timer is on hold."""
        following = self.state.live.after(self.now)
        moved = [to for to in self.state.moved.values() if to > self.now]
        return min([*moved, following] if following is not None else moved, default=None)

    def skipped(self, at: datetime) -> Override:
        """Return the override that skips an occurrence."""
        self._ensure_upcoming(at)
        return Override(at, None)

    def moved(self, at: datetime, to: datetime) -> Override:
        """Return the override that moves an occurrence."""
        self._ensure_upcoming(at)
        if to == at:
            known = self.overrides.get(at)
            remedy = "undo the skip or the move with unskip" if known else "leave the occurrence as it is"
            refuse("to", f"{format_timestamp(to)} is already the occurrence's time", remedy)
        if to <= self.now:
            refuse("to", self._passed(to), "write a later time")
        if abs(to - at) > MAX_MOVE:
            problem = f"{format_timestamp(to)} is more than {MAX_MOVE.days} days from the occurrence"
            refuse("to", problem, "skip it, and trigger the job then")
        return Override(at, to)

    def restored(self, at: datetime) -> Override | None:
        """Return the override that remains when one is withdrawn; None if none does.

        An occurrence whose own instant has passed meanwhile is moved to now: it fires at once.
        """
        known = self.overrides.get(at)
        if known is None:
            refuse("at", f"{format_timestamp(at)} is not skipped or moved, or has passed", self._overridden())
        self._ensure_not_fired(known)
        return None if at > self.now else Override(at, self.now)

    def _ensure_upcoming(self, at: datetime) -> None:
        if not self.computed:
            kind = "manual" if isinstance(self.state.schedule, Manual) else "fixed_delay"
            problem = f"the schedule is {kind}, whose occurrences are not known in advance"
            refuse("at", problem, "pause the job" if kind == "fixed_delay" else "cancel a run instead")
        known = self.overrides.get(at)
        if known is not None and known.moved_to is not None:
            self._ensure_not_fired(known)
        elif at <= self.now:
            following = self.state.effective.after(self.now)
            remedy = "no occurrence is upcoming" if following is None else f"the next is {format_timestamp(following)}"
            refuse("at", self._passed(at), remedy)
        if at > self.now and not is_occurrence(self.state.effective, at):
            refuse("at", self._no_occurrence(at), self._nearest(at))
        if known is None and len(self.overrides) >= MAX_OVERRIDES:
            problem = f"{len(self.overrides)} upcoming occurrences of this job are already skipped or moved"
            refuse("at", problem, "pause the job, or exclude a calendar")

    def _ensure_not_fired(self, known: Override) -> None:
        if known.moved_to is not None and known.moved_to <= self.now:
            moved = f"{format_timestamp(known.scheduled_at)} was moved to {format_timestamp(known.moved_to)}"
            refuse("at", f"{moved}, which has passed", "cancel its run, or name an upcoming occurrence")

    def _passed(self, instant: datetime) -> str:
        return f"{format_timestamp(instant)} has passed; the database's clock is at {format_timestamp(self.now)}"

    def _no_occurrence(self, at: datetime) -> str:
        problem = f"{format_timestamp(at)} is not an occurrence"
        return f"{problem}: a calendar excludes its day" if is_occurrence(self.state.schedule, at) else problem

    def _nearest(self, at: datetime) -> str:
        earlier, later = self.state.effective.before(at), self.state.effective.after(at)
        if earlier is not None and earlier <= self.now:
            earlier = None
        if earlier is not None and later is not None:
            return f"the nearest are {format_timestamp(earlier)} and {format_timestamp(later)}"
        if later is not None:
            return f"the next is {format_timestamp(later)}"
        return "no occurrence is upcoming" if earlier is None else f"the last is {format_timestamp(earlier)}"

    def _overridden(self) -> str:
        overridden = [each for each in self.overrides.values() if each.moved_to is None or each.moved_to > self.now]
        if not overridden:
            return "no upcoming occurrence of this job is skipped or moved"
        more = f" and {len(overridden) - _MAX_SHOWN} more" if len(overridden) > _MAX_SHOWN else ""
        return f"skipped or moved: {', '.join(map(_override_text, overridden[:_MAX_SHOWN]))}{more}"


@dataclass(frozen=True, slots=True)
class _Change:
    """The change of one occurrence's override."""

    request: JobSkip | JobMove | JobUnskip
    upcoming: UpcomingOccurrences
    override: Override | None

    @property
    def job(self) -> JobRow:
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


def apply_overrides(writing: Writing, batch: Sequence[ReceivedRequest]) -> list[Reply]:
    """Skip, move or restore one occurrence each of different jobs."""
    locked = lock_jobs(writing, batch)
    jobs = locked.existing(batch)
    calendars = {(job.tenant, name) for job in jobs for name in policies_from_text(job.policy_json or "{}").calendars}
    day_sets = read_day_sets(writing.connection, calendars)
    overrides = read_upcoming_overrides(writing.connection, [job.job_id for job in jobs], locked.now)
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
    after, started = _apply_changes(writing, locked, effective, day_sets) if effective else ({}, {})
    refused |= started
    return [
        rejected(received, refused[received.job_id])
        if received.job_id in refused
        else _reply(received, changes[received.job_id], after, locked)
        for received in batch
    ]


def _upcoming(
    job: JobRow, overrides: Iterable[Override], day_sets: DaySets, now: datetime, cursor: datetime | None = None
) -> UpcomingOccurrences:
    by_instant = {each.scheduled_at: each for each in overrides}
    row = NextTimer(job, job.schedule_json or "", job.policy_json or "{}", cursor or now + TICK)
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
    writing: Writing, locked: Locked, changes: Sequence[_Change], day_sets: DaySets
) -> tuple[dict[UUID, UpcomingOccurrences], dict[UUID, Refused]]:
    """Write the changes of different jobs; return their upcoming occurrences, and what came too late."""
    shifting = [change for change in changes if change.shifts_timer]
    # The end of a pause decides the occurrences in it, and no run is written ahead during a pause.
    active = [change.job.job_id for change in shifting if not change.job.paused]
    remaining = apply_overdue(writing, locked.timers, active, now=locked.now)
    # An occurrence that still has a run: an attempt has started.
    runs = read_timer_runs(writing, [(change.job.job_id, change.request.at) for change in shifting])
    started: dict[UUID, Refused] = {job: _has_a_run(at, state) for (job, at), state in runs.items()}
    applied = [change for change in changes if change.job.job_id not in started]
    _write(writing, applied, locked.now)
    job_ids = [change.job.job_id for change in changes]
    overrides = read_upcoming_overrides(writing.connection, job_ids, locked.now)
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
    put_timers(writing, timers)
    # The retracted run may have been the last of its job.
    writing.execute(_SQL["revive_jobs"], job_ids=[timer.job.job_id for timer in timers])
    writing.append([_event(writing, change, locked.now) for change in applied])
    return after, started


def _has_a_run(at: datetime, state: RunState) -> InvalidInput:
    problem = f"{format_timestamp(at)} already became a run (now {state})"
    remedy = "trigger the job to run it again" if state in FINAL else "cancel its run"
    return InvalidInput([FieldError("at", problem, remedy)])


def _write(writing: Writing, applied: Sequence[_Change], now: datetime) -> None:
    delete_overrides(writing, [(each.job.job_id, each.request.at) for each in applied if each.override is None])
    drop_moves(writing, [(each.job, each.request.at) for each in applied if each.drops_move], now)
    written = [(each, each.override) for each in applied if each.override is not None and not each.drops_move]
    if written:
        writing.execute(
            _SQL["put_overrides"],
            job_ids=uuids(change.job.job_id for change, _ in written),
            instants=instants(override.scheduled_at for _, override in written),
            tenants=[change.job.tenant for change, _ in written],
            moved_to=instants(override.moved_to for _, override in written),
            reasons=[change.request.reason for change, _ in written],
            now=now,
        )


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
    # If no occurrence is left, the scheduler finds that out then and finishes the job.
    due_at = next_wakeup(upcoming.state, cursor - TICK) or cursor
    return TimerToPut(job, cursor, due_at, _held(job, locked), job.paused_until)


def _held(job: JobRow, locked: Locked) -> HoldReason | None:
    """Return the reason why the timer is on hold; the timer of a fixed_delay is not changed here."""
    if job.paused:
        return HoldReason.PAUSE
    timer = locked.timers.get(job.job_id)
    return HoldReason.QUARANTINED if timer is not None and timer.hold_reason == HoldReason.QUARANTINED else None


def _event(writing: Writing, change: _Change, now: datetime) -> OutboxRow:
    job, request = change.job, change.request
    suffix = {JobSkip: "skipped", JobMove: "moved", JobUnskip: "restored"}[type(request)]
    detail = {"at": format_timestamp(request.at)}
    if isinstance(request, JobMove):
        detail["to"] = format_timestamp(request.to)
    kind = f"job.occurrence_{suffix}"
    return job_event(writing.installation, kind, job, now, reason=request.reason, detail=detail)


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


def _override_text(override: Override) -> str:
    at = format_timestamp(override.scheduled_at)
    return f"{at} (skipped)" if override.moved_to is None else f"{at} (moved to {format_timestamp(override.moved_to)})"
