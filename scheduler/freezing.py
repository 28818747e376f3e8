"""Hold the timers that come due under a freeze, and release them when it is thawed (ADR 0043).

Rows decide which instants come under a freeze: those after `created_at`, up to `thawed_at`. A scheduler that was down
for all of that time records the same as one that saw it. Three steps share the work:

- Firing holds a timer at the first instant under a freeze, and decides earlier ones as of the freeze's beginning. It
  locks the freezes for that. So a thaw comes wholly before a firing, or finds the timers that it has held.
- Runs that were written ahead of such instants are retracted, as by a pause. Claims refuse them until then, and after
  the thaw too.
- After the thaw the timers are decided as after a pause, a bounded batch in each step, so that other timers fire in
  between. `on_resume` decides, and what fires leaves at the catch-up rate.

All other runs need no release: claims and sweeps see the thaw at once.
"""

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple, cast
from uuid import UUID

from psycopg.rows import class_row

from tidewheel.clock import monotonic_seconds
from tidewheel.errors import ScheduleRefused, Unavailable
from tidewheel.postgres.database_clock import read_now
from tidewheel.postgres.pg_binary import instants, uuids
from tidewheel.postgres.session import Conn, Session, read_ids
from tidewheel.postgres.statements import Statements
from tidewheel.runs import HOLDS, Move, RunState, sources
from tidewheel.schedules.decide import hold_for_run, on_resume
from tidewheel.schedules.decision import Decision, HoldReason, SkipReason
from tidewheel.schedules.timer_state import timer_state
from tidewheel.transitions.decision_inputs import read_decision_inputs
from tidewheel.transitions.finish import finish_runs
from tidewheel.transitions.finished import RunEnd
from tidewheel.transitions.installation import Installation
from tidewheel.transitions.timers import (
    LockedTimer,
    advance_timers,
    find_open_fixed_delay_runs,
    move_timers,
    retract_runs,
)

_LOG = logging.getLogger("tidewheel.scheduler")

_SQL = Statements("tidewheel.scheduler")
_LOCK_FREEZES = _SQL["lock_freezes"]
_FIND_FROZEN_TIMERS = _SQL["find_frozen_timers"]
_FIND_THAWS = _SQL["find_thaws"]
_HAS_TIMER_BEHIND = _SQL["has_timer_behind"]
_FIND_WRITTEN_AHEAD = _SQL["find_written_ahead"]
_FIND_RUNS_WITHOUT_TIMER = _SQL["find_runs_without_timer"]
_LOCK_TIMERS_WRITTEN_AHEAD = _SQL["lock_timers_written_ahead"]
_LOCK_JOBS_WRITTEN_AHEAD = _SQL["lock_jobs_written_ahead"]
_REWIND_TIMERS = _SQL["rewind_timers"]
_REOPEN_JOBS = _SQL["reopen_jobs"]
_FIND_HELD_TIMERS = _SQL["find_held_timers"]
_FIND_FREEZE_ENDS = _SQL["find_freeze_ends"]
_LOCK_HELD_TIMERS = _SQL["lock_held_timers"]
_DROP_THAWED = _SQL["drop_thawed"]
_BEGIN_SETTLING = _SQL["begin_settling"]
_FIND_SETTLED = _SQL["find_settled"]
_RESOLVE_FREEZES = _SQL["resolve_freezes"]
_SETTLE_FREEZES = _SQL["settle_freezes"]

_RELEASED = 500  # timers of one step: tens of milliseconds
_SCANNED = 5000  # index entries of one step
_POLL_SECONDS = 1.0
_MAX_SETTLE_SECONDS = 60.0  # between two looks for the jobs of a transaction that stays open: each may read all jobs
_NOWHERE = UUID(int=0)


class Frozen(NamedTuple):
    """Timers that freezes concern.

    Args:
        held: The jobs of those that come due under a freeze, which are held now.
        earlier: Those that have instants before one, by its beginning.
    """

    held: list[UUID]
    earlier: Mapping[datetime, list[LockedTimer]]


def hold_frozen(connection: Conn, timers: Sequence[LockedTimer]) -> Frozen:
    """Hold locked timers that come due under a freeze.

    A timer whose freeze was deleted meanwhile is left as it is: it stays due.
    """
    connection.execute(_LOCK_FREEZES)
    rows = connection.execute(_FIND_FROZEN_TIMERS, {"job_ids": uuids(timer.job_id for timer in timers)}, binary=True)
    by_job = {timer.job_id: timer for timer in timers}
    held: list[LockedTimer] = []
    earlier: defaultdict[datetime, list[LockedTimer]] = defaultdict(list)
    for job, began, hold_reason, is_held in cast("list[tuple[UUID, datetime, str | None, bool]]", rows.fetchall()):
        if is_held:
            held.append(by_job[job])
        else:
            earlier[began].append(by_job[job]._replace(hold_reason=hold_reason))
    move_timers(
        connection,
        [
            (
                timer.job_id,
                Decision(next_at=timer.scheduled_at, hold_reason=HoldReason.FREEZE, overridden=timer.overridden),
            )
            for timer in held
        ],
    )
    return Frozen([timer.job_id for timer in held], earlier)


