"""Hold the timers that come due under a freeze, and release them when it is thawed (ADR 0043).

Firing holds such a timer at its cursor, once, and locks the freezes for that. So a thaw comes wholly before a firing,
or finds the timers that it has held. The released timers are decided as after a pause, a bounded batch in each step, so
that other timers fire in between. `on_resume` decides, and what fires leaves at the catch-up rate.

Runs need no release: claims and sweeps see the thaw at once.
"""

import logging
from collections.abc import Sequence
from typing import cast
from uuid import UUID

from psycopg.rows import class_row

from tidewheel.clock import monotonic_seconds
from tidewheel.errors import ScheduleRefused, Unavailable
from tidewheel.postgres.database_clock import read_now
from tidewheel.postgres.pg_arrays import integers, uuids
from tidewheel.postgres.session import Conn, Session, read_ids
from tidewheel.postgres.statements import Statements
from tidewheel.schedules.decide import hold_for_run, on_resume
from tidewheel.schedules.decision import Decision, HoldReason, SkipReason
from tidewheel.schedules.timer_state import timer_state
from tidewheel.transitions.decision_inputs import read_decision_inputs
from tidewheel.transitions.installation import Installation
from tidewheel.transitions.timers import LockedTimer, advance_timers, find_open_fixed_delay_runs, move_timers

_LOG = logging.getLogger("tidewheel.scheduler")

_SQL = Statements("tidewheel.scheduler")
_LOCK_FREEZES = _SQL["lock_freezes"]
_FIND_FROZEN_TIMERS = _SQL["find_frozen_timers"]
_FIND_THAWS = _SQL["find_thaws"]
_FIND_HELD_TIMERS = _SQL["find_held_timers"]
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


def hold_frozen(connection: Conn, timers: Sequence[LockedTimer]) -> list[UUID]:
    """Hold locked timers that came due under a freeze; return their jobs.

    A timer whose freeze was thawed meanwhile is left as it is: it stays due.
    """
    connection.execute(_LOCK_FREEZES)
    columns: dict[str, object] = {
        "job_ids": uuids(timer.job_id for timer in timers),
        "versions": integers(timer.version for timer in timers),
    }
    named = set(read_ids(connection, _FIND_FROZEN_TIMERS, columns))
    held = [timer for timer in timers if timer.job_id in named]
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
    return [timer.job_id for timer in held]


class Thaws:
    """Releases the timers of thawed freezes, and completes freezes by jobs."""

    def __init__(self, session: Session, installation: Installation) -> None:
        self._session, self._installation = session, installation
        self._next_poll = self._next_settle = 0.0
        self._settle_seconds = _POLL_SECONDS
        self._pass: list[int] = []  # the freezes that were thawed when the current pass over the held timers began
        self._after, self._found = _NOWHERE, 0

    def step(self) -> bool:
        """Release up to `_RELEASED` timers; return True if more can be done at once.

        Raises:
            Unavailable: The database does not answer.
        """
        if monotonic_seconds() < self._next_poll:
            return False
        with self._session.transaction() as connection:
            rows = cast("list[tuple[int, bool]]", connection.execute(_FIND_THAWS, binary=True).fetchall())
        self._settle([number for number, thawed in rows if not thawed])
        thawed = [number for number, thawed in rows if thawed]
        more = bool(thawed) and self._release(thawed)
        self._next_poll = 0.0 if more else monotonic_seconds() + _POLL_SECONDS
        return more

    def _release(self, thawed: list[int]) -> bool:
        """Release the next timers of a pass over the held ones; return True if more can be done at once.

        A pass that finds nothing to release, of timers that other transactions hold too, ends the freezes that were
        thawed when it began.
        """
        if not self._pass:
            self._pass, self._after, self._found = thawed, _NOWHERE, 0
        with self._session.transaction() as connection:
            columns: dict[str, object] = {"after": self._after, "limit": _SCANNED}
            found = connection.execute(_FIND_HELD_TIMERS, columns, binary=True).fetchall()
        rows = cast("list[tuple[UUID, bool]]", found)
        chosen = [job for job, released in rows if released][:_RELEASED]
        if chosen:
            released = self._release_batch(chosen)
            self._found += len(chosen)
            if released:
                _LOG.info("released %d timers of thawed freezes", released)
        if len(chosen) == _RELEASED:
            self._after = chosen[-1]
            return True
        if len(rows) == _SCANNED:
            self._after = rows[-1][0]
            return True
        ended, self._pass = self._pass, []
        if self._found == 0:
            with self._session.transaction() as connection:
                connection.execute(_DROP_THAWED, {"ids": ended})
            _LOG.info("%d freezes are thawed, and their timers released", len(ended))
        return self._found > 0

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
                held = _lock(connection, job_ids)
                move_timers(connection, [(timer.job_id, _undecided(timer)) for timer in held])
            return len(held)

    def _settle(self, freezes: list[int]) -> None:
        """Add the jobs of transactions that did not see these freezes, once all such transactions have ended."""
        if not freezes:
            self._settle_seconds = _POLL_SECONDS
            return
        if monotonic_seconds() < self._next_settle:
            return
        with self._session.transaction() as connection:
            connection.execute(_BEGIN_SETTLING, {"ids": freezes})
        with self._session.transaction() as connection:
            rows = cast("list[tuple[int]]", connection.execute(_FIND_SETTLED, {"ids": freezes}, binary=True).fetchall())
            connection.execute(_RESOLVE_FREEZES, {"ids": freezes})
            connection.execute(_SETTLE_FREEZES, {"ids": [number for (number,) in rows]})
        self._next_settle = monotonic_seconds() + self._settle_seconds
        self._settle_seconds = min(self._settle_seconds * 2, _MAX_SETTLE_SECONDS)


def _release(connection: Conn, installation: Installation, job_ids: Sequence[UUID]) -> list[Decision]:
    timers = _lock(connection, job_ids)
    inputs, waiting = read_decision_inputs(connection, timers), find_open_fixed_delay_runs(connection, timers)
    now = read_now(connection)

    def decide_by(timer: LockedTimer) -> Decision:
        try:
            state = timer_state(timer, inputs.day_sets, inputs.of(timer))
        except ScheduleRefused:
            return _undecided(timer)  # firing quarantines the job
        decision = on_resume(state, now=now, reason=SkipReason.FROZEN)
        return hold_for_run(decision) if timer.job_id in waiting else decision

    return advance_timers(connection, installation, timers, decide_by, now=now)


def _undecided(timer: LockedTimer) -> Decision:
    return Decision(next_at=timer.scheduled_at, overridden=timer.overridden)


def _lock(connection: Conn, job_ids: Sequence[UUID]) -> list[LockedTimer]:
    with connection.cursor(row_factory=class_row(LockedTimer), binary=True) as cursor:
        return cursor.execute(_LOCK_HELD_TIMERS, {"job_ids": uuids(job_ids)}).fetchall()
