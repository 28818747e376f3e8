"""Read due rows between two positions of the outbox, for the reader and the scan for late rows.

Rows are plain tuples: a named tuple costs as much as a call of the producer. Their addresses and ids stay in
PostgreSQL's own binary form. They go back in arrays that are joined from these bytes, without a conversion.
"""

from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from struct import pack
from typing import Final, TypeAlias, cast

from psycopg import adapters, capabilities
from psycopg.adapt import Dumper
from psycopg.pq import Format

from tidewheel.outbox import OutboxLane, slice_lane_of
from tidewheel.postgres import pg_binary as arrays
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements

Pair: TypeAlias = tuple[int, OutboxLane]  # a slice and a lane
OutboxPosition: TypeAlias = tuple[datetime, int]  # publish_at and id: the order in which rows are published

# PAIR_INDEX is the number of the slice and lane of a row among those that were read, from 1.
DueRow: TypeAlias = tuple[int, datetime, str, bytes | None, bytes | None, list[bytes] | None, bytes, bytes]
PAIR_INDEX: Final = 0
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
        rows: In the order in which they are produced: one slice and lane after another.
        full: True if more rows may be due than were read.
    """

    rows: Sequence[DueRow]
    pairs: Sequence[Pair]
    counts: Mapping[Pair, int]
    full: bool

    def __bool__(self) -> bool:
        """Return True if there are rows."""
        return bool(self.rows)

    def last(self) -> Iterator[tuple[Pair, OutboxPosition]]:
        """Yield the position of the last row of each slice and lane."""
        end = 0
        for pair, count in self.counts.items():
            end += count
            yield pair, position_of(self.rows[end - 1])


@dataclass(slots=True)
class Published:
    """The result of a batch. A row in none of the lists stays in the outbox and is published again."""

    acknowledged: list[DueRow] = field(default_factory=list[DueRow])
    refused: list[tuple[DueRow, str]] = field(default_factory=list[tuple[DueRow, str]])
    postponed: list[tuple[DueRow, timedelta]] = field(default_factory=list[tuple[DueRow, timedelta]])

    def set_aside(self) -> list[DueRow]:
        """Return the rows that are neither acknowledged nor published again now."""
        return [row for row, _ in (*self.refused, *self.postponed)]


def position_of(row: DueRow) -> OutboxPosition:
    """Return the position of a row in its slice and lane."""
    return row[PUBLISH_AT], int.from_bytes(row[ID])


def counts_of(rows: Iterable[DueRow], pairs: Sequence[Pair]) -> dict[Pair, int]:
    """Count the rows of each slice and lane that has any, in the rows' order."""
    return {pairs[position - 1]: count for position, count in Counter([row[PAIR_INDEX] for row in rows]).items()}


def addresses(rows: Sequence[DueRow]) -> Addresses:
    """Return the physical addresses of the rows."""
    return addresses_of([row[ADDRESS] for row in rows])


def addresses_of(parts: Iterable[bytes]) -> Addresses:
    """Return a tid[] of physical addresses."""
    return Addresses(_array(_TID.oid, 6, [*parts]))


def ids(rows: Sequence[DueRow]) -> Ids:
    """Return the ids of the rows."""
    return ids_of([row[ID] for row in rows])


def ids_of(parts: Iterable[bytes]) -> Ids:
    """Return a bigint[] of ids."""
    return Ids(_array(_INT8.oid, 8, [*parts]))


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

BEGINNING: Final[OutboxPosition] = (datetime(1970, 1, 1, tzinfo=UTC), 0)
_END: Final[OutboxPosition] = (datetime(9999, 12, 31, tzinfo=UTC), 0)

# For a small table the planner prefers a sequential scan, and the outbox is often small. With one possible plan left,
# PostgreSQL keeps the plan of a poll: planning is half of its cost.
SESSION_OPTIONS = "-c enable_seqscan=off -c enable_bitmapscan=off -c enable_sort=off -c plan_cache_mode=auto"

MAX_BYTES = 32 * 1024 * 1024  # of messages in one batch; three batches are in memory at a time
# Rows per chunk of the stream. Their bytes are counted here, because a sum in the statement costs half as much again as
# the read. Older versions of libpq stream single rows only.
_CHUNK_ROWS = 100 if capabilities.has_stream_chunked() else 1
QUICK_ROWS = 64  # about so many rows, at most twice as many, are fetched at once by a quick poll, however large


@dataclass(frozen=True, slots=True)
class RowRange:
    """A range of outbox rows.

    Args:
        after: The position after which each slice and lane is read. A missing one is read from the very start.
        upto: The last position of each. A missing one is read as far as rows are due.
        in_flight: Rows that were read before and may still be there. They are not read.
    """

    limits: Mapping[Pair, int]
    after: Mapping[Pair, OutboxPosition] = field(default_factory=dict[Pair, OutboxPosition])
    upto: Mapping[Pair, OutboxPosition] = field(default_factory=dict[Pair, OutboxPosition])
    paused: Sequence[str] = ()
    in_flight: Ids = field(default_factory=lambda: ids(()))


def due_rows(
    connection: Conn, pairs: Sequence[Pair], row_range: RowRange, room: int = MAX_BYTES, *, quick: bool = False
) -> tuple[list[DueRow], int]:
    """Read due rows of these slices and lanes.

    The statement is streamed, and so never prepared. A quick poll, with limits of about QUICK_ROWS together, is
    prepared: its planning takes twice as long as the rest.

    Returns:
        The rows, and the number of bytes that are left of `room`. Where none are left, more rows may be due.
    """
    upto = [row_range.upto.get(pair, _END) for pair in pairs]
    columns = {
        **position_columns(pairs, row_range.after),
        "ends": arrays.instants(publish_at for publish_at, _ in upto),
        "end_ids": arrays.integers(row_id for _, row_id in upto),
        "limits": arrays.integers(row_range.limits[pair] for pair in pairs),
        "backed_off": list(row_range.paused),
        "in_flight": row_range.in_flight,
    }
    rows: list[DueRow] = []
    with connection.cursor() as cursor:
        if quick:
            rows = cast("list[DueRow]", cursor.execute(_READ_OUTBOX, columns, binary=True).fetchall())
            return rows, room - sum(len(row[VALUE] or b"") for row in rows)
        found = cursor.stream(_READ_OUTBOX, columns, binary=True, size=_CHUNK_ROWS)
        with closing(
            cast("Generator[DueRow]", found)
        ) as found:  # closing it ends the stream, so that the server sends no more rows
            for row in found:
                rows.append(row)
                if (value := row[VALUE]) is not None:
                    room -= len(value)
                    if room <= 0:
                        break
    return rows, room


def position_columns(pairs: Sequence[Pair], after: Mapping[Pair, OutboxPosition]) -> dict[str, object]:
    """Return the parameters of the outbox statements that name slices, lanes and start positions."""
    behind = [after.get(pair, BEGINNING) for pair in pairs]
    return {
        "slice_lanes": arrays.integers(slice_lane_of(number, lane) for number, lane in pairs),
        "marks": arrays.instants(publish_at for publish_at, _ in behind),
        "mark_ids": arrays.integers(row_id for _, row_id in behind),
    }
