"""Move timers past the occurrences that the lost database had fired, and write what jobs had done."""

from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from uuid import UUID

from tidewheel.control.restore.ends import create_missing, record_ends
from tidewheel.control.restore.history import History
from tidewheel.ids import RunId
from tidewheel.postgres.database_clock import as_of, read_now
from tidewheel.postgres.pg_binary import uuids
from tidewheel.postgres.session import Conn, Session, read_rows, rows_of
from tidewheel.postgres.statements import Statements
from tidewheel.process.failpoint import failpoint
from tidewheel.runs import Cause
from tidewheel.schedules.decide import decide
from tidewheel.schedules.decision import Decision, Fire, HoldReason, Skip
from tidewheel.schedules.parse import schedule_from_text
from tidewheel.schedules.schedule import FixedDelay
from tidewheel.schedules.timer_state import timer_state
from tidewheel.schemas.generated.records import RunCompleted, RunRequest
from tidewheel.transitions.create import create_runs
from tidewheel.transitions.decision_inputs import DecisionInputs, read_decision_inputs
from tidewheel.transitions.installation import Installation
from tidewheel.transitions.timers import LockedTimer, advance_timers, move_timers, new_run

_LOCK_TIMERS = Statements("tidewheel.control.restore")["lock_timers"]

_AT_ONCE = 100
_NEVER_MISSED = timedelta(days=36_500)
_LIMIT = 1_000
_BEFORE = timedelta(milliseconds=1)
LATEST = datetime.max.replace(tzinfo=UTC)


class Fired:
    """The occurrences that Kafka has, by job: the instants of runs, with the runs, and the skipped spans."""

    def __init__(self, history: History) -> None:
        self.runs: dict[UUID, dict[datetime, UUID]] = {}
        self.ended = {
            (UUID(end.job_id), end.scheduled_at): end.finished_at
            for end in history.ends.values()
            if end.cause.value == Cause.TIMER.value
        }
        self.skips = history.skips
        self._reached: dict[UUID, datetime] = {}
        for run_id, each in history.runs.items():
            if each.cause.value == Cause.TIMER.value:
                self.runs.setdefault(UUID(each.job_id), {})[each.scheduled_at.astimezone(UTC)] = run_id
        self._instants = {
            job: sorted({*self.runs.get(job, ()), *(skip.last_at for skip in self.skips.get(job, ()))})
            for job in self.runs.keys() | self.skips.keys()
        }

    def last(self, jobs: Collection[UUID] | None = None, until: datetime = LATEST) -> dict[UUID, datetime]:
        """Return the last instant up to a time of each job that has one, or of each of these."""
        found: dict[UUID, datetime] = {}
        for job in sorted(self._instants.keys() if jobs is None else self._instants.keys() & jobs):
            instants = self._instants[job]
            if number := bisect_right(instants, until):
                found[job] = instants[number - 1]
        return found

    def ahead(self, jobs: Collection[UUID] | None, until: datetime) -> dict[UUID, datetime]:
        """Return the same without the instants that are reached."""
        last = self.last(jobs, until)
        return {job: at for job, at in last.items() if job not in self._reached or self._reached[job] < at}

    def reach(self, job: UUID, at: datetime) -> None:
        """Note that the timer of a job has passed an instant."""
        self._reached[job] = at

    def between(self, job: UUID, last: datetime) -> dict[UUID, datetime]:
        """Return the runs of a job behind the reached instant, up to this one."""
        instants = self._instants[job]
        first = bisect_right(instants, self._reached[job]) if job in self._reached else 0
        return {self.runs[job][at]: at for at in instants[first : bisect_right(instants, last)] if at in self.runs[job]}