class _Retracted(NamedTuple):
    """A look for runs that were written ahead.

    Args:
        found: The jobs that have such runs.
        done: The jobs whose runs were retracted, and the runs that were skipped.
        is_cut: True if there may be more.
    """

    found: int
    done: int
    is_cut: bool


@dataclass(slots=True)
class _Look:
    """The time of the next look for the transactions that did not see a freeze, and the pause after it."""

    next_at: float = 0.0
    seconds: float = _POLL_SECONDS


class Thaws:
    """Retracts runs for freezes, releases the timers of thawed ones, and completes freezes by jobs."""

    def __init__(self, session: Session, installation: Installation) -> None:
        self._session, self._installation = session, installation
        self._next_poll = 0.0
        self._looks: dict[int, _Look] = {}  # by freeze that is not settled
        self._pass: list[int] = []  # the freezes that were thawed when the current pass over the held timers began
        self._after, self._found, self._done = _NOWHERE, 0, 0
        self._retracts = False  # until the runs written ahead are retracted, at the begin of a pass
        self._is_behind = False  # whether firing had more to decide when it began

    def step(self) -> bool:
        """Retract the runs of some jobs, or release some timers; return True if more can be done at once."""
        if monotonic_seconds() < self._next_poll:
            return False
        with self._session.transaction() as connection:
            rows = cast("list[tuple[int, datetime | None]]", connection.execute(_FIND_THAWS, binary=True).fetchall())
        thawed = {number: at for number, at in rows if at is not None}
        more = self._settle([number for number, at in rows if at is None])
        more = (bool(thawed) and self._release(thawed)) or more
        self._next_poll = 0.0 if more else monotonic_seconds() + _POLL_SECONDS
        return more

    def _release(self, thawed: Mapping[int, datetime]) -> bool:
        """Release the next timers of a pass over the held ones; return True if more can be done at once.

        A pass ends the freezes that were thawed when it began, unless it found something: a timer with an instant
        under them that firing has not decided, a run written ahead, a timer to release. It looks for them in this
        order, because firing turns a timer of the first kind into the others.
        """
        if not self._pass:
            with self._session.transaction() as connection:
                columns = {"shards": self._installation.shards, "until": max(thawed.values())}
                [(behind,)] = connection.execute(_HAS_TIMER_BEHIND, columns).fetchall()
            self._pass, self._after, self._found, self._done = list(thawed), _NOWHERE, 0, 0
            self._is_behind, self._retracts = bool(behind), True
        if self._retracts:
            retracted = self._retract(self._pass)
            self._found += retracted.found
            self._done += retracted.done
            if retracted.is_cut:
                return True
            self._retracts = False
        with self._session.transaction() as connection:
            columns = {"after": self._after, "limit": _SCANNED}
            found = connection.execute(_FIND_HELD_TIMERS, columns, binary=True).fetchall()
        rows = cast("list[tuple[UUID, bool]]", found)
        chosen = [job for job, released in rows if released][:_RELEASED]
        if chosen:
            released = self._release_batch(chosen)
            self._found += len(chosen)
            self._done += released
            if released:
                _LOG.info("released %d timers of thawed freezes", released)
        if len(chosen) == _RELEASED:
            self._after = chosen[-1]
            return True
        if len(rows) == _SCANNED:
            self._after = rows[-1][0]
            return True
        ended, self._pass = self._pass, []
        if self._found == 0 and not self._is_behind:
            with self._session.transaction() as connection:
                connection.execute(_DROP_THAWED, {"ids": ended})
            _LOG.info("%d freezes are thawed, and their timers released", len(ended))
        return self._done > 0  # what another transaction holds is found again a second later

    def _retract(self, freezes: Sequence[int]) -> _Retracted:
        """Retract the runs of some jobs that were written ahead of instants under these freezes."""
        with self._session.transaction() as connection:
            columns: dict[str, object] = {
                "ids": list(freezes), "sources": sources(Move.SKIP), "holds": HOLDS, "limit": _RELEASED,
            }  # fmt: skip
            found = connection.execute(_FIND_WRITTEN_AHEAD, columns, binary=True).fetchall()
            if not found:
                return _Retracted(0, 0, is_cut=False)
            began = dict(cast("list[tuple[UUID, datetime]]", found))
            jobs = retract_frozen(connection, began)
        ended = self._end_without_timer(began, columns)
        if jobs or ended:
            _LOG.info("retracted the runs of %d jobs that were written ahead of a freeze, and ended %d", jobs, ended)
        return _Retracted(len(found), jobs + ended, is_cut=len(found) == _RELEASED and jobs + ended > 0)

    def _end_without_timer(self, began: Mapping[UUID, datetime], columns: Mapping[str, object]) -> int:
        """Skip the runs written ahead of jobs that an edit has left without a timer."""
        with self._session.transaction() as connection:
            named = {**columns, "job_ids": uuids(began), "began": instants(began.values())}
            found = connection.execute(_FIND_RUNS_WITHOUT_TIMER, named, binary=True).fetchall()
            ends = [
                RunEnd(run, 0, RunState.SKIPPED, reason=SkipReason.FROZEN)
                for (run,) in cast("list[tuple[UUID]]", found)
            ]
            return len(finish_runs(connection, self._installation, ends).states)

    def _release_batch(self, job_ids: Sequence[UUID]) -> int:
        try:
            with self._session.transaction() as connection:
                return len(_release(connection, self._installation, job_ids))
        except Unavailable:
            raise
        except Exception as error:  # noqa: BLE001 - releasing one at a time finds the one that fails
            if len(job_ids) > 1:
                _LOG.warning("releasing %d timers failed (%s); they are released one by one", len(job_ids), error)
                return sum(self._release_batch([job]) for job in job_ids)
            _LOG.exception("the timer of job %s cannot be decided; firing decides about it", job_ids[0])
            with self._session.transaction() as connection:
                held, now = _lock(connection, job_ids), read_now(connection)
                move_timers(connection, [(timer.job_id, _undecided(timer, now)) for timer in held])
            return len(held)

    def _settle(self, freezes: list[int]) -> bool:
        """Add jobs and retract runs that did not see these freezes; return True if more can be done."""
        self._looks = {number: self._looks.get(number) or _Look() for number in freezes}
        now = monotonic_seconds()
        due = [number for number, look in self._looks.items() if look.next_at <= now]
        if not due:
            return False
        with self._session.transaction() as connection:
            connection.execute(_BEGIN_SETTLING, {"ids": due})
        with self._session.transaction() as connection:
            rows = cast("list[tuple[int]]", connection.execute(_FIND_SETTLED, {"ids": due}, binary=True).fetchall())
            connection.execute(_RESOLVE_FREEZES, {"ids": due})
        retracted = self._retract(due)
        if retracted.is_cut:
            return True
        if not retracted.found:  # else the next look finds those whose rows another transaction held
            with self._session.transaction() as connection:
                connection.execute(_SETTLE_FREEZES, {"ids": [number for (number,) in rows]})
        now = monotonic_seconds()
        for number in due:
            seconds = self._looks[number].seconds
            self._looks[number] = _Look(now + seconds, min(seconds * 2, _MAX_SETTLE_SECONDS))
        return False


