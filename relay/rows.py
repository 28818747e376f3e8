"""Due rows between two places of the outbox: what the reader and the walker both look for."""

from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, cast

from psycopg import capabilities

from tidewheel import arrays
from tidewheel.db import Conn
from tidewheel.relay.batch import VALUE, DueRow, Ids, Pair, Place, ids
from tidewheel.sql import Statements

_READ_OUTBOX = Statements("tidewheel.relay")["read_outbox"]

BEGINNING: Final[Place] = (datetime(1970, 1, 1, tzinfo=UTC), 0)
_END: Final[Place] = (datetime(9999, 12, 31, tzinfo=UTC), 0)

# The planner takes a small table as a reason to read all of it, and it is often small. With one plan left, that of a
# look need not be made each time: half of what it costs.
ONE_PLAN = "-c enable_seqscan=off -c enable_bitmapscan=off -c enable_sort=off -c plan_cache_mode=auto"

MOST_BYTES = 32 * 1024 * 1024  # of messages that are read together; three such batches are in memory at a time
# Rows that are received together, so that their bytes are counted as they come: a sum in the statement would cost half
# as much again as reading. Older client libraries give single rows only.
_CHUNK_ROWS = 100 if capabilities.has_stream_chunked() else 1
FEW_ROWS = 64  # so many, twice as many at most, are received at once, however large


@dataclass(frozen=True, slots=True)
class Stretch:
    """Where to look, and for what.

    Args:
        limits: The most rows of each slice and class.
        after: The place after which to look, of each slice and class; of those that are missing, from the very start.
        upto: The last place to look at, of each; of those that are missing, all that is due.
        parked: Topics that are left alone.
        under_way: What was read before, and may still be there.
    """

    limits: Mapping[Pair, int]
    after: Mapping[Pair, Place] = field(default_factory=dict[Pair, Place])
    upto: Mapping[Pair, Place] = field(default_factory=dict[Pair, Place])
    parked: Sequence[str] = ()
    under_way: Ids = field(default_factory=lambda: ids(()))


def due_rows(
    connection: Conn, pairs: Sequence[Pair], stretch: Stretch, most_bytes: int = MOST_BYTES, *, few: bool = False
) -> tuple[list[DueRow], int]:
    """Due rows of these slices and classes, and how many bytes of messages there is room left for.

    Where no room is left there may be more. Streamed, and so never prepared: the plan hashes the ids that are passed
    over, which needs to know them; a generic one compares them one by one, 16 us a row instead of 2. But of a
    few, with limits of about FEW_ROWS together: there the plan takes twice as long as the rest, and is kept.
    """
    upto = [stretch.upto.get(pair, _END) for pair in pairs]
    columns = {
        **places(pairs, stretch.after),
        "ends": arrays.instants(publish_at for publish_at, _ in upto),
        "end_ids": arrays.integers(row_id for _, row_id in upto),
        "limits": arrays.integers(stretch.limits[pair] for pair in pairs),
        "parked": list(stretch.parked),
        "under_way": stretch.under_way,
    }
    rows: list[DueRow] = []
    with connection.cursor() as cursor:
        if few:
            rows = cast("list[DueRow]", cursor.execute(_READ_OUTBOX, columns, binary=True).fetchall())
            return rows, most_bytes - sum(len(row[VALUE] or b"") for row in rows)
        found = cursor.stream(_READ_OUTBOX, columns, binary=True, size=_CHUNK_ROWS)
        with closing(cast("Generator[DueRow]", found)) as found:  # what is not wanted is not sent
            for row in found:
                rows.append(row)
                if (value := row[VALUE]) is not None:
                    most_bytes -= len(value)
                    if most_bytes <= 0:
                        break
    return rows, most_bytes


def places(pairs: Sequence[Pair], after: Mapping[Pair, Place]) -> dict[str, object]:
    """From where on to look, for the statements that look at the outbox."""
    behind = [after.get(pair, BEGINNING) for pair in pairs]
    return {
        "slices": arrays.integers(number for number, _ in pairs),
        "classes": arrays.words(name for _, name in pairs),
        "marks": arrays.instants(publish_at for publish_at, _ in behind),
        "mark_ids": arrays.integers(row_id for _, row_id in behind),
    }
