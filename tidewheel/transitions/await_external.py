"""Let runs wait for an external completion: of a 202 response, or of a reply.

A waiting run keeps its executor_id, as a part of the fence. No lease guards it, only its deadlines, which the scheduler
enforces. A message with its task token ends it or requeues it.
"""

from collections.abc import Sequence, Set
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from tidewheel.postgres.pg_binary import integers, uuids
from tidewheel.postgres.session import Conn, read_ids
from tidewheel.postgres.statements import Statements
from tidewheel.runs import Move, RunState, sources, target
from tidewheel.transitions.finish import finish_runs
from tidewheel.transitions.finished import Ended, RunEnd
from tidewheel.transitions.installation import Installation
from tidewheel.transitions.places import FreedPlace

_SQL = Statements("tidewheel.transitions")
_WAIT_RUNS = _SQL["wait_runs"]
_FIND_BUSY_ATTEMPTS = _SQL["find_busy_attempts"]


@dataclass(frozen=True, slots=True)
class Wait:
    """An attempt that an external system completes."""

    run_id: UUID
    attempt: int
    executor_id: UUID
    timeout: timedelta
    heartbeat: timedelta | None = None


@dataclass(frozen=True, slots=True)
class Waiting:
    """The runs that wait now, and the busy ones: another transaction holds their row, so retry them."""

    waits: Set[UUID] = frozenset()
    busy: Set[UUID] = frozenset()


def wait_runs(connection: Conn, waits: Sequence[Wait]) -> Waiting:
    """Move runs to waiting, in the caller's transaction.

    A run that has ended, because its completion came first, stays as it is. One that is being cancelled is left to
    `end_cancelled_waits`.
    """
    if not waits:
        return Waiting()
    columns: dict[str, object] = {
        "run_ids": uuids(wait.run_id for wait in waits),
        "attempts": integers(wait.attempt for wait in waits),
        "executor_ids": uuids(wait.executor_id for wait in waits),
        "timeouts": [wait.timeout for wait in waits],
        "heartbeats": [wait.heartbeat for wait in waits],
        "sources": sources(Move.WAIT),
        "target": target(Move.WAIT),
    }
    moved = read_ids(connection, _WAIT_RUNS, columns)
    return Waiting(moved, _find(connection, [wait for wait in waits if wait.run_id not in moved], sources(Move.WAIT)))


def end_cancelled_waits(
    connection: Conn, installation: Installation, waits: Sequence[Wait], *, freed_keys: list[FreedPlace] | None = None
) -> Ended:
    """End runs with a cancel request that came before they waited: no other process would end them.

    `freed_keys` is that of `finish_runs`.
    """
    cancelled = _find(connection, waits, [RunState.CANCELLING])
    ends = [
        RunEnd(wait.run_id, wait.attempt, RunState.CANCELLED, wait.executor_id)
        for wait in waits
        if wait.run_id in cancelled
    ]
    return finish_runs(connection, installation, ends, freed_keys=freed_keys)


def _find(connection: Conn, waits: Sequence[Wait], states: Sequence[str]) -> set[UUID]:
    """Return the runs whose attempt is still the current one, in one of these states."""
    if not waits:
        return set()
    columns: dict[str, object] = {
        "run_ids": uuids(wait.run_id for wait in waits),
        "attempts": integers(wait.attempt for wait in waits),
        "executor_ids": uuids(wait.executor_id for wait in waits),
        "sources": list(states),
    }
    return read_ids(connection, _FIND_BUSY_ATTEMPTS, columns)
