"""Due rows between two places of the outbox: what the reader and the walker both look for.

Outbox rows on their way, as plain tuples: a named tuple would cost as much as handing the row to the producer.

Their addresses and ids stay PostgreSQL's own bytes, which go back in arrays that are joined and not converted.
"""

from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from struct import pack
from typing import Final, TypeAlias, cast

from psycopg import adapters, capabilities
from psycopg.adapt import Dumper
from psycopg.pq import Format

from tidewheel.outbox import OutboxLane
from tidewheel.postgres import pg_arrays as arrays
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements

Pair: TypeAlias = tuple[int, OutboxLane]  # a slice and a class
Place: TypeAlias = tuple[datetime, int]  # in the order in which rows leave: publish_at and id

# POSITION is that of its slice and class among those that were read, from 1.
DueRow: TypeAlias = tuple[int, datetime, str, bytes | None, bytes | None, list[bytes] | None, bytes, bytes]
POSITION: Final = 0
PUBLISH_AT: Final = 1
TOPIC: Final = 2
KEY: Final = 3
VALUE: Final = 4
HEADERS: Final = 5
ADDRESS: Final = 6
ID: Final = 7

_TID: Final = adapters.types["tid"]
_INT8: Final = adapters.types["int8"]


class Addresses(bytes):
    """A tid[]."""


class Ids(bytes):
    """A bigint[]."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows read together.

    Args:
        rows: In the order in which they are produced: one slice and class after another.
        pairs: The slices and classes that were read.
        counts: How many rows there are of those that have any.
        full: Whether more may be due than was taken.
    """

    rows: Sequence[DueRow]
    pairs: Sequence[Pair]
    counts: Mapping[Pair, int]
    full: bool

    def __bool__(self) -> bool:
        """Whether there are any rows."""
        return bool(self.rows)

    def last(self) -> Iterator[tuple[Pair, Place]]:
        """Where the last row of each slice and class stands."""
        end = 0
        for pair, count in self.counts.items():
            end += count
            yield pair, place_of(self.rows[end - 1])


@dataclass(slots=True)
class Published:
    """What became of a batch; a row in neither list stays and is tried again."""

    proven: list[DueRow] = field(default_factory=list[DueRow])
    refused: list[tuple[DueRow, str]] = field(default_factory=list[tuple[DueRow, str]])


def place_of(row: DueRow) -> Place:
    """Where a row stands in its slice and class."""
    return row[PUBLISH_AT], int.from_bytes(row[ID])


def counts_of(rows: Iterable[DueRow], pairs: Sequence[Pair]) -> dict[Pair, int]:
    """How many rows there are of each slice and class that has any, in the rows' order."""
    return {pairs[position - 1]: count for position, count in Counter([row[POSITION] for row in rows]).items()}


def addresses(rows: Sequence[DueRow]) -> Addresses:
    """Where the rows lie."""
    return Addresses(_array(_TID.oid, 6, [row[ADDRESS] for row in rows]))


def ids(rows: Sequence[DueRow]) -> Ids:
    """Their ids."""
    return Ids(_array(_INT8.oid, 8, [row[ID] for row in rows]))


def _array(oid: int, size: int, parts: list[bytes]) -> bytes:
    # Dimensions, whether there are nulls, type, length, lower bound. Source: PostgreSQL's arrayfuncs.c, array_recv.
    if not parts:
        return pack(">iiI", 0, 0, oid)
    return pack(">iiIii", 1, 0, oid, len(parts), 1) + pack(">i", size) + pack(">i", size).join(parts)


class _AddressesDumper(Dumper):
    format = Format.BINARY
    oid = _TID.array_oid

    def dump(self, obj: Addresses) -> bytes:
        return obj


class _IdsDumper(Dumper):
    format = Format.BINARY
    oid = _INT8.array_oid

    def dump(self, obj: Ids) -> bytes:
        return obj


adapters.register_dumper(Addresses, _AddressesDumper)
adapters.register_dumper(Ids, _IdsDumper)


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
