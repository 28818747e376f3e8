"""Rows of the outbox: read those due between two positions, delete acknowledged and expired ones.

Rows are plain tuples: a named tuple costs as much as a call of the producer. Their addresses and ids stay in
PostgreSQL's own binary form. They go back in arrays that are joined from these bytes, without a conversion.

Few are deleted on the caller's thread, many in the background. Meanwhile the relay reads and produces the next batch.
One batch is deleted at a time. A batch whose deletion failed is kept and deleted again before the next one: dropping it
would publish it once more. A crash does exactly that, and loses nothing.

A tenant's topic of replies is made by an operator, and may never be. Without an end its rows would fill the outbox, and
each scan would meet them. A reply is not lost with its row: a repeated request gets it as long as it is remembered.
Shared topics have no such end. Their rows wait, whatever their age.

The age of a row proves no failure, since relays or Kafka may have been down. So the topic must also have failed for a
day in this process.
"""

import logging
from collections import Counter
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from struct import pack
from typing import Final, LiteralString, TypeAlias, cast

import psycopg
from psycopg import adapters, capabilities
from psycopg.adapt import Dumper
from psycopg.pq import Format

from tidewheel.errors import Unavailable
from tidewheel.outbox import OutboxLane, slice_lane_of
from tidewheel.postgres import pg_binary as arrays
from tidewheel.postgres.low_water import FullScanPacer
from tidewheel.postgres.session import Conn, Session
from tidewheel.postgres.statements import Statements
from tidewheel.process.failpoint import failpoint
from tidewheel.process.metrics import metrics

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

_LOG = logging.getLogger("tidewheel.relay")

_SQL = Statements("tidewheel.relay")
_READ_OUTBOX = _SQL["read_outbox"]
_DELETE_OUTBOX = _SQL["delete_outbox"]
_QUARANTINE_OUTBOX_ROW = _SQL["quarantine_outbox_row"]
_POSTPONE_OUTBOX = _SQL["postpone_outbox"]
_DELETE_EXPIRED_REPLIES = _SQL["delete_expired_replies"]

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
_SMALL_ROWS = 64  # deleted on the caller's thread: handing over so few costs more than their statement
_KEPT = timedelta(days=1)  # of expired replies
FAILED_SECONDS = _KEPT.total_seconds()  # for which a topic must have failed before replies to it are deleted
_EVERY_SECONDS = 60.0
_LIMIT = 1000  # rows of one statement: about ten milliseconds


class Addresses(bytes):
    """A tid[]."""


class Ids(bytes):
    """A bigint[]."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows read together."""

    rows: Sequence[DueRow]  # in the order in which they are produced: one slice and lane after another
    pairs: Sequence[Pair]
    counts: Mapping[Pair, int]
    full: bool  # more rows may be due than were read

    def __bool__(self) -> bool:
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


@dataclass(frozen=True, slots=True)
class RowRange:
    """A range of outbox rows: of each slice and lane those after a position, up to another one.

    A missing slice and lane is read from the very start, and as far as rows are due. Rows in flight are not read again.
    Of `early_topics` the rows are read too that are due so far ahead.
    """

    limits: Mapping[Pair, int]
    after: Mapping[Pair, OutboxPosition] = field(default_factory=dict[Pair, OutboxPosition])
    upto: Mapping[Pair, OutboxPosition] = field(default_factory=dict[Pair, OutboxPosition])
    paused: Sequence[str] = ()
    in_flight: Ids = field(default_factory=lambda: ids(()))
    ahead: Mapping[OutboxLane, timedelta] = field(default_factory=dict[OutboxLane, timedelta])
    early_topics: Sequence[str] = ()


def due_rows(
    connection: Conn, pairs: Sequence[Pair], row_range: RowRange, room: int = MAX_BYTES, *, quick: bool = False
) -> tuple[list[DueRow], int]:
    """Read due rows of these slices and lanes; also return how many bytes are left of `room`.

    Where none are left, more rows may be due. The statement is streamed, and so never prepared. A quick poll, with
    limits of about QUICK_ROWS together, is prepared: its planning takes twice as long as the rest.
    """
    columns = {
        **position_columns(pairs, row_range.after),
        **end_columns(pairs, row_range.upto),
        "limits": arrays.integers(row_range.limits[pair] for pair in pairs),
        "backed_off": list(row_range.paused),
        "in_flight": row_range.in_flight,
        "ahead": [row_range.ahead.get(lane, timedelta(0)) for _, lane in pairs],
        "early_topics": list(row_range.early_topics),
    }
    if not quick:
        return stream_rows(connection, _READ_OUTBOX, columns, room)
    with connection.cursor() as cursor:
        rows = cast("list[DueRow]", cursor.execute(_READ_OUTBOX, columns, binary=True).fetchall())
    return rows, room - sum(len(row[VALUE] or b"") for row in rows)


