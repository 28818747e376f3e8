"""`run.cancel`: works in every state, is idempotent, and answers with the state it found.

What does not run ends at once; a running attempt is told to stop and can only become cancelled from then on.
"""

from collections.abc import Sequence
from typing import cast
from uuid import UUID

from tidewheel.db import Conn
from tidewheel.errors import UnknownRun
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


def apply_cancels(connection: Conn, installation: Installation, batch: Sequence[Incoming]) -> list[Reply]:
    """Cancel runs, in the caller's transaction; an answer for each request, in their order."""
    return [_cancel(connection, installation, incoming) for incoming in batch]


def _cancel(connection: Conn, installation: Installation, incoming: Incoming) -> Reply:
    request = incoming.request
    assert isinstance(request, RunCancel)  # noqa: S101 - by accept's table
    run_id = UUID(request.run_id)
    columns = {"run_id": run_id, "tenant": incoming.tenant}
    known = connection.execute(_READ_RUN, columns, binary=True).fetchone()
    if known is None:
        return rejected(incoming, UnknownRun(request.run_id))
    job_id, version, final = known
    found = connection.execute(_LOCK_RUN, columns, binary=True).fetchone()
    # The open row tells; without one the run is over, and job_runs has been told while we waited for the lock.
    state = RunState(str(found[0])) if found else RunState(str(final))
    if found:
        attempt, executor_id = cast("tuple[int, UUID | None]", found[1:])
        if state in MOVES[Move.ASK_TO_CANCEL].sources:
            ask_to_cancel(connection, [run_id])
        elif state is not RunState.CANCELLING:
            end = RunEnd(run_id, attempt, RunState.CANCELLED, executor_id, reason=request.reason or "asked")
            end_runs(connection, installation, [end])
    else:
        again = connection.execute(_READ_RUN, columns, binary=True).fetchone()
        state = RunState(str(again[2])) if again else state
    return accepted(incoming, job_id=str(job_id), job_version=version, run_id=request.run_id, run_status=state.value)
