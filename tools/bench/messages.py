"""Plain producing, consuming and counting, with the settings of Tidewheel's own clients."""

import threading
import time
from collections.abc import Iterable
from concurrent.futures import Future
from typing import Protocol, cast

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]  # its stub re-exports none of these

from tidewheel.clock import monotonic_seconds
from tidewheel.kafka.clients import consumer, producer
from tools.bench.environment import Environment
from tools.bench.measurement import Incomplete

STALL_SECONDS = 60.0  # without progress
_KAFKA_SECONDS = 30.0
_POLL_SECONDS = 0.5  # each poll is work for the broker
_NO_LEADER = frozenset({KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE, KafkaError._NOENT})

Made = tuple[bytes | None, bytes]
"""The key and the value of a message."""


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
    assert client.flush(2 * _KAFKA_SECONDS) == 0


def reader(environment: Environment, topic: str) -> Consumer:
    """Return a consumer of all partitions of a topic from their beginning, without a group."""
    group = f"{environment.topics.prefix}.reader"
    client = consumer(environment.kafka, group=group, role="bench", protocol="classic")
    partitions = client.list_topics(topic, timeout=_KAFKA_SECONDS).topics[topic].partitions
    client.assign([TopicPartition(topic, number, 0) for number in partitions])
    return client


class _Offset(Protocol):
    offset: int
    timestamp: int  # in milliseconds, where the newest message was requested


class Ends:
    """Counts the messages of one topic.

    Raises KafkaException if a partition has no leader for half a minute.
    """

    def __init__(self, environment: Environment, topic: str) -> None:
        self._admin = AdminClient({**environment.kafka, "client.id": "tidewheel-bench", "log_level": 2})
        numbers = self._admin.list_topics(topic, timeout=_KAFKA_SECONDS).topics[topic].partitions
        self._partitions = [TopicPartition(topic, number) for number in numbers]
        self._latest = cast("OffsetSpec", OffsetSpec.latest())  # type: ignore[no-untyped-call]
        self._newest = cast("OffsetSpec", OffsetSpec.max_timestamp())  # type: ignore[no-untyped-call]

    def count(self) -> int:
        """Return the number of messages in the topic."""
        return sum(each.offset for each in self._read(self._latest))

    def last_seconds(self) -> float:
        """Return the time of the newest message in seconds."""
        return max(each.timestamp for each in self._read(self._newest)) / 1000

    def watch(self, wanted: int) -> list[tuple[float, int]]:
        """Wait until so many are there; returns how many there were when."""
        seen = [(time.time(), self.count())]
        since = monotonic_seconds()
        while seen[-1][1] < wanted:
            threading.Event().wait(_POLL_SECONDS)
            before = seen[-1][1]
            seen.append((time.time(), self.count()))
            since = monotonic_seconds() if seen[-1][1] > before else since
            if monotonic_seconds() - since > STALL_SECONDS:
                message = f"{seen[-1][1]:,} of {wanted:,} completion events, and none for {STALL_SECONDS:.0f} s"
                raise Incomplete(message)
        return seen

    def _read(self, spec: OffsetSpec) -> list[_Offset]:
        give_up = monotonic_seconds() + _KAFKA_SECONDS
        while True:
            listed = self._admin.list_offsets(dict.fromkeys(self._partitions, spec), request_timeout=_KAFKA_SECONDS)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
            try:
                return [each.result() for each in cast("dict[TopicPartition, Future[_Offset]]", listed).values()]
            except KafkaException as error:
                # A busy broker reports a leader in its metadata before the partition serves requests.
                if error.args[0].code() not in _NO_LEADER or monotonic_seconds() >= give_up:
                    raise
            threading.Event().wait(_POLL_SECONDS)
