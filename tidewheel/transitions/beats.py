"""`save_beats`: what attempts under way tell of themselves: progress, and the checkpoint for the next attempt.

The rows are `run_inputs`; nobody else writes these columns. What an older attempt says after a newer one has spoken
changes nothing, so that no lock is needed for that; who has to know that the run stands still meanwhile locks it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from tidewheel.arrays import integers, uuids
from tidewheel.db import Conn
from tidewheel.ids import run_instant
from tidewheel.partitions import day_of, ensure_days
from tidewheel.runs import RunState
from tidewheel.sql import Statements

_SAVE_BEATS = Statements("tidewheel.transitions")["save_beats"]

# What has begun and is not over: a run that is being cancelled may still say how far it came.
BEATING = [RunState.RUNNING, RunState.WAITING, RunState.CANCELLING]


@dataclass(frozen=True, slots=True)
class Beat:
    """A sign of life.

    Args:
        run_id: The run.
        attempt: The fence.
        executor_id: In whose hands it is; None where the attempt's task token speaks for it.
        progress: JSON text; None leaves what this attempt said before.
        checkpoint: What the next attempt receives; None leaves what is there.
    """

    run_id: UUID
    attempt: int
    executor_id: UUID | None = None
    progress: bytes | None = None
    checkpoint: bytes | None = None


def save_beats(connection: Conn, beats: Sequence[Beat]) -> set[UUID]:
    """Store what attempts say of themselves, in the caller's transaction.

    Args:
        connection: Inside a transaction.
        beats: At most one per run: the newest, with the last progress and the last checkpoint.

    Returns:
        The runs of which it was stored. The others are over, or another attempt's.
    """
    if not beats:
        return set()
    # Made with the run already, unless somebody dropped it while the run was open for weeks.
    ensure_days(connection, {day_of(run_instant(beat.run_id)) for beat in beats})
    columns: dict[str, object] = {
        "run_ids": uuids(beat.run_id for beat in beats),
        "attempts": integers(beat.attempt for beat in beats),
        "executor_ids": uuids(beat.executor_id for beat in beats),
        "progress": [beat.progress for beat in beats],
        "checkpoints": [beat.checkpoint for beat in beats],
        "states": BEATING,
    }
    rows = connection.execute(_SAVE_BEATS, columns, binary=True).fetchall()
    return {run_id for (run_id,) in rows if isinstance(run_id, UUID)}