def stream_rows(
    connection: Conn, statement: LiteralString, columns: Mapping[str, object], room: int
) -> tuple[list[DueRow], int]:
    """Read the rows of a statement until their values fill the room; also return how many bytes are left."""
    rows: list[DueRow] = []
    with connection.cursor() as cursor:
        stream = cast("Generator[DueRow]", cursor.stream(statement, columns, binary=True, size=_CHUNK_ROWS))
        with closing(stream) as found:  # closing it ends the stream, so that the server sends no more rows
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


def end_columns(pairs: Sequence[Pair], upto: Mapping[Pair, OutboxPosition]) -> dict[str, object]:
    """Return the parameters of the outbox statements that name end positions.

    A pair without a position has no end.
    """
    ends = [upto.get(pair, _END) for pair in pairs]
    return {
        "ends": arrays.instants(publish_at for publish_at, _ in ends),
        "end_ids": arrays.integers(row_id for _, row_id in ends),
    }


class Deleter:
    """Delete rows of the outbox."""

    def __init__(self, url: str) -> None:
        # A delete by address is cheap, but for a small table the planner prefers a sequential scan. Each statement is a
        # transaction, since repeating it is harmless.
        self._session = Session(url, "tidewheel-relay-delete", options=SESSION_OPTIONS, autocommit=True)
        self._thread = ThreadPoolExecutor(1, "relay-delete")
        self._current: tuple[Batch, Published] | None = None
        self._deletion: Future[None] | None = None

    def in_flight(self) -> list[DueRow]:
        """Return the rows that may not be deleted yet."""
        if self._current is None:
            return []
        _, published = self._current
        return [*published.acknowledged, *published.set_aside()]

    def start(self, batch: Batch, published: Published) -> None:
        """Start to delete a batch, or leave a small one to `wait`; `wait` for the one before first."""
        assert self._current is None  # noqa: S101 - `wait` returns one batch: a second one would be lost
        self._current = batch, published
        if len(batch.rows) > _SMALL_ROWS:
            self._deletion = self._thread.submit(self._delete, published)

    def wait(self) -> tuple[Batch, Published] | None:
        """Wait until the current batch is deleted, and return it once; after Unavailable call it again."""
        if self._current is None:
            return None
        deletion, self._deletion = self._deletion, None
        if deletion is not None:
            deletion.result()
        else:
            self._delete(self._current[1])
        deleted, self._current = self._current, None
        return deleted

    def close(self) -> None:
        """Wait for the current batch and close. After a failure its rows are published again."""
        with suppress(Unavailable, psycopg.Error):
            self.wait()
        self._thread.shutdown()
        self._session.close()

    def _delete(self, published: Published) -> None:
        failpoint("relay.acknowledged")
        if published.acknowledged or published.refused or published.postponed:
            with self._session.transaction() as connection:
                for row, error in published.refused:
                    columns = {"ctids": addresses([row]), "ids": ids([row]), "error": error}
                    connection.execute(_QUARANTINE_OUTBOX_ROW, columns)
                for pause in {pause for _, pause in published.postponed}:
                    rows = [row for row, each in published.postponed if each == pause]
                    connection.execute(_POSTPONE_OUTBOX, {"ctids": addresses(rows), "ids": ids(rows), "pause": pause})
                if published.acknowledged:
                    acknowledged = {"ctids": addresses(published.acknowledged), "ids": ids(published.acknowledged)}
                    # A kept plan compares the ids one by one: cheap for few, and planning is half of their cost.
                    small = len(published.acknowledged) <= _SMALL_ROWS
                    connection.execute(_DELETE_OUTBOX, acknowledged, prepare=small)
        for row, error in published.refused:
            _LOG.error("a message for %s cannot be published and is quarantined: %s", row[TOPIC], error)
        failpoint("relay.deleted")


class ExpiredReplies:
    """Deletes expired replies of the slices that this relay holds, on topics that begin with `prefix`."""

    def __init__(self, url: str, prefix: str) -> None:
        self._session = Session(url, "tidewheel-relay-expired", options=SESSION_OPTIONS, autocommit=True)
        self._prefix = prefix
        self._pacer = FullScanPacer(_EVERY_SECONDS)

    def step(self, held: Sequence[int], failing: Collection[str]) -> None:
        """Delete some expired replies to topics that have failed for a day, if that is due."""
        topics = [topic for topic in failing if topic.startswith(self._prefix)]
        if not (held and topics and self._pacer.start()):
            return
        columns = {
            "slice_lanes": [slice_lane_of(number, OutboxLane.EVENTS) for number in held],
            "topics": topics,
            "kept": _KEPT,
            "limit": _LIMIT,
        }
        with self._session.transaction() as connection:
            found = cast("list[tuple[str, int]]", connection.execute(_DELETE_EXPIRED_REPLIES, columns).fetchall())
        self._pacer.finish()
        for topic, count in found:
            metrics.count("replies_expired", count)
            text = (
                "%d replies were deleted: topic %s has accepted no reply for a day;"
                " run `tidewheel admin topics apply --tenants %s`, or grant WRITE"
            )
            _LOG.error(text, count, topic, topic.removeprefix(self._prefix))
        if sum(count for _, count in found) == _LIMIT:
            self._pacer.scan_soon()

    def close(self) -> None:
        """Close the connection."""
        self._session.close()