def fire_again(
    session: Session,
    installation: Installation,
    fired: Fired,
    *,
    jobs: Collection[UUID] | None = None,
    until: datetime = LATEST,
) -> int:
    """Create the runs up to the last occurrence of each job that Kafka has by a time; return their number.

    The policies for missed occurrences do not apply: those that Kafka has as skipped are skipped, the others fire.
    Runs that exist stay as they are.
    """
    last, created = fired.ahead(jobs, until), 0
    moved_jobs = list(last)
    for start in range(0, len(moved_jobs), _AT_ONCE):
        left: Sequence[UUID] = moved_jobs[start : start + _AT_ONCE]
        while left:
            with session.transaction() as connection:
                timers = _lock(connection, left)
                moving = [each for each in timers if each.scheduled_at <= last[each.job_id] and not _waits(each, last)]
                plain = [each for each in moving if not each.chains]
                decide_by = _Decider(read_decision_inputs(connection, plain), fired, last)
                now = read_now(connection)
                decisions = advance_timers(connection, installation, plain, decide_by, now=now, repeats=True)
                created += sum(len(each.fires) for each in decisions)
                _chain(connection, installation, [each for each in timers if each.chains], fired, last)
                failpoint("restoring.timers")
            for each in timers:
                if not _waits(each, last):
                    fired.reach(each.job_id, last[each.job_id])
            moved = [(each.job_id, done.next_at) for each, done in zip(plain, decisions, strict=True)]
            left = [job for job, following in moved if following is not None and following <= last[job]]
    return created


def set_chains(
    session: Session, fired: Fired, *, jobs: Collection[UUID] | None = None, until: datetime = LATEST
) -> None:
    """Set the next time of fixed_delay jobs, or of these, from the end of the last run.

    A job whose last run had not ended by a time keeps its timer.
    """
    last = fired.last(jobs, until)
    ended = {job: end for job, at in last.items() if (end := fired.ended.get((job, at))) is not None and end <= until}
    named = list(ended)
    for start in range(0, len(named), _AT_ONCE):
        with session.transaction() as connection:
            for timer in _lock(connection, named[start : start + _AT_ONCE]):
                schedule = schedule_from_text(timer.schedule_json, timer.job_id)
                if not timer.chains or not isinstance(schedule, FixedDelay) or _waits(timer, last):
                    continue
                if (due := schedule.due(last[timer.job_id], ended[timer.job_id])) is not None:
                    move_timers(connection, [(timer.job_id, _held(timer, Decision(next_at=due)))])


class Past:
    """The runs of jobs until a time, written before a request changes these jobs."""

    def __init__(self, session: Session, installation: Installation, history: History, since: datetime) -> None:
        self.fired = Fired(history)
        self.occurrences = self.created = self.ended = 0
        self.requested = {UUID(answer.reply.run_id) for answer in history.replies.values() if answer.reply.run_id}
        """The runs that requests create."""
        self._session, self._installation, self._history, self._since = session, installation, history, since
        self._released_jobs = {*history.of_workflows.values()}
        self._begun = _ByJob((end.job_id, end.started_at or end.finished_at, run) for run, end in history.ends.items())
        # Runs by REST, CLI or Client: no request creates them again.
        self._direct = _ByJob(
            (each.job_id, _known_by(each), run)
            for run, each in history.runs.items()
            if Cause(each.cause.value) in (Cause.TRIGGER, Cause.RETRY)
            and (isinstance(each, RunRequest) or not each.origin)
        )

    def reach(self, until: datetime, job: UUID | None, run: UUID | None) -> None:
        """Create the runs of a job, or of all, up to a time, and this run.

        Runs that had begun by then get their ends.
        """
        if job in self._released_jobs:
            job = None  # the ends of other jobs create its runs
        jobs = None if job is None else {job}
        with as_of(until - _BEFORE):  # a filter cancels what was created before it
            self.occurrences += fire_again(self._session, self._installation, self.fired, jobs=jobs, until=until)
        missing = {*self._direct.until(until, job)} - self.requested
        if run is not None and run in self._history.runs:
            missing.add(run)
        created, _ = create_missing(self._session, self._installation, self._history, runs=missing)
        self.created += created
        begun = self._begun.until(until, job)
        if run is not None and run in self._history.ends and run in missing:
            begun.append(run)
        self.ended += record_ends(self._session, self._installation, self._history, self._since, runs=begun)
        set_chains(
            self._session, self.fired, jobs={UUID(self._history.ends[each].job_id) for each in begun}, until=until
        )


