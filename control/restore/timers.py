"""Move timers past the occurrences that the lost database had fired."""

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from uuid import UUID

from tidewheel.control.restore.history import History
from tidewheel.ids import RunId
from tidewheel.postgres.database_clock import read_now
from tidewheel.postgres.pg_arrays import uuids
from tidewheel.postgres.session import Conn, Session, rows_of
from tidewheel.postgres.statements import Statements
from tidewheel.process.failpoint import failpoint
from tidewheel.runs import Cause
from tidewheel.schedules.decide import decide
from tidewheel.schedules.decision import Decision, Fire, HoldReason
from tidewheel.schedules.parse import schedule_from_text
from tidewheel.schedules.simple import FixedDelay
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


class Fired:
    """The occurrences that Kafka has: their instants by job and run."""

    def __init__(self, history: History) -> None:
        self.instants: dict[UUID, dict[UUID, datetime]] = {}
        known: dict[UUID, RunCompleted | RunRequest] = {**history.requests, **history.ends}
        for run_id, each in known.items():
            if each.cause.value == Cause.TIMER.value:
                self.instants.setdefault(UUID(each.job_id), {})[run_id] = each.scheduled_at.astimezone(UTC)

    def last(self, jobs: Collection[UUID] | None = None, until: datetime | None = None) -> dict[UUID, datetime]:
        """Return the last instant up to a time of each job that has one, or of each of these."""
        chosen = self.instants if jobs is None else self.instants.keys() & jobs
        within = {
            job: [at for at in self.instants[job].values() if until is None or at <= until] for job in sorted(chosen)
        }
        return {job: max(instants) for job, instants in within.items() if instants}


def fire_again(
    session: Session,
    installation: Installation,
    fired: Fired,
    *,
    jobs: Collection[UUID] | None = None,
    until: datetime | None = None,
) -> int:
    """Create the runs up to the last occurrence of each job that Kafka has; return their number.

    The policies for missed occurrences do not apply: these have fired. Runs that exist stay as they are.

    Args:
        session: A session of the owner.
        installation: Its names and keys.
        fired: What Kafka has.
        jobs: These jobs alone.
        until: Leave later occurrences out.
    """
    last, created = fired.last(jobs, until), 0
    moved_jobs = list(last)
    for start in range(0, len(moved_jobs), _AT_ONCE):
        left: Sequence[UUID] = moved_jobs[start : start + _AT_ONCE]
        while left:
            with session.transaction() as connection:
                timers = _lock(connection, left)
                moving = [each for each in timers if each.scheduled_at <= last[each.job_id] and not _waits(each)]
                plain = [each for each in moving if not each.chains]
                decide_by = _Decider(read_decision_inputs(connection, plain), last)
                now = read_now(connection)
                decisions = advance_timers(connection, installation, plain, decide_by, now=now, repeats=True)
                created += sum(len(each.fires) for each in decisions)
                _chain(connection, installation, [each for each in timers if each.chains], fired, last)
                failpoint("restoring.timers")
            moved = [(each.job_id, done.next_at) for each, done in zip(plain, decisions, strict=True)]
            left = [job for job, following in moved if following is not None and following <= last[job]]
    return created


def set_chains(session: Session, history: History, fired: Fired) -> None:
    """Set the next time of each fixed_delay job whose last run has ended, from that run's end."""
    last = fired.last()
    ends = {(each.job_id, each.scheduled_at): each.finished_at for each in history.ends.values()}
    jobs = list(last)
    for start in range(0, len(jobs), _AT_ONCE):
        with session.transaction() as connection:
            for timer in _lock(connection, jobs[start : start + _AT_ONCE]):
                ended = ends.get((str(timer.job_id), last[timer.job_id]))
                schedule = schedule_from_text(timer.schedule_json, timer.job_id)
                if not timer.chains or ended is None or not isinstance(schedule, FixedDelay) or _waits(timer):
                    continue
                if (due := schedule.due(last[timer.job_id], ended)) is not None:
                    move_timers(connection, [(timer.job_id, Decision(next_at=due))])


def _waits(timer: LockedTimer) -> bool:
    return timer.hold_reason in (HoldReason.PAUSE, HoldReason.QUARANTINED)


def _lock(connection: Conn, job_ids: Sequence[UUID]) -> list[LockedTimer]:
    with connection.cursor(row_factory=rows_of(LockedTimer._make), binary=True) as cursor:
        return cursor.execute(_LOCK_TIMERS, {"job_ids": uuids(job_ids)}).fetchall()


def _chain(
    connection: Conn,
    installation: Installation,
    timers: Sequence[LockedTimer],
    fired: Fired,
    last: Mapping[UUID, datetime],
) -> None:
    """Create the recorded runs of a fixed_delay, and hold its timer for the last."""
    for timer in timers:
        known = fired.instants[timer.job_id].items()
        runs = {run: at for run, at in known if timer.scheduled_at <= at <= last[timer.job_id]}
        if not runs or _waits(timer):
            continue
        new = [new_run(timer, Fire(at, at), at)._replace(run_id=RunId(run)) for run, at in runs.items()]
        create_runs(connection, installation, new, now=read_now(connection), repeats=True)
        move_timers(connection, [(timer.job_id, Decision(next_at=max(runs.values()), hold_reason=HoldReason.RUN))])


class _Decider:
    """Decides that every occurrence fires, up to the last one that had."""

    def __init__(self, inputs: DecisionInputs, last: Mapping[UUID, datetime]) -> None:
        self._inputs, self._last = inputs, last

    def __call__(self, timer: LockedTimer) -> Decision:
        state = timer_state(timer, self._inputs.day_sets, self._inputs.of(timer))
        until = self._last[timer.job_id]
        return decide(state, now=until, horizon=until, misfire_after=_NEVER_MISSED, limit=_LIMIT)
