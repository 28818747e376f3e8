"""A relay for tests: own topics, rows for them in the outbox, and a consumer without a group."""

# pyright: reportPrivateImportUsage=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# The admin client's stubs name neither all it exports nor what its futures hold.

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any
from uuid import uuid4

from confluent_kafka import Consumer, TopicPartition

from tests.fixtures.database import Database
from tests.fixtures.services import until
from tests.relay.topics import delete_topic, make_topics
from tests.transitions.stepping import in_background
from tidewheel.clock import monotonic_seconds
from tidewheel.outbox import OutboxLane, OutboxRow, append
from tidewheel.process.service import Shutdown
from tidewheel.relay.loop import Relay
from tidewheel.relay.read import Reader
from tidewheel.settings.services import RelaySettings

_SECONDS = 30.0


@dataclass
class Arrived:
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes]]
    partition: int
    offset: int


@dataclass
class Relaying:
    """A database, topics, and a relay between them."""

    database: Database
    kafka: Mapping[str, str]
    prefix: str = field(default_factory=lambda: f"t{uuid4().hex[:10]}")
    client: dict[str, str] = field(default_factory=dict[str, str])
    _readers: list[Reader] = field(default_factory=list[Reader])

    @cached_property
    def began_at(self) -> datetime:
        """A past instant: the default due time of rows."""
        return self.database.now()

    @property
    def config(self) -> dict[str, Any]:
        """The client's configuration, with a test's additions."""
        return {**self.kafka, **self.client}

    def topic(self, name: str, *, partitions: int = 1, config: Mapping[str, str] | None = None) -> str:
        full = f"{self.prefix}.{name}"
        make_topics(self.kafka, [full], partitions=partitions, config=config)
        return full

    def compacted_topic(self, name: str) -> str:
        """Make a topic that refuses messages without a key for good; returns its full name."""
        return self.topic(name, config={"cleanup.policy": "compact"})

    def delete_topic(self, name: str) -> None:
        delete_topic(self.kafka, name)

    def row(self, topic: str, value: bytes | None = b"v", key: bytes | None = b"k", **fields: Any) -> OutboxRow:  # noqa: ANN401
        known: dict[str, Any] = {
            "shard": 0, "lane": OutboxLane.STANDARD, "publish_at": self.began_at, "headers": (),
        }  # fmt: skip
        return OutboxRow(topic=topic, key=key, value=value, **{**known, **fields})

    def write(self, *rows: OutboxRow) -> None:
        self.database.within(append, rows, shards=64)

    def reader(self, batch: int, **settings: Any) -> Reader:  # noqa: ANN401
        made = Reader(self.database.url, batch, **settings)
        self._readers.append(made)
        return made

    def close(self) -> None:
        for each in self._readers:
            each.close()

    def make(self, stop: Shutdown, **settings: object) -> Relay:
        """A relay to be stepped or run."""
        quick = {
            "relay_poll": timedelta(milliseconds=50),
            "delivery_timeout": timedelta(seconds=10),
            "member_timeout": timedelta(seconds=2),
        }
        return Relay(RelaySettings.load(**(quick | settings)), self.database.url_of("relay"), self.config, stop)

    @contextmanager
    def running(self, **settings: object) -> Generator[Relay]:
        stop = Shutdown()
        relay = self.make(stop, **settings)
        ended = in_background(relay.run)
        try:
            yield relay
        finally:
            stop.request()
            ended.result(_SECONDS)

    def left(self) -> int:
        return self.database.count("outbox")

    def until_empty(self) -> None:
        until(lambda: self.left() == 0, "the outbox is empty")

    def drain(self, **settings: object) -> None:
        with self.running(**settings):
            self.until_empty()

    def arrived(self, topic: str) -> list[Arrived]:
        reader = Consumer({**self.config, "group.id": f"{self.prefix}.nobody", "enable.partition.eof": True})
        try:
            partitions = [*reader.list_topics(topic, timeout=_SECONDS).topics[topic].partitions]
            ends = {
                number: reader.get_watermark_offsets(TopicPartition(topic, number), timeout=_SECONDS)
                for number in partitions
            }
            wanted = sum(high - low for low, high in ends.values())
            reader.assign([TopicPartition(topic, number, low) for number, (low, _) in ends.items()])
            found: list[Arrived] = []
            deadline = monotonic_seconds() + _SECONDS
            while len(found) < wanted:
                assert monotonic_seconds() < deadline, f"{len(found)} of {wanted} messages came"
                message = reader.poll(0.2)
                if message is None or message.error() is not None:
                    continue
                headers: Any = message.headers() or []
                key, value = message.key(), message.value()
                found.append(
                    Arrived(
                        key if isinstance(key, bytes) else None,
                        value if isinstance(value, bytes) else None,
                        headers,
                        message.partition() or 0,
                        message.offset() or 0,
                    )
                )
        finally:
            reader.close()
        return sorted(found, key=lambda one: (one.partition, one.offset))

    def values(self, topic: str) -> list[bytes | None]:
        return [one.value for one in self.arrived(topic)]

    def due_at(self, later: timedelta) -> datetime:
        return self.database.now() + later
