"""`flush_outputs`: what attempts have written so far, while they run.

The end of an attempt writes its output too, and must never wait for a flush (ADR 0008): a flush holds the open run's
row, shared, for the length of one statement, and passes over what somebody else has; an end that finds the row taken
comes again. So there is no flush of an attempt under way once its end holds the row, and none after it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from tidewheel.arrays import integers, uuids
from tidewheel.db import Conn
from tidewheel.ids import run_instant
from tidewheel.partitions import day_of, ensure_days
from tidewheel.runs import IN_HAND
from tidewheel.sql import Statements

_FLUSH_OUTPUTS = Statements("tidewheel.transitions")["flush_outputs"]


@dataclass(frozen=True, slots=True)
class Written:
    """What an attempt has written so far.

    Args:
        run_id: The run.
        attempt: The fence.
        output: The last of it, at most 64 KiB.
        output_bytes: How much it ever wrote.
    """

    run_id: UUID
    attempt: int
    output: bytes
    output_bytes: int


def flush_outputs(connection: Conn, executor_id: UUID, outputs: Sequence[Written]) -> set[tuple[UUID, int]]:
    """Store what an executor's attempts have written so far, in a transaction that does nothing else.

    Returns:
        The attempts whose output is stored. The others are over, another executor's, or in somebody's hands just now.
    """
    if not outputs:
        return set()
    # Made with the run already, unless somebody dropped it while the run was open for weeks.
    ensure_days(connection, {day_of(run_instant(output.run_id)) for output in outputs})
    columns: dict[str, object] = {
        "run_ids": uuids(output.run_id for output in outputs),
        "attempts": integers(output.attempt for output in outputs),
        "outputs": [output.output for output in outputs],
        "output_bytes": [output.output_bytes for output in outputs],
        "executor_id": executor_id,
        "states": IN_HAND,
    }
    stored: set[tuple[UUID, int]] = set()
    for run_id, attempt in connection.execute(_FLUSH_OUTPUTS, columns, binary=True):
        assert isinstance(run_id, UUID)  # noqa: S101 - the column's type
        assert isinstance(attempt, int)  # noqa: S101 - the column's type
        stored.add((run_id, attempt))
    return stored
