"""Plain producing and consuming, with the settings of Tidewheel's own clients."""

import time
from collections.abc import Iterable, Sequence
from uuid import uuid4

from confluent_kafka import Consumer, Producer, TopicPartition

from tidewheel.kafka.clients import consumer, producer
from tools.bench.environment import Environment

_KAFKA_SECONDS = 60.0

Made = tuple[bytes | None, bytes]
"""The key and the value of a message."""


def now_seconds() -> float:
    """Return this machine's clock, which the broker's timestamps and the handlers' starts are of."""
    return time.time()


def sender(environment: Environment) -> Producer:
    """Return a producer that delays no message."""
    return producer(environment.kafka, role="bench-requests", linger_ms=0)


def produce(client: Producer, topic: str, messages: Iterable[Made]) -> None:
    """Produce messages and wait for all acknowledgements."""
    for key, value in messages:
        while True:
            try:
                client.produce(topic, key=key, value=value)
                break
            except BufferError:
                client.poll(0.01)
    assert client.flush(_KAFKA_SECONDS) == 0


def reader(environment: Environment, topics: Sequence[str]) -> Consumer:
    """Return a consumer of all partitions of some topics from their beginning, without a group."""
    group = f"{environment.prefix}.reader-{uuid4().hex[:8]}"
    client = consumer(environment.kafka, group=group, role="bench", protocol="classic")
    known = client.list_topics(timeout=_KAFKA_SECONDS).topics
    client.assign([TopicPartition(topic, number, 0) for topic in topics for number in known[topic].partitions])
    return client


def ends(environment: Environment, topics: Sequence[str]) -> int:
    """Return the number of messages in some topics."""
    client = reader(environment, topics)
    total = sum(client.get_watermark_offsets(each, _KAFKA_SECONDS)[1] for each in client.assignment())
    client.close()
    return total
