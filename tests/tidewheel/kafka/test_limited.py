"""Reading under a memory limit: batches that the client cannot unpack in it, and those next to them."""

from collections.abc import Sequence
from contextlib import nullcontext
from uuid import uuid4

import pytest
from confluent_kafka import Producer, TopicPartition

from tests.relay.topics import make_topics
from tidewheel.kafka.limited import TooLarge, end_of_large_batch, read_limited
from tidewheel.local.stack import StackInfo

pytestmark = [pytest.mark.kafka, pytest.mark.slow]

HUGE = bytes(250_000_000)


@pytest.fixture
def topic(info: StackInfo) -> str:
    name = f"limited-{uuid4().hex[:10]}"
    make_topics(info.kafka, [name], partitions=1)
    return name


def send(info: StackInfo, topic: str, *values: bytes, codec: str) -> None:
    """Produce messages as one batch."""
    told = {"message.max.bytes": 1_000_000_000, "batch.size": 1_000_000_000, "linger.ms": 500}
    producer = Producer({**info.kafka, **told, "compression.type": codec})
    for value in values:
        producer.produce(topic, value, b"key", partition=0, headers=[("name", b"text"), ("none", None)])
    assert producer.flush(60) == 0


def read(info: StackInfo, topic: str, offset: int, *, one_batch: bool = False) -> Sequence[int]:
    at = TopicPartition(topic, 0, offset)
    return [m.offset() or 0 for m in read_limited(info.kafka, "g", at, messages=1000, one_batch=one_batch)]


@pytest.mark.parametrize(("codec", "size"), [("lz4", 250_000_000), ("gzip", 250_000_000), ("snappy", 20_000_000)])
def test_huge_batch_ends_only_the_process_that_reads_it(info: StackInfo, topic: str, codec: str, size: int) -> None:
    send(info, topic, b"before", codec="none")
    send(info, topic, bytes(size), codec=codec)
    send(info, topic, b"after", codec="none")
    for one_batch in (False, True):
        with pytest.raises(TooLarge):
            read(info, topic, 1, one_batch=one_batch)
    assert end_of_large_batch(info.kafka, "g", TopicPartition(topic, 0, 1), nullcontext) == 2
    assert read(info, topic, 2) == [2]


def test_end_of_batch_is_exact_between_others_of_its_kind(info: StackInfo, topic: str) -> None:
    for _ in range(3):
        send(info, topic, *[bytes(40_000_000)] * 3, codec="lz4")
        send(info, topic, b"honest", codec="none")
    assert end_of_large_batch(info.kafka, "g", TopicPartition(topic, 0, 0), nullcontext) == 3
    assert end_of_large_batch(info.kafka, "g", TopicPartition(topic, 0, 4), nullcontext) == 7


def test_first_of_two_batches_is_read_although_the_second_is_huge(info: StackInfo, topic: str) -> None:
    send(info, topic, b"first", codec="none")
    send(info, topic, HUGE, codec="gzip")
    for _ in range(5):
        messages = read_limited(info.kafka, "g", TopicPartition(topic, 0, 0), messages=1, one_batch=True)
        assert [m.value() for m in messages] == [b"first"]


def test_messages_are_read_whole(info: StackInfo, topic: str) -> None:
    send(info, topic, b"", b"x" * (1 << 20), codec="lz4")
    send(info, topic, *[b"%d" % n for n in range(300)], codec="gzip")
    read = list(read_limited(info.kafka, "g", TopicPartition(topic, 0, 0), messages=1000))
    assert [len(m.value() or b"") for m in read[:2]] == [0, 1 << 20]
    assert [m.value() for m in read[2:]] == [b"%d" % n for n in range(300)]
    assert {m.key() for m in read} == {b"key"}
    assert read[0].headers() == [("name", b"text"), ("none", None)]
    assert all(m.timestamp()[1] > 0 for m in read)
