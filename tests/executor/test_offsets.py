"""Offsets are committed after the claim, five times a second, and only of assigned partitions."""

from collections.abc import Iterator
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


@pytest.fixture
def topic(info: StackInfo) -> str:
    name = f"offsets-{uuid4().hex[:8]}"
    make_topics(info.kafka, [name], partitions=2)
    producer = Producer({**info.kafka})
    for partition in (0, 1):
        for number in range(EACH):
            producer.produce(name, value=b"%d" % number, partition=partition)
    assert producer.flush(30) == 0
    return name


@pytest.fixture
def client(info: StackInfo, topic: str) -> Iterator[Consumer]:
    """A consumer that has read both partitions."""
    made = consumer(dict(info.kafka), group=f"g-{uuid4().hex[:8]}", role="test", protocol="classic")
    made.assign([TopicPartition(topic, partition, 0) for partition in (0, 1)])
    yield made
    made.close()


@pytest.fixture
def fetched(client: Consumer) -> dict[int, list[Message]]:
    found: dict[int, list[Message]] = {0: [], 1: []}

    def all_came() -> bool:
        for message in client.consume(100, 0.2):
            assert message.error() is None
            found[message.partition() or 0].append(message)
        return all(len(each) == EACH for each in found.values())

    until(all_came, "both partitions are read")
    return found


@pytest.fixture
def mine(client: Consumer, topic: str) -> Offsets:
    """Offsets of the partitions 0 and 1."""
    made = Offsets(client, topic)
    made.assign([0, 1])
    return made


def committed_offsets(client: Consumer, topic: str) -> list[int | None]:
    found = client.committed([TopicPartition(topic, partition) for partition in (0, 1)], timeout=30)
    return [each.offset if each.offset >= 0 else None for each in found]


def test_latest_offset_of_each_partition_is_committed(
    mine: Offsets, client: Consumer, topic: str, fetched: dict[int, list[Message]]
) -> None:
    mine.note([*fetched[0][:3], *fetched[1][:5]])
    mine.note(fetched[0][3:6])
    assert committed_offsets(client, topic) == [None, None]
    mine.commit()
    until(lambda: committed_offsets(client, topic) == [6, 5], "it is committed")


def test_offsets_are_committed_periodically(
    mine: Offsets,
    client: Consumer,
    topic: str,
    fetched: dict[int, list[Message]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr(offsets, "monotonic_seconds", lambda: now)
    mine.note(fetched[0][:1])
    mine.commit_if_due()
    until(lambda: committed_offsets(client, topic) == [1, None], "the first is committed at once")
    mine.note(fetched[0][1:2])
    mine.commit_if_due()
    now += 0.1
    mine.note(fetched[0][2:3])
    mine.commit_if_due()
    assert committed_offsets(client, topic) == [1, None]
    now += 0.11
    mine.commit_if_due()
    until(lambda: committed_offsets(client, topic) == [3, None], "the rest is committed together")


def test_older_message_does_not_lower_an_offset(
    mine: Offsets, client: Consumer, topic: str, fetched: dict[int, list[Message]]
) -> None:
    mine.note(fetched[0][:5])
    mine.note(fetched[0][1:2])  # one that was left before
    mine.commit()
    until(lambda: committed_offsets(client, topic) == [5, None], "the newest is committed")


def test_revoked_partition_is_not_committed(
    mine: Offsets, client: Consumer, topic: str, fetched: dict[int, list[Message]]
) -> None:
    mine.note([*fetched[0][:2], *fetched[1][:2]])
    mine.drop({0})
    mine.note(fetched[0][2:3])
    mine.commit()
    until(lambda: committed_offsets(client, topic) == [None, 2], "the other one is committed")


@pytest.mark.usefixtures("fetched")
@pytest.mark.parametrize("messages", [1, 3, 50])
def test_batch_that_cannot_be_unpacked_is_stepped_over(
    mine: Offsets, client: Consumer, topic: str, info: StackInfo, messages: int
) -> None:
    sizes = {"message.max.bytes": 1_000_000_000, "batch.size": 1_000_000_000, "linger.ms": 500}
    producer = Producer({**info.kafka, **sizes, "compression.type": "zstd"})
    for _ in range(messages):
        producer.produce(topic, bytes(60_000_000 // messages), partition=0)
    assert producer.flush(60) == 0
    for number in range(messages):  # as many as a step may skip
        producer.produce(topic, b"%d" % number, partition=0)
        producer.produce(topic, b"other", partition=1)
    assert producer.flush(60) == 0
    found: set[int | None] = set()

    def reads_on() -> bool:
        for message in mine.step_over(client.consume(100, 0.2)):
            assert message.error() is None
            found.add(message.partition())
        return found == {0, 1}

    until(reads_on, "messages behind it are read")