def _held(timer: LockedTimer, decision: Decision) -> Decision:
    """Return a decision that keeps a pause whose end lies before: the scheduler ends the pause of the job."""
    if timer.hold_reason != HoldReason.PAUSE:
        return decision
    return decision._replace(hold_reason=HoldReason.PAUSE, due_at=timer.due_at)


def _waits(timer: LockedTimer, last: Mapping[UUID, datetime]) -> bool:
    """Return True if the timer was held at the last occurrence of its job that Kafka has."""
    if timer.hold_reason == HoldReason.PAUSE:
        return timer.due_at is None or timer.due_at > last[timer.job_id]
    return timer.hold_reason == HoldReason.QUARANTINED


def _lock(connection: Conn, job_ids: Sequence[UUID]) -> list[LockedTimer]:
    return read_rows(connection, rows_of(LockedTimer._make), _LOCK_TIMERS, {"job_ids": uuids(job_ids)})


def _chain(
    connection: Conn,
    installation: Installation,
    timers: Sequence[LockedTimer],
    fired: Fired,
    last: Mapping[UUID, datetime],
) -> None:
    """Create the recorded runs of a fixed_delay, and hold its timer for the last.

    The timer may be ahead of them: the recorded end of an earlier run has moved it from the present.
    """
    for timer in timers:
        runs = fired.between(timer.job_id, last[timer.job_id])
        if not runs or _waits(timer, last):
            continue
        new = [new_run(timer, Fire(at, at), at)._replace(run_id=RunId(run)) for run, at in runs.items()]
        create_runs(connection, installation, new, now=read_now(connection), repeats=True)
        decision = Decision(next_at=max(runs.values()), hold_reason=HoldReason.RUN)
        move_timers(connection, [(timer.job_id, _held(timer, decision))])


class _Decider:
    """Decides that every occurrence fires up to the last one that Kafka has, but for skipped ones."""

    def __init__(self, inputs: DecisionInputs, fired: Fired, last: Mapping[UUID, datetime]) -> None:
        self._inputs, self._fired, self._last = inputs, fired, last

    def __call__(self, timer: LockedTimer) -> Decision:
        state = timer_state(timer, self._inputs.day_sets, self._inputs.of(timer))
        until = self._last[timer.job_id]
        decision = decide(state, now=until, horizon=until, misfire_after=_NEVER_MISSED, limit=_LIMIT)
        return self._without_skipped(timer.job_id, _held(timer, decision))

    def _without_skipped(self, job: UUID, decision: Decision) -> Decision:
        """Return a decision that skips what Kafka has as skipped, unless it has a run of it."""
        runs, fires, skips = self._fired.runs.get(job, {}), decision.fires, list(decision.skips)
        for span in self._fired.skips.get(job, ()):
            gone = [each.at for each in fires if span.first_at <= each.at <= span.last_at and each.at not in runs]
            if gone:
                skips.append(Skip(span.reason, min(gone), max(gone), len(gone)))
                fires = tuple(each for each in fires if each.at not in gone)
        return decision._replace(fires=fires, skips=tuple(skips))


class _ByJob:
    """Runs by job, in the order of a time; each is taken once."""

    def __init__(self, runs: Iterable[tuple[str, datetime, UUID]]) -> None:
        self._left: dict[UUID, list[tuple[datetime, UUID]]] = {}  # the first one last
        for job, at, run in runs:
            self._left.setdefault(UUID(job), []).append((at, run))
        for each in self._left.values():
            each.sort(reverse=True)

    def until(self, until: datetime, job: UUID | None) -> list[UUID]:
        """Take the runs of a job, or of all, up to a time."""
        taken: list[UUID] = []
        for each in self._left if job is None else self._left.keys() & {job}:
            runs = self._left[each]
            while runs and runs[-1][0] <= until:
                taken.append(runs.pop()[1])
        return taken


def _known_by(run: RunCompleted | RunRequest) -> datetime:
    """Return a time at which a run existed."""
    if isinstance(run, RunRequest):
        return run.publish_at
    return min(run.finished_at, run.published_at or run.finished_at)
