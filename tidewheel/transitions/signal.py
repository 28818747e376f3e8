"""Asking a running attempt to stop: the run can only become cancelled from then on, and its executor is told."""

from uuid import UUID

from tidewheel.db import Conn
from tidewheel.runs import Move, sources, target
from tidewheel.sql import Statements

_SQL = Statements("tidewheel.transitions")
_ASK_TO_CANCEL = _SQL["ask_to_cancel"]
_ADD_SIGNAL = _SQL["add_signal"]


def ask_to_cancel(connection: Conn, run_id: UUID, tenant: str) -> bool:
    """Ask a running run to stop, in the caller's transaction; returns whether it ran."""
    move = Move.ASK_TO_CANCEL
    columns = {"run_id": run_id, "sources": sources(move), "target": target(move)}
    row = connection.execute(_ASK_TO_CANCEL, columns, binary=True).fetchone()
    if row is None:
        return False
    attempt, executor_id = row
    signal = {"run_id": run_id, "attempt": attempt, "tenant": tenant, "executor_id": executor_id}
    connection.execute(_ADD_SIGNAL, signal)
    return True
