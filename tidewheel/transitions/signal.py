"""Asking a running attempt to stop: the run can only become cancelled from then on, and its executor is told."""

from collections.abc import Sequence
from uuid import UUID

from tidewheel.db import Conn
from tidewheel.runs import Move, sources, target
from tidewheel.sql import Statements

_SQL = Statements("tidewheel.transitions")
_ASK_TO_CANCEL = _SQL["ask_to_cancel"]
_START_CANCELLING = _SQL["start_cancelling"]
_ADD_SIGNAL = _SQL["add_signal"]


def start_cancelling(connection: Conn, attempts: Sequence[tuple[UUID, int]], executor_id: UUID) -> None:
    """Let an executor's own running attempts be cancelling, for those whose handlers asked for it."""
    move = Move.ASK_TO_CANCEL
    columns = {
        "run_ids": [run_id for run_id, _ in attempts],
        "attempts": [attempt for _, attempt in attempts],
        "executor_id": executor_id,
        "sources": sources(move),
        "target": target(move),
    }
    connection.execute(_START_CANCELLING, columns)


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
