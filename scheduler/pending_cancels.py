"""Carries out cancels by id that met a run in somebody's hands, as soon as it is free.

A user's own transaction may hold a run that it completes for as long as it likes. Once it has ended the run is over, or
goes on and is cancelled now. A wish stays until the one or the other is so; a crash at any line leaves it.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast
from uuid import UUID

from psycopg.rows import class_row

from tidewheel.errors import Unavailable
from tidewheel.postgres.pg_arrays import uuids
from tidewheel.postgres.session import Session
from tidewheel.postgres.statements import Statements
from tidewheel.runs import MOVES, Cause, Move, RunState, sources
from tidewheel.scheduler.bulk_cancel import Cancelled
from tidewheel.transitions.cancel_signals import request_cancel
from tidewheel.transitions.finish import finish_runs
from tidewheel.transitions.finished import RunEnd
from tidewheel.transitions.installation import Installation

_LOG = logging.getLogger("tidewheel.scheduler")

_SQL = Statements("tidewheel.scheduler")
_FIND_WANTED_CANCELS = _SQL["find_wanted_cancels"]
_LOCK_CANCELLED_CHAINS = _SQL["lock_cancelled_chains"]
_LOCK_CANCELLED = _SQL["lock_cancelled"]
_FORGET_WANTED_CANCELS = _SQL["forget_wanted_cancels"]

_TO_ASK = MOVES[Move.REQUEST_CANCEL].sources
_MOST = 500


@dataclass(frozen=True, slots=True)
class Wanted:
    """A wish, with its run where that is open."""

    id: int
    run_id: UUID
    reason: str
    job_id: UUID | None
    state: str | None
    cause: str | None
    attempt: int | None
    executor_id: UUID | None


class WantedCancels:
    """Looks at all that are wanted, some at a time."""

    def __init__(self, session: Session, installation: Installation) -> None:
        self._session, self._installation = session, installation
        self._after = 0
        self._left: set[int] = set()

    def step(self) -> Cancelled:
        """Carry out what can be; what is still in somebody's hands is left for a later look.

        Raises:
            Unavailable: The database does not answer.
        """
        with (
            self._session.transaction() as connection,
            connection.cursor(row_factory=class_row(Wanted), binary=True) as cursor,
        ):
            found = cursor.execute(_FIND_WANTED_CANCELS, {"after": self._after, "most": _MOST}).fetchall()
        # Those that are held for long do not hide the others: the next look begins behind them.
        self._after = found[-1].id if len(found) == _MOST else 0
        done = self._carry_out_patiently([one for one in found if one.id not in self._left])
        done.more = self._after > 0
        return done

    def _carry_out_patiently(self, wanted: Sequence[Wanted]) -> Cancelled:
        try:
            return self._carry_out(wanted)
        except Unavailable:
            raise
        except Exception as error:  # noqa: BLE001 - one by one tells which it is, and the others must not wait for it
            if len(wanted) == 1:
                _LOG.exception("a run that is to be cancelled stays open", extra={"run_id": str(wanted[0].run_id)})
                self._left.add(wanted[0].id)
                return Cancelled()
            _LOG.warning("cancelling %d runs failed (%s); taking them one by one", len(wanted), error)
            each = [self._carry_out_patiently([one]) for one in wanted]
            return Cancelled(sum(one.ended for one in each), sum(one.asked for one in each))

    def _carry_out(self, wanted: Sequence[Wanted]) -> Cancelled:
        if not wanted:
            return Cancelled()
        runs = {one.run_id: one for one in wanted}
        running = [run_id for run_id, one in runs.items() if _state(one) in _TO_ASK]
        over = {run_id for run_id, one in runs.items() if _state(one) in (None, RunState.CANCELLING)}
        with self._session.transaction() as connection:
            chained = {one.job_id for one in runs.values() if one.job_id and one.cause == Cause.TIMER}
            connection.execute(_LOCK_CANCELLED_CHAINS, {"job_ids": uuids(chained)})
            columns: dict[str, object] = {"run_ids": uuids(running), "states": sources(Move.REQUEST_CANCEL)}
            rows = connection.execute(_LOCK_CANCELLED, columns, binary=True).fetchall()
            asked = request_cancel(connection, [cast("UUID", run) for (run,) in rows]) if rows else set[UUID]()
            ends = [_end(one) for run_id, one in runs.items() if run_id not in over and run_id not in running]
            ended = set(finish_runs(connection, self._installation, ends).states)
            settled = [one.id for one in wanted if one.run_id in over | asked | ended]
            connection.execute(_FORGET_WANTED_CANCELS, {"ids": settled})
        return Cancelled(len(ended), len(asked))


def _state(one: Wanted) -> RunState | None:
    return RunState(one.state) if one.state is not None else None


def _end(one: Wanted) -> RunEnd:
    return RunEnd(one.run_id, one.attempt or 0, RunState.CANCELLED, one.executor_id, reason=one.reason)
