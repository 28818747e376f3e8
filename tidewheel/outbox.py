"""Appending to the outbox, in the caller's transaction.

A row here is the only way onto Kafka, and it is written only in the transaction that makes it true. Delayed rows (a
delayed trigger, a back-off, a run written ahead of its time) have a later `publish_at`. Rows leave by the relay.
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple

from tidewheel.postgres.pg_copy import NULL, bytea, byteas, columns, copy_rows, instant, int2, text
from tidewheel.postgres.session import Conn

SLICES = 8  # ranges of shards, each carried by one relay at a time: as many relays as can usefully share the work

_COPY = "COPY outbox (slice, lane, topic, publish_at, key, value, headers) FROM STDIN (FORMAT BINARY)"
_COLUMNS = columns(7)

Headers = Sequence[tuple[str, bytes]]


class OutboxLane(StrEnum):
    """What is not to wait behind what."""

    CRITICAL = "critical"
    STANDARD = "standard"
    BATCH = "batch"
    EVENTS = "events"


class OutboxRow(NamedTuple):
    """One message to be.

    Args:
        shard: The shard of the job it is about; decides which relay carries it.
        lane: Its class of service; lanes' names are classes too.
        topic: Full topic name.
        key: Kafka key.
        value: The encoded message.
        publish_at: Not before this instant of the database's clock.
        headers: Name and value of each header; or as `pack` makes them, where many rows have nearly the same.
    """

    shard: int
    lane: str
    topic: str
    key: bytes | None
    value: bytes | None
    publish_at: datetime
    headers: Headers | bytes = NULL


def slice_of(shard: int, shards: int) -> int:
    """The slice that carries a shard, 0 to SLICES - 1."""
    return shard * SLICES // shards


def append(connection: Conn, rows: Iterable[OutboxRow], *, shards: int) -> None:
    """Append rows in the caller's transaction."""
    copy_rows(connection, _COPY, _copied(rows, shards))


def _copied(rows: Iterable[OutboxRow], shards: int) -> Iterator[bytes]:
    heads: dict[tuple[object, ...], bytes] = {}  # the columns that rows of one batch have in common
    last, leaves = None, b""  # not among them: where jobs have anchors of their own, each row leaves at its own instant
    for shard, lane, topic, key, value, publish_at, headers in rows:
        common = shard, lane, topic
        head = heads.get(common)
        if head is None:
            fields = (_COLUMNS, int2(slice_of(shard, shards)), text(lane), text(topic))
            head = heads[common] = b"".join(fields)
        if publish_at != last:
            last, leaves = publish_at, instant(publish_at)
        packed = headers if isinstance(headers, bytes) else pack(headers)
        yield b"".join((head, leaves, bytea(key), bytea(value), packed))


def pack(headers: Headers) -> bytes:
    """Headers as binary COPY has their column."""
    return byteas(parts_of(headers))


def parts_of(headers: Headers) -> list[bytes] | None:
    """Headers as one column holds them: name, value, name, value; null where there are none."""
    return [part for name, value in headers for part in (name.encode(), value)] or None


def headers_of(parts: Sequence[bytes] | None) -> Headers:
    """Headers again, from such a column."""
    parts = parts or ()
    return [(name.decode(), value) for name, value in zip(parts[::2], parts[1::2], strict=True)]
