"""Signal attempts to stop, and count the open runs that a cancellation by filter matches.

The end of the run deletes its `cancel` signal. A `terminate` signal is written after its run has ended: the executor
that has stopped the attempt deletes it. If that executor is gone, the scheduler deletes it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple, cast
from uuid import UUID

from psycopg.rows import class_row

from tidewheel.postgres.pg_binary import integers, uuids
from tidewheel.postgres.session import Conn, read_ids, read_rows
from tidewheel.postgres.statements import Statements
from tidewheel.runs import OPEN, Move, RunState, sources, target

_SQL = Statements("tidewheel.transitions")

_NO_REASONS: Mapping[UUID, str] = MappingProxyType({})
_STATES = sorted(OPEN - {RunState.CANCELLING})

LOOKED_AT = 250_000
"""Open runs of a bounded count: about a tenth of a second."""


class Signal(StrEnum):
    """The kind of a signal."""

    CANCEL = "cancel"  # stop, within the grace period
    TERMINATE = "terminate"  # the run is over: stop now


@dataclass(frozen=True, slots=True)
class RunningAttempt:
    """An attempt that an executor owns."""

    run_id: UUID
    attempt: int
    tenant: str
    executor_id: UUID


def start_cancelling(connection: Conn, attempts: Sequence[tuple[UUID, int]], executor_id: UUID) -> set[UUID]:
    """Move an executor's running attempts to cancelling, because their handlers requested it.

    Returns:
        Runs whose row another transaction holds. Retry them: a running run cannot become cancelled directly.
    """
    if not attempts:
        return set()
    move = Move.REQUEST_CANCEL
    columns: dict[str, object] = {
        "run_ids": uuids(run_id for run_id, _ in attempts),
        "attempts": integers(attempt for _, attempt in attempts),
        "executor_id": executor_id,
        "executor_ids": uuids(executor_id for _ in attempts),
        "sources": sources(move),
        "target": target(move),
    }
    connection.execute(_SQL["start_cancelling"], columns)
    return read_ids(connection, _SQL["find_busy_attempts"], columns)


def request_cancel(connection: Conn, reasons: Mapping[UUID, str]) -> set[UUID]:
    """Request the cancellation of runs that the caller has locked; return those that an executor runs."""
    move = Move.REQUEST_CANCEL
    columns = {"run_ids": uuids(reasons), "sources": sources(move), "target": target(move)}
    running = read_rows(connection, class_row(RunningAttempt), _SQL["request_cancel"], columns)
    add_signals(connection, Signal.CANCEL, running, reasons)
    return {each.run_id for each in running}


def add_signals(
    connection: Conn, kind: Signal, attempts: Sequence[RunningAttempt], reasons: Mapping[UUID, str] = _NO_REASONS
) -> None:
    """Insert signals for the executors of these attempts; a repeat changes nothing."""
    if not attempts:
        return
    columns: dict[str, object] = {
        "kind": kind,
        "run_ids": uuids(each.run_id for each in attempts),
        "attempts": integers(each.attempt for each in attempts),
        "tenants": [each.tenant for each in attempts],
        "executor_ids": uuids(each.executor_id for each in attempts),
        "reasons": [reasons.get(each.run_id) for each in attempts],
    }
    connection.execute(_SQL["add_signals"], columns)


class Matches(NamedTuple):
    """The number of open runs that a cancellation would end; `at_least` is true if there may be more."""

    runs: int
    unstarted: int
    at_least: bool


def count_matches(connection: Conn, columns: Mapping[str, object], look: int | None = LOOKED_AT) -> Matches:
    """Return how many of the first `look` open runs a cancellation would end."""
    row = connection.execute(
        _SQL["count_cancel_matches"], {**columns, "states": _STATES, "look": look}, binary=True
    ).fetchone()
    runs, unstarted, seen = cast("tuple[int, int, int]", row)
    return Matches(runs, unstarted, look is not None and seen >= look)
