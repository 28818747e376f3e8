"""Apply cancels by id that met a run locked by another transaction, as soon as it is free.

A user's own transaction may hold a run that it completes for as long as it likes. When that transaction ends the run
has ended, or it goes on and is cancelled now. A pending cancel stays until one of the two has happened. A crash at any
line leaves it pending.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from psycopg.rows import class_row

from tidewheel.errors import Unavailable
from tidewheel.postgres.pg_binary import uuids
from tidewheel.postgres.session import Session, read_ids
from tidewheel.postgres.statements import Statements
from tidewheel.runs import MOVES, Cause, Move, RunState, sources
from tidewheel.scheduler.bulk_cancel import CancelResult
from tidewheel.scheduler.set_aside import SetAside
from tidewheel.transitions.cancel_signals import request_cancel
from tidewheel.transitions.finish import finish_runs
from tidewheel.transitions.finished import RunEnd
from tidewheel.transitions.installation import Installation

_LOG = logging.getLogger("tidewheel.scheduler")

_SQL = Statements("tidewheel.scheduler")
_FIND_PENDING_CANCELS = _SQL["find_pending_cancels"]
_LOCK_CANCELLED_CHAINS = _SQL["lock_cancelled_chains"]
_LOCK_CANCELLED = _SQL["lock_cancelled"]
_DELETE_PENDING_CANCELS = _SQL["delete_pending_cancels"]

_TO_SIGNAL = MOVES[Move.REQUEST_CANCEL].sources
_MAX_APPLIED = 500


@dataclass(frozen=True, slots=True)
class PendingCancel:
    """A pending cancel, with its run if that is open."""

    id: int
    run_id: UUID
    reason: str
    job_id: UUID | None
    state: str | None
    cause: str | None
    attempt: int | None
    executor_id: UUID | None


class PendingCancels:
    """Applies pending cancels, `_MAX_APPLIED` at a time."""

    def __init__(self, session: Session, installation: Installation) -> None:
        self._session, self._installation = session, installation
        self._after = 0
        self._failed = SetAside[int]()

    def step(self) -> CancelResult:
        """Apply the cancels that can be applied. Those whose run another transaction holds stay pending."""
        with (
            self._session.transaction() as connection,
            connection.cursor(row_factory=class_row(PendingCancel), binary=True) as cursor,
        ):
            found = cursor.execute(_FIND_PENDING_CANCELS, {"after": self._after, "limit": _MAX_APPLIED}).fetchall()
        # The next step begins behind these, so that runs held for long do not hide the rest.
        self._after = found[-1].id if len(found) == _MAX_APPLIED else 0
        left = self._failed.current()
        done = self._apply_or_split([one for one in found if one.id not in left])
        done.more = self._after > 0
        return done

    def _apply_or_split(self, cancels: Sequence[PendingCancel]) -> CancelResult:
        try:
            return self._apply(cancels)
        except Unavailable:
            raise
        except Exception as error:  # noqa: BLE001 - applying one at a time finds the one that fails
            if len(cancels) == 1:
                run_id = cancels[0].run_id
                _LOG.exception(
                    "the scheduler cannot cancel run %s; the scheduler tries it again in a minute",
                    run_id,
                    extra={"run_id": str(run_id)},
                )
                self._failed.add(cancels[0].id)
                return CancelResult()
            _LOG.warning("cancelling %d runs failed (%s); the scheduler cancels them one by one", len(cancels), error)
            each = [self._apply_or_split([one]) for one in cancels]
            return CancelResult(sum(one.ended for one in each), sum(one.signalled for one in each))

    def _apply(self, cancels: Sequence[PendingCancel]) -> CancelResult:
        if not cancels:
            return CancelResult()
        runs = {one.run_id: one for one in cancels}
        running = [run_id for run_id, one in runs.items() if _state(one) in _TO_SIGNAL]
        over = {run_id for run_id, one in runs.items() if _state(one) in (None, RunState.CANCELLING)}
        with self._session.transaction() as connection:
            chained = {one.job_id for one in runs.values() if one.job_id and one.cause == Cause.TIMER}
            connection.execute(_LOCK_CANCELLED_CHAINS, {"job_ids": uuids(chained)})
            columns: dict[str, object] = {"run_ids": uuids(running), "states": sources(Move.REQUEST_CANCEL)}
            locked = read_ids(connection, _LOCK_CANCELLED, columns)
            signalled = request_cancel(connection, {run: runs[run].reason for run in locked}) if locked else set[UUID]()
            ends = [_end(one) for run_id, one in runs.items() if run_id not in over and run_id not in running]
            ended = set(finish_runs(connection, self._installation, ends).states)
            done = [one.id for one in cancels if one.run_id in over | signalled | ended]
            connection.execute(_DELETE_PENDING_CANCELS, {"ids": done})
        return CancelResult(len(ended), len(signalled))


def _state(one: PendingCancel) -> RunState | None:
    return RunState(one.state) if one.state is not None else None


def _end(one: PendingCancel) -> RunEnd:
    return RunEnd(one.run_id, one.attempt or 0, RunState.CANCELLED, one.executor_id, reason=one.reason)
