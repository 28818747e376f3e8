"""Ends the runs that a cancellation by filter names, some at a time; claims refuse them from its first moment on."""

from typing import cast
from uuid import UUID

from tidewheel.db import Session
from tidewheel.runs import RunState
from tidewheel.sql import Statements
from tidewheel.transitions.end import RunEnd, end_runs
from tidewheel.transitions.installation import Installation

_SQL = Statements("tidewheel.scheduler")
_OPEN_CANCELLATION = _SQL["open_cancellation"]
_LOCK_CANCELLED_RUNS = _SQL["lock_cancelled_runs"]
_FINISH_CANCELLATION = _SQL["finish_cancellation"]

_STATES = [RunState.QUEUED, RunState.BUFFERED]


def cancel_some(session: Session, installation: Installation) -> int:
    """End up to a thousand runs of the oldest cancellation that is not finished.

    Returns:
        How many were ended.

    Raises:
        Unavailable: The database does not answer.
    """
    with session.transaction() as connection:
        found = connection.execute(_OPEN_CANCELLATION, binary=True).fetchone()
        if found is None:
            return 0
        number, job_id, made_before, made_by = found
        columns = {"job_id": job_id, "made_before": made_before, "states": _STATES, "id": number}
        rows = connection.execute(_LOCK_CANCELLED_RUNS, columns, binary=True).fetchall()
        ends = [
            RunEnd(run_id=cast("UUID", run), attempt=0, state=RunState.CANCELLED, reason=str(made_by))
            for (run,) in rows
        ]
        ended = len(end_runs(connection, installation, ends).states)
        if not rows:
            connection.execute(_FINISH_CANCELLATION, columns)
    return ended
