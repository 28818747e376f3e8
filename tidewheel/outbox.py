"""Appending to the outbox, in the caller's transaction.

A row here is the only way onto Kafka, and it is written only in the transaction that makes it true. Delayed rows (a
delayed trigger, a back-off, a run written ahead of its time) have a later `publish_at`. Rows leave by the relay.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from tidewheel.db import Conn

SLICES = 8  # ranges of shards, each carried by one relay at a time: as many relays as can usefully share the work

_COPY = "COPY outbox (slice, class, publish_at, topic, key, value, headers) FROM STDIN (FORMAT BINARY)"
_TYPES = ("int2", "text", "timestamptz", "text", "bytea", "bytea", "bytea[]")

Headers = Sequence[tuple[str, bytes]]


class OutboxClass(StrEnum):
    """What is not to wait behind what."""

    CRITICAL = "critical"
    STANDARD = "standard"
    BATCH = "batch"
    EVENTS = "events"


@dataclass(frozen=True, slots=True)
class OutboxRow:
    """One message to be.

    Args:
        shard: The shard of the job it is about; decides which relay carries it.
        outbox_class: Its class of service; lanes' names are classes too.
        topic: Full topic name.
        key: Kafka key.
        value: The encoded message.
        publish_at: Not before this instant of the database's clock.
        headers: Name and value of each header.
    """

    shard: int
    outbox_class: str
    topic: str
    key: bytes | None
    value: bytes | None
    publish_at: datetime
    headers: Headers = ()


def slice_of(shard: int, shards: int) -> int:
    """The slice that carries a shard, 0 to SLICES - 1."""
    return shard * SLICES // shards


def append(connection: Conn, rows: Iterable[OutboxRow], *, shards: int) -> None:
    """Append rows in the caller's transaction."""
    with connection.cursor() as cursor, cursor.copy(_COPY) as copy:
        copy.set_types(_TYPES)
        for row in rows:
            copy.write_row(
                (
                    slice_of(row.shard, shards),
                    row.outbox_class,
                    row.publish_at,
                    row.topic,
                    row.key,
                    row.value,
                    parts_of(row.headers),
                )
            )


def parts_of(headers: Headers) -> list[bytes] | None:
    """Headers as one column holds them: name, value, name, value; null where there are none."""
    return [part for name, value in headers for part in (name.encode(), value)] or None


def headers_of(parts: Sequence[bytes] | None) -> Headers:
    """Headers again, from such a column."""
    parts = parts or ()
    return [(name.decode(), value) for name, value in zip(parts[::2], parts[1::2], strict=True)]
