"""`run.cancel`: works in every state, is idempotent, and answers with the state it found.

What does not run ends at once; a running attempt is told to stop and can only become cancelled from then on. A run that
somebody has in hand for longer than a moment, as a user's own transaction may, is cancelled by the scheduler as soon as
it is let go of, unless it is over then: the wish is written down.
"""

from collections.abc import Sequence
from typing import cast
from uuid import UUID

from tidewheel.db import Conn
from tidewheel.errors import UnknownRun
from tidewheel.intake.busy import still_open, wait_for_runs
from tidewheel.intake.incoming import Incoming, accepted, rejected
from tidewheel.jobs.requests import RunCancel
from tidewheel.runs import MOVES, Move, RunState
from tidewheel.schemas.records import Reply
from tidewheel.sql import Statements
from tidewheel.transitions.end import RunEnd, end_runs
from tidewheel.transitions.installation import Installation
from tidewheel.transitions.signal import ask_to_cancel

_SQL = Statements("tidewheel.intake")
_LOCK_RUN = _SQL["lock_run"]
_READ_RUN = _SQL["read_run"]
_WANT_CANCEL = _SQL["want_cancel"]

_ASKED = "asked"  # the reason where none is given


def apply_cancels(connection: Conn, installation: Installation, batch: Sequence[Incoming]) -> list[Reply]:
    """Cancel runs, in the caller's transaction; an answer for each request, in their order."""
    cancels = _Cancels(connection, installation)
    return [cancels.apply(incoming) for incoming in batch]


class _Cancels:
    """The cancels of one batch; where one has waited in vain, the others do not wait."""

    def __init__(self, connection: Conn, installation: Installation) -> None:
        self._connection, self._installation = connection, installation
        self._patient = True

    def apply(self, incoming: Incoming) -> Reply:
        request = incoming.request
        assert isinstance(request, RunCancel)  # noqa: S101 - by accept's table
        columns: dict[str, object] = {"run_id": UUID(request.run_id), "tenant": incoming.tenant}
        known = self._connection.execute(_READ_RUN, columns, binary=True).fetchone()
        if known is None:
            return rejected(incoming, UnknownRun(request.run_id))
        job_id, version, final = known
        # The open row tells; without one the run is over, and job_runs has been told while we waited for the lock.
        state = self._cancel(columns, request.reason or _ASKED)
        if state is None:
            again = self._connection.execute(_READ_RUN, columns, binary=True).fetchone()
            state = RunState(str(again[2] if again else final))
        return accepted(
            incoming, job_id=str(job_id), job_version=version, run_id=request.run_id, run_status=state.value
        )

    def _cancel(self, columns: dict[str, object], reason: str) -> RunState | None:
        """Cancel a run, or have it cancelled; returns the state it was found in, None where it is over."""
        run_id = cast("UUID", columns["run_id"])
        found = self._connection.execute(_LOCK_RUN, columns, binary=True).fetchone()
        if found is None and still_open(self._connection, [run_id]):
            self._patient = self._patient and wait_for_runs(self._connection, [run_id])
            found = self._connection.execute(_LOCK_RUN, columns, binary=True).fetchone()
        if found is None:
            return self._want(columns, reason)
        state = RunState(str(found[0]))
        attempt, executor_id = cast("tuple[int, UUID | None]", found[1:])
        if state in MOVES[Move.ASK_TO_CANCEL].sources:
            ask_to_cancel(self._connection, [run_id])
        elif state is not RunState.CANCELLING:
            end = RunEnd(run_id, attempt, RunState.CANCELLED, executor_id, reason=reason)
            end_runs(self._connection, self._installation, [end])
        return state

    def _want(self, columns: dict[str, object], reason: str) -> RunState | None:
        """Write down that a run is to be cancelled that is in somebody's hands; not where it is over."""
        run_id = cast("UUID", columns["run_id"])
        left = still_open(self._connection, [run_id]).get(run_id)
        if left is None:
            return None
        self._connection.execute(_WANT_CANCEL, {**columns, "reason": reason})
        return RunState(left)
