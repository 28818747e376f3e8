"""Read the topics of another site to their ends, for a raise."""

import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple, cast
from uuid import UUID

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, Consumer, KafkaError, Message, TopicPartition

from tidewheel.clock import monotonic_seconds
from tidewheel.errors import SettingsError, Unavailable, UndecodableMessage
from tidewheel.jobs.strict_json import as_object
from tidewheel.kafka.clients import BOUNDED_FETCH, poll_batch
from tidewheel.kafka.offsets import offsets_client, read_end_offsets, read_partitions
from tidewheel.schemas.codec import decode
from tidewheel.schemas.generated.records import StandbyRow
from tidewheel.standby import MARK, read_key

_POLL_SECONDS = 1.0
_SILENT_SECONDS = 30.0  # without a message before the end: no broker of the partition answers
_BATCH = 1000


class Record(NamedTuple):
    """A record of a row; `row` is None if the row was gone.

    Args:
        copied_at: The time at which the topic got it; None if the topic keeps the times of the first one.
    """

    site: UUID
    batch: int
    kind: str
    key: str
    row: bytes | None
    copied_at: datetime | None


@dataclass(frozen=True, slots=True)
class Mark:
    """The end of a complete batch, with the first valid batch and the last migration of the site."""

    site: UUID
    batch: int
    first_batch: int
    as_of: datetime
    shards: int
    schema: str
    offset: int
    copied_at: datetime | None


def read_topic(config: Mapping[str, str], topic: str, marks: list[Mark]) -> Iterator[Record]:
    """Yield the records of a topic up to its present end; add its marks to `marks`."""
    with offsets_client(config, "tidewheel.standby") as client:
        places = read_partitions(client, topic).get(topic, [])
        if len(places) != 1:
            message = (
                f"{topic} has {len(places)} partitions at {config.get('bootstrap.servers')}; one is needed: mirror the "
                "topic of the other site with its partition, and give --prefix the begin of its name"
            )
            raise SettingsError(message)
        first, end = read_end_offsets(client, places)[places[0]]
    reader = Consumer(
        {
            **config,
            **BOUNDED_FETCH,
            "client.id": "tidewheel-standby",
            "group.id": "tidewheel.standby",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
            "log_level": 2,
        }
    )
    try:
        reader.assign([TopicPartition(topic, 0, first)])
        for found in _messages(reader, topic, end):
            record = _record(found)
            if isinstance(record, Mark):
                marks.append(record)
            else:
                yield record
    finally:
        reader.close()


def _messages(reader: Consumer, topic: str, end: int) -> Iterator[Message]:
    """Yield the messages before an offset; compaction may have removed the last one."""
    heard_at = monotonic_seconds()
    while True:
        for message in poll_batch(reader, _BATCH, _POLL_SECONDS):
            heard_at = monotonic_seconds()
            if (error := message.error()) is not None:
                if error.code() == KafkaError._PARTITION_EOF:
                    return
                text = f"{topic} cannot be read: {error.str()}"
                raise Unavailable(text)
            if cast("int", message.offset()) >= end:
                return
            yield message
        if monotonic_seconds() - heard_at > _SILENT_SECONDS:
            text = f"{topic} cannot be read: no broker has answered for {_SILENT_SECONDS:g} s"
            raise Unavailable(text)


def _record(message: Message) -> Record | Mark:
    offset = cast("int", message.offset())
    kind_of_time, milliseconds = message.timestamp()
    copied_at = datetime.fromtimestamp(milliseconds / 1000, UTC) if kind_of_time == TIMESTAMP_LOG_APPEND_TIME else None
    try:
        kind, key = read_key(message.key() or b"")  # pyright: ignore[reportArgumentType] - bytes without a deserializer
        headers = dict(cast("Sequence[tuple[str, bytes]]", message.headers() or ()))
        site, batch = UUID(headers["site"].decode()), int(headers["batch"])
        value = message.value()
        row = None if value is None else decode(value, StandbyRow)
        content = row and (zlib.decompress(row.row) if row.is_compressed else row.row)
        if kind != MARK or row is None:
            return Record(site, batch, kind, key, content or None, copied_at)
        facts = as_object(json.loads(content or b"{}")) or {}
        return Mark(
            site,
            batch,
            cast("int", facts["first_batch"]),
            row.as_of,
            cast("int", facts["shards"]),
            str(facts["schema"]),
            offset,
            copied_at,
        )
    except (KeyError, ValueError, zlib.error, UndecodableMessage) as error:
        text = f"{message.topic()}[0]@{offset} is no record of a standby site: {error}"
        raise UndecodableMessage(text) from error
