"""`conservation`: waiting time of work while a slot is free, on 2 executors of 4 slots.

The baseline is the same work on a plain consumer group: 4 at a time for each consumer, one at a time for each
partition, offsets committed after the work.

There are 16 partitions, and long and short work is mixed. Waste is computed from due, start and end of each piece.
"""

import asyncio
import json
import random
import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import cast
from uuid import uuid4

from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from tidewheel.bench.environment import Environment
from tidewheel.clock import monotonic_seconds
from tidewheel.postgres.session import Conn
from tidewheel.runs import Lane

_ENDED, _DUE, _BEGUN = range(3)  # in this order where they fall together


@dataclass(frozen=True, slots=True)
class Piece:
    """One piece of work, in seconds of one clock."""

    due: float
    begun: float
    ended: float


def wasted(pieces: Sequence[Piece], slots: int) -> dict[str, float]:
    """Compute the waiting time with a free slot, and the free slot-seconds with waiting work."""
    numbered = list(enumerate(pieces))
    events = sorted(
        [(piece.due, _DUE, number) for number, piece in numbered]
        + [(piece.begun, _BEGUN, number) for number, piece in numbered]
        + [(piece.ended, _ENDED, number) for number, piece in numbered]
    )
    waiting: set[int] = set()
    waited = [0.0] * len(pieces)
    running, idle_seconds, last = 0, 0.0, events[0][0]
    for at, what, number in events:
        free = slots - running
        if free > 0 and waiting:
            idle_seconds += min(free, len(waiting)) * (at - last)
            for each in waiting:
                waited[each] += at - last
        last = at
        if what == _DUE:
            waiting.add(number)
        else:
            waiting.discard(number)
            running += 1 if what == _BEGUN else -1
    waited.sort()
    return {
        "wait_while_free_p50_seconds": waited[len(waited) // 2],
        "wait_while_free_p99_seconds": waited[len(waited) * 99 // 100],
        "wait_while_free_max_seconds": waited[-1],
        "idle_slot_seconds_while_waiting": idle_seconds,
        "whole_wait_p99_seconds": sorted(piece.begun - piece.due for piece in pieces)[len(pieces) * 99 // 100],
    }


EXECUTORS, SLOTS, PARTITIONS = 2, 4, 16
LONG_SECONDS, SHORT_SECONDS = 30.0, 0.01
FEED_SECONDS = 240.0
LONG_LOAD = 0.6  # of all slots, on average: now and then all are taken, mostly some are free in one executor or both
SHORT_PER_SECOND = 5.0
_QUEUE = "mixed"
_GIVE_UP_SECONDS = 300.0

Arrival = tuple[float, float]  # after the start, and how long the work takes


def measure(environment: Environment) -> dict[str, float]:
    """The full scenario, Tidewheel's and the baseline's."""
    return compare(environment, arrivals(LONG_SECONDS, FEED_SECONDS))


def compare(environment: Environment, work: Sequence[Arrival]) -> dict[str, float]:
    """Give both the same work at the same pace."""
    own = wasted(_tidewheel(environment, work), EXECUTORS * SLOTS)
    plain = wasted(_plain_group(environment, work), EXECUTORS * SLOTS)
    return own | {f"baseline_{name}": value for name, value in plain.items()}


def arrivals(long_seconds: float, feed_seconds: float, seed: int = 7) -> list[Arrival]:
    """Long and short work at random instants."""
    rng = random.Random(seed)  # noqa: S311 - the same work for both
    long_per_second = LONG_LOAD * EXECUTORS * SLOTS / long_seconds
    found: list[Arrival] = []
    for per_second, seconds in ((long_per_second, long_seconds), (SHORT_PER_SECOND, SHORT_SECONDS)):
        at = rng.expovariate(per_second)
        while at < feed_seconds:
            found.append((at, seconds))
            at += rng.expovariate(per_second)
    return sorted(found)


def _tidewheel(environment: Environment, work: Sequence[Arrival]) -> list[Piece]:
    topics = environment.installation.topics
    _make_topics(environment, [topics.runs(_QUEUE, lane) for lane in Lane])
    executor = ["executor", "--handlers", "tidewheel.bench.handlers", "--queues", _QUEUE, "--slots", str(SLOTS)]
    producer = Producer({**environment.kafka, "linger.ms": 0})
    job = {"key": "mixed", "schedule": "manual", "target": "sleep", "queue": _QUEUE}
    producer.produce(topics.requests, key=b"mixed", value=json.dumps({"type": "job.submit", "job": job}).encode())
    producer.flush()
    with environment.services(["intake"], ["relay"], *[executor] * EXECUTORS), environment.connect() as connection:
        connection.autocommit = True
        _await(connection, f"SELECT (SELECT count(*) FROM executors) = {EXECUTORS} AND EXISTS (TABLE jobs)")  # noqa: S608
        threading.Event().wait(5)  # groups are formed
        started = monotonic_seconds()
        for at, seconds in work:
            threading.Event().wait(max(0.0, started + at - monotonic_seconds()))
            trigger = {"type": "job.trigger", "key": "mixed", "payload": seconds}
            producer.produce(topics.requests, key=b"mixed", value=json.dumps(trigger).encode())
            producer.poll(0)
        producer.flush()
        _await(connection, f"SELECT count(*) = {len(work)} FROM runs WHERE state = 'succeeded'")  # noqa: S608
        rows = connection.execute(
            "SELECT extract(epoch FROM r.created_at)::float8, extract(epoch FROM a.started_at)::float8,"
            " extract(epoch FROM a.finished_at)::float8 FROM runs AS r JOIN ended_attempts AS a USING (run_id)"
        ).fetchall()
    assert len(rows) == len(work), "each was attempted once"
    return [Piece(*map(_number, row)) for row in rows]


def _plain_group(environment: Environment, work: Sequence[Arrival]) -> list[Piece]:
    topic = f"{environment.prefix}.plain-{uuid4().hex[:8]}"
    _make_topics(environment, [topic])
    done: list[Piece] = []
    consumers = [_PlainConsumer(environment.kafka, topic, done) for _ in range(EXECUTORS)]
    producer = Producer({**environment.kafka, "linger.ms": 0})
    threading.Event().wait(10)  # groups are formed
    started, rng = monotonic_seconds(), random.Random(11)  # noqa: S311 - spreads keys, guards nothing
    for at, seconds in work:
        threading.Event().wait(max(0.0, started + at - monotonic_seconds()))
        value = json.dumps([monotonic_seconds(), seconds]).encode()
        producer.produce(topic, key=rng.randbytes(16), value=value)
        producer.poll(0)
    producer.flush()
    deadline = monotonic_seconds() + _GIVE_UP_SECONDS
    while len(done) < len(work):
        assert monotonic_seconds() < deadline, f"{len(done)} of {len(work)} done"
        threading.Event().wait(0.2)
    for consumer in consumers:
        consumer.stop()
    return done


@dataclass
class _PlainConsumer:
    """A member of a plain consumer group that pauses a partition during its message's work."""

    kafka: dict[str, str]
    topic: str
    done: list[Piece]
    _stopped: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        client = Consumer(
            {
                **self.kafka,
                "group.id": self.topic,
                "group.protocol": "consumer",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
            }
        )
        client.subscribe([self.topic])
        free, ended = threading.Semaphore(SLOTS), list[Message]()
        with ThreadPoolExecutor(SLOTS) as pool:
            while not self._stopped.is_set():
                while ended:
                    message = ended.pop()
                    client.commit(message=message, asynchronous=True)
                    client.resume([TopicPartition(self.topic, message.partition() or 0)])
                if not free.acquire(timeout=0.01):
                    continue
                polled = client.poll(0.01)
                if polled is None or polled.error():
                    free.release()
                    continue
                client.pause([TopicPartition(self.topic, polled.partition() or 0)])
                pool.submit(self._work, polled, free, ended)
        client.close()

    def _work(self, message: Message, free: threading.Semaphore, ended: list[Message]) -> None:
        due, seconds = json.loads(message.value() or b"")
        begun = monotonic_seconds()
        asyncio.run(asyncio.sleep(seconds))
        self.done.append(Piece(due, begun, monotonic_seconds()))
        ended.append(message)
        free.release()


def _make_topics(environment: Environment, names: Sequence[str]) -> None:
    admin = AdminClient(dict(environment.kafka))
    made = cast("dict[str, Future[None]]", admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in names]))  # pyright: ignore[reportUnknownMemberType]
    for future in made.values():
        future.result(30)


def _await(connection: Conn, condition: str) -> None:
    deadline = monotonic_seconds() + _GIVE_UP_SECONDS
    while connection.execute(condition.encode()).fetchone() != (True,):
        assert monotonic_seconds() < deadline, condition
        threading.Event().wait(0.2)


def _number(value: object) -> float:
    assert isinstance(value, float)
    return value
