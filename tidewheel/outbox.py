"""Append rows to the outbox, in the caller's transaction.

An outbox row is the only way onto Kafka. It commits together with the change that it announces. The relay publishes and
deletes it. Rows of one slice and lane leave by `publish_at`, if their transaction commits within a second of that clock
reading. `Session.transaction` gives the events of a longer one the time of its end (ADR 0004).
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple

from tidewheel.postgres.pg_binary import NULL, bytea, byteas, columns, copy_rows, instant, int2, text
from tidewheel.postgres.session import Conn, OwnConnection

SLICES = 8  # ranges of shards, each published by one relay at a time; the most relays that can share the work

_COPY = "COPY outbox (slice_lane, topic, tenant, priority, publish_at, key, value, headers) FROM STDIN (FORMAT BINARY)"
_COLUMNS = columns(8)

Headers = Sequence[tuple[str, bytes]]


class OutboxLane(StrEnum):
    """Priority class of a message: messages of one class never wait behind those of another.

    Rows hold the position of their lane, so a new one is the last.
    """

    CRITICAL = "critical"
    STANDARD = "standard"
    BATCH = "batch"
    EVENTS = "events"


_POSITIONS: dict[str, int] = {lane: position for position, lane in enumerate(OutboxLane)}


class OutboxRow(NamedTuple):
    """One message to publish.

    Args:
        shard: The shard of its job; determines the slice, and so the relay.
        publish_at: Not before this instant of the database's clock.
        headers: Name and value of each header, or the result of `pack` where many rows share headers.
        tenant: Of a run, for fairness while its topic is held back. None for all other messages.
        priority: Of a run, 0 to 9.
    """

    shard: int
    lane: str
    topic: str
    key: bytes | None
    value: bytes | None
    publish_at: datetime
    headers: Headers | bytes = NULL
    tenant: str | None = None
    priority: int | None = None


def slice_of(shard: int, shards: int) -> int:
    """Return the slice of a shard, 0 to SLICES - 1."""
    return shard * SLICES // shards


def slice_lane_of(number: int, lane: str) -> int:
    """Return the number of a slice and lane in a row: the lane's position times SLICES, plus the slice.

    >>> slice_lane_of(3, "batch")
    19
    """
    return _POSITIONS[lane] * SLICES + number


def append(connection: Conn, rows: Iterable[OutboxRow], *, shards: int) -> None:
    """Append rows in the caller's transaction."""
    copy_rows(connection, _COPY, _copied(connection, rows, shards))


def _copied(connection: Conn, rows: Iterable[OutboxRow], shards: int) -> Iterator[bytes]:
    heads: dict[tuple[object, ...], bytes] = {}  # columns that rows of a batch share
    last, leaves = None, b""  # not among them: where jobs have anchors of their own, each row leaves at its own instant
    for shard, lane, topic, key, value, publish_at, headers, tenant, priority in rows:
        common = shard, lane, topic, tenant, priority
        head = heads.get(common)
        if head is None:
            slice_lane = int2(slice_lane_of(slice_of(shard, shards), lane))
            if lane == OutboxLane.EVENTS and isinstance(connection, OwnConnection):
                connection.has_events = True
            ranks = text(tenant), NULL if priority is None else int2(priority)
            head = heads[common] = b"".join((_COLUMNS, slice_lane, text(topic), *ranks))
        if publish_at != last:
            last, leaves = publish_at, instant(publish_at)
        packed = headers if isinstance(headers, bytes) else pack(headers)
        yield b"".join((head, leaves, bytea(key), bytea(value), packed))


def pack(headers: Headers) -> bytes:
    """Return headers as a column of binary COPY."""
    return byteas(parts_of(headers))


def parts_of(headers: Headers) -> list[bytes] | None:
    """Return headers as the column stores them: name, value, name, value; None if there are none."""
    return [part for name, value in headers for part in (name.encode(), value)] or None


def headers_of(parts: Sequence[bytes] | None) -> Headers:
    """Return the headers in such a column."""
    parts = parts or ()
    return [(name.decode(), value) for name, value in zip(parts[::2], parts[1::2], strict=True)]