def retract_frozen(connection: Conn, began: Mapping[UUID, datetime]) -> int:
    """Retract the runs that were written ahead of instants under a freeze, and hold their timers there.

    Jobs whose rows another transaction holds are left out.

    Returns:
        The number of jobs.
    """
    columns: dict[str, object] = {"job_ids": uuids(began)}
    columns["locked"] = uuids(read_ids(connection, _LOCK_TIMERS_WRITTEN_AHEAD, columns))
    locked = read_ids(connection, _LOCK_JOBS_WRITTEN_AHEAD, columns)
    by_instant: defaultdict[datetime, list[UUID]] = defaultdict(list)
    for job in sorted(locked):
        by_instant[began[job]].append(job)
    earliest: dict[UUID, datetime] = {}
    for at, jobs in by_instant.items():
        earliest |= retract_runs(connection, jobs, now=at)
    back = {"job_ids": uuids(earliest), "instants": instants(earliest.values())}
    connection.execute(_REWIND_TIMERS, back)
    connection.execute(_REOPEN_JOBS, back)
    return len(locked)


def _release(connection: Conn, installation: Installation, job_ids: Sequence[UUID]) -> list[Decision]:
    locked = _lock(connection, job_ids)
    columns = {"job_ids": uuids(timer.job_id for timer in locked)}
    rows = connection.execute(_FIND_FREEZE_ENDS, columns, binary=True).fetchall()
    ends = dict(cast("list[tuple[UUID, datetime | None]]", rows))
    timers = [timer for timer in locked if timer.job_id in ends]
    inputs, waiting = read_decision_inputs(connection, timers), find_open_fixed_delay_runs(connection, timers)
    now = read_now(connection)

    def decide_by(timer: LockedTimer) -> Decision:
        until = ends[timer.job_id] or now
        try:
            state = timer_state(timer, inputs.day_sets, inputs.of(timer))
        except ScheduleRefused:
            return _undecided(timer, until)  # firing quarantines the job
        decision = on_resume(state, now=until, reason=SkipReason.FROZEN)
        if decision.next_at is not None and decision.next_at <= until:
            # All up to here is decided: the freeze, whose row may still be there, does not hold it again.
            decision = decision._replace(catch_up_end=until)
        return hold_for_run(decision) if timer.job_id in waiting else decision

    return advance_timers(connection, installation, timers, decide_by, now=now)


def _undecided(timer: LockedTimer, until: datetime) -> Decision:
    return Decision(next_at=timer.scheduled_at, overridden=timer.overridden, catch_up_end=until)


def _lock(connection: Conn, job_ids: Sequence[UUID]) -> list[LockedTimer]:
    with connection.cursor(row_factory=class_row(LockedTimer), binary=True) as cursor:
        return cursor.execute(_LOCK_HELD_TIMERS, {"job_ids": uuids(job_ids)}).fetchall()
