"""Read topics from their first message, without a group, and decode them by fastavro.

The files of `schemas/` are data here. Single-object encoding is two bytes, the schema's fingerprint and the record.
"""

import hashlib
import io
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, cast
from uuid import uuid4

import fastavro
from confluent_kafka import Consumer, TopicPartition
from fastavro.schema import fingerprint, to_parsing_canonical_form

from tests.faults.outside.records import SECOND, Message

_SCHEMAS = Path(__file__).parents[3] / "schemas"
_MAGIC = b"\xc3\x01"
_SECONDS = 30.0


class Decoder:
    """The released schemas by their fingerprints."""

    def __init__(self) -> None:
        self._schemas: dict[bytes, Any] = {}
        for path in sorted(_SCHEMAS.glob("*.avsc")):
            parsed = cast("Any", fastavro.parse_schema(json.loads(path.read_text())))
            crc = fingerprint(to_parsing_canonical_form(parsed), "CRC-64-AVRO")
            self._schemas[bytes.fromhex(crc)] = parsed

    def decode(self, value: bytes) -> tuple[str, Mapping[str, Any]]:
        """Return the schema's name and the record; a value in JSON is a request or a reply."""
        if not value:
            return "", {}
        if value[:2] != _MAGIC:
            document = json.loads(value)
            return ("Reply" if "status" in document else "Request"), document
        schema = self._schemas[value[2:10]]
        avro: Any = fastavro
        record: dict[str, Any] = avro.schemaless_reader(io.BytesIO(value[10:]), schema, None)
        return str(schema["name"]).rpartition(".")[2], {name: _plain(field) for name, field in record.items()}


def read_topics(settings: Mapping[str, str], prefix: str, names: Sequence[str]) -> tuple[Message, ...]:
    """Return all messages of some topics that are there now."""
    consumer = Consumer(
        {
            **settings,
            "group.id": f"outside-{uuid4()}",  # required by the client, never joined
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "log_level": 0,
        }
    )
    try:
        return _read(consumer, prefix, names)
    finally:
        consumer.close()


def _read(consumer: Consumer, prefix: str, names: Sequence[str]) -> tuple[Message, ...]:
    decoder = Decoder()
    found: list[Message] = []
    known = consumer.list_topics(timeout=_SECONDS).topics
    left: dict[tuple[str, int], int] = {}
    for name in names:
        for partition in known[f"{prefix}.{name}"].partitions:
            place = TopicPartition(f"{prefix}.{name}", partition)
            low, high = consumer.get_watermark_offsets(place, timeout=_SECONDS, cached=False)
            assert low == 0, f"{place} begins at {low}"
            if high:
                left[place.topic, partition] = high
    consumer.assign([TopicPartition(topic, partition, 0) for topic, partition in left])
    silent = 0
    while left:
        batch = consumer.consume(1000, 1.0)
        silent = 0 if batch else silent + 1
        assert silent < _SECONDS, f"nothing more arrives of {left}"
        for message in batch:
            assert message.error() is None, message.error()
            topic, partition, offset = message.topic() or "", message.partition() or 0, message.offset() or 0
            found.append(_message(decoder, topic.removeprefix(f"{prefix}."), message))
            if offset + 1 >= left.get((topic, partition), 1 << 62):
                left.pop((topic, partition))
    return tuple(sorted(found, key=lambda message: (message.topic, message.partition, message.offset)))


def _message(decoder: Decoder, topic: str, message: Any) -> Message:  # noqa: ANN401 - a message of the client
    key, value = message.key() or b"", message.value() or b""
    kind, decoded = decoder.decode(value)
    whole = repr((key, value, message.headers()))
    return Message(
        topic=topic,
        partition=message.partition(),
        offset=message.offset(),
        at=message.timestamp()[1] * 1000,
        key=key.decode(errors="replace"),
        digest=hashlib.sha256(whole.encode()).hexdigest(),
        kind=kind,
        value=decoded,
    )


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return int(value.replace(microsecond=0).timestamp()) * SECOND + value.microsecond
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return value
