"""`wait_runs`: attempts whose end is told from outside: a 202, an awaited reply.

A waiting run is in nobody's hands: no lease guards it, only its deadlines, which the scheduler keeps. It ends, or goes
back for another attempt, by what arrives with its task token.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from tidewheel.postgres.pg_arrays import integers, uuids
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements
from tidewheel.runs import Move, RunState, sources, target
from tidewheel.transitions.finish import finish_runs
from tidewheel.transitions.finished import RunEnd
from tidewheel.transitions.installation import Installation

_SQL = Statements("tidewheel.transitions")
_WAIT_RUNS = _SQL["wait_runs"]
_FIND_BUSY_ATTEMPTS = _SQL["find_busy_attempts"]


@dataclass(frozen=True, slots=True)
class Wait:
    """An attempt that goes on elsewhere.

    Args:
        run_id: The run.
        attempt: The fence.
        executor_id: In whose hands it is.
        timeout: How long the answer may take.
        heartbeat: How long it may go without a heartbeat from outside; None where it needs none.
    """

    run_id: UUID
    attempt: int
    executor_id: UUID
    timeout: timedelta
    heartbeat: timedelta | None = None


def wait_runs(connection: Conn, waits: Sequence[Wait]) -> set[UUID]:
    """Let runs wait for an answer from outside, in the caller's transaction.

    Returns:
        Runs whose row was locked by somebody: to be tried again. What is over already, because the answer came first,
        stays as it is; what is being cancelled is left to `end_cancelled_waits`.
    """
    if not waits:
        return set()
    columns: dict[str, object] = {
        "run_ids": uuids(wait.run_id for wait in waits),
        "attempts": integers(wait.attempt for wait in waits),
        "executor_ids": uuids(wait.executor_id for wait in waits),
        "timeouts": [wait.timeout for wait in waits],
        "heartbeats": [wait.heartbeat for wait in waits],
        "sources": sources(Move.WAIT),
        "target": target(Move.WAIT),
    }
    moved = {run_id for (run_id,) in connection.execute(_WAIT_RUNS, columns, binary=True)}
    return _find(connection, [wait for wait in waits if wait.run_id not in moved], sources(Move.WAIT))


def end_cancelled_waits(connection: Conn, installation: Installation, waits: Sequence[Wait]) -> set[UUID]:
    """End those that were asked to stop before they waited: their executor has done with them, and nobody else would.

    Returns:
        Runs whose row was locked by somebody: to be tried again.
    """
    cancelled = _find(connection, waits, [RunState.CANCELLING])
    ends = [
        RunEnd(wait.run_id, wait.attempt, RunState.CANCELLED, wait.executor_id)
        for wait in waits
        if wait.run_id in cancelled
    ]
    return finish_runs(connection, installation, ends).busy


def _find(connection: Conn, waits: Sequence[Wait], states: Sequence[str]) -> set[UUID]:
    """Which of these attempts are still under way, in one of these states."""
    if not waits:
        return set()
    columns: dict[str, object] = {
        "run_ids": uuids(wait.run_id for wait in waits),
        "attempts": integers(wait.attempt for wait in waits),
        "executor_ids": uuids(wait.executor_id for wait in waits),
        "sources": list(states),
    }
    found = connection.execute(_FIND_BUSY_ATTEMPTS, columns, binary=True).fetchall()
    return {run_id for (run_id,) in found if isinstance(run_id, UUID)}
