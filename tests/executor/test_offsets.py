"""Offsets are committed after the claim, five times a second, and only of assigned partitions."""

from collections.abc import Iterator
from dataclasses import dataclass
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition

from tests.fixtures.services import until
from tests.relay.topics import make_topics
from tidewheel.executor import offsets
from tidewheel.executor.offsets import Offsets
from tidewheel.kafka.clients import consumer
from tidewheel.local.stack import StackInfo

pytestmark = pytest.mark.kafka

EACH = 8  # messages in each of two partitions


@dataclass
class Reading:
    """The offsets of a consumer that has read both partitions of a topic."""

    topic: str
    client: Consumer
    offsets: Offsets
    fetched: dict[int, list[Message]]

    def note(self, *parts: tuple[int, int, int]) -> None:
        """Note a batch: of each partition the messages from the first, before the last."""
        self.offsets.note([each for number, first, last in parts for each in self.fetched[number][first:last]])

    def committed(self) -> list[int | None]:
        """Return the committed offsets of both partitions."""
        found = self.client.committed([TopicPartition(self.topic, partition) for partition in (0, 1)], timeout=30)
        return [each.offset if each.offset >= 0 else None for each in found]

    def read(self) -> bool:
        for message in self.client.consume(100, 0.2):
            assert message.error() is None
            self.fetched[message.partition() or 0].append(message)
        return all(len(each) == EACH for each in self.fetched.values())


@pytest.fixture
def reading(info: StackInfo) -> Iterator[Reading]:
    topic = f"offsets-{uuid4().hex[:8]}"
    make_topics(info.kafka, [topic], partitions=2)
    producer = Producer({**info.kafka})
    for partition in (0, 1):
        for number in range(EACH):
            producer.produce(topic, value=b"%d" % number, partition=partition)
    assert producer.flush(30) == 0
    client = consumer(dict(info.kafka), group=f"g-{uuid4().hex[:8]}", role="test", protocol="classic")
    client.assign([TopicPartition(topic, partition, 0) for partition in (0, 1)])
    made = Reading(topic, client, Offsets(client, topic), {0: [], 1: []})
    until(made.read, "both partitions are read")
    made.offsets.assign([0, 1])
    yield made
    client.close()


def test_latest_offset_of_each_partition_is_committed(reading: Reading) -> None:
    reading.note((0, 0, 3), (1, 0, 5))
    reading.note((0, 3, 6))
    assert reading.committed() == [None, None]
    reading.offsets.commit()
    until(lambda: reading.committed() == [6, 5], "it is committed")


def test_offsets_are_committed_periodically(reading: Reading, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(offsets, "monotonic_seconds", lambda: now)
    reading.note((0, 0, 1))
    reading.offsets.commit_if_due()
    until(lambda: reading.committed() == [1, None], "the first is committed at once")
    reading.note((0, 1, 2))
    reading.offsets.commit_if_due()
    now += 0.1
    reading.note((0, 2, 3))
    reading.offsets.commit_if_due()
    assert reading.committed() == [1, None]
    now += 0.11
    reading.offsets.commit_if_due()
    until(lambda: reading.committed() == [3, None], "the rest is committed together")


def test_older_message_does_not_lower_an_offset(reading: Reading) -> None:
    reading.note((0, 0, 5))
    reading.note((0, 1, 2))  # one that was left before
    reading.offsets.commit()
    until(lambda: reading.committed() == [5, None], "the newest is committed")


def test_revoked_partition_is_not_committed(reading: Reading) -> None:
    reading.note((0, 0, 2), (1, 0, 2))
    reading.offsets.drop({0})
    reading.note((0, 2, 3))
    reading.offsets.commit()
    until(lambda: reading.committed() == [None, 2], "the other one is committed")


@pytest.mark.parametrize("messages", [1, 3, 50])
def test_batch_that_cannot_be_unpacked_is_stepped_over(reading: Reading, info: StackInfo, messages: int) -> None:
    sizes = {"message.max.bytes": 1_000_000_000, "batch.size": 1_000_000_000, "linger.ms": 500}
    producer = Producer({**info.kafka, **sizes, "compression.type": "zstd"})
    for _ in range(messages):
        producer.produce(reading.topic, bytes(60_000_000 // messages), partition=0)
    assert producer.flush(60) == 0
    for number in range(messages):  # as many as a step may skip
        producer.produce(reading.topic, b"%d" % number, partition=0)
        producer.produce(reading.topic, b"other", partition=1)
    assert producer.flush(60) == 0
    found: set[int | None] = set()

    def reads_on() -> bool:
        for message in reading.offsets.step_over(reading.client.consume(100, 0.2)):
            assert message.error() is None
            found.add(message.partition())
        return found == {0, 1}

    until(reads_on, "messages behind it are read")
