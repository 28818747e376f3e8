"""The consumer of replies, completions and dead letters, from the start: an ordinary Kafka client."""

import threading
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Self

from confluent_kafka import Consumer, Message

from tidewheel.errors import UndecodableMessage
from tidewheel.kafka.topics import Topics
from tidewheel.schemas.codec import decode
from tidewheel.schemas.generated.records import DeadLetter, Reply, RunCompleted

_POLL_SECONDS = 0.2
_MAX_MESSAGES = 500


@dataclass(slots=True)
class Read:
    """The first copy of each record, by request, run and event; `changed` names repeats that differ."""

    replies: dict[tuple[int, int], Reply] = field(default_factory=dict[tuple[int, int], Reply])
    runs: dict[str, RunCompleted] = field(default_factory=dict[str, RunCompleted])
    dead_letters: dict[str, DeadLetter] = field(default_factory=dict[str, DeadLetter])
    repeats: int = 0
    changed: list[str] = field(default_factory=list[str])
    unreadable: list[str] = field(default_factory=list[str])


class RecordConsumer:
    """A consumer on its own thread; a context manager."""

    def __init__(self, kafka: Mapping[str, str]) -> None:
        self._topics = Topics()
        self._consumer = Consumer(
            {
                **kafka,
                "group.id": "tidewheel-demo",
                "client.id": "tidewheel-demo",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "fetch.wait.max.ms": 50,
                "log_level": 2,
            }
        )
        self._read = Read()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="demo-consumer", daemon=True)

    def __enter__(self) -> Self:
        self._consumer.subscribe([self._topics.replies, self._topics.completions, self._topics.dead_letters])
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join(timeout=10)
        self._consumer.close()

    def read(self) -> Read:
        """Return a copy of the records so far."""
        with self._lock:
            known = self._read
            return Read(
                dict(known.replies), dict(known.runs), dict(known.dead_letters), known.repeats,
                deepcopy(known.changed), deepcopy(known.unreadable),
            )  # fmt: skip

    def _run(self) -> None:
        while not self._stop.is_set():
            messages = self._consumer.consume(_MAX_MESSAGES, _POLL_SECONDS)
            with self._lock:
                for message in messages:
                    if message.error() is None:
                        self._take(message)

    def _take(self, message: Message) -> None:
        topic, value, read = message.topic(), message.value(), self._read
        data = value if isinstance(value, bytes) else b""
        try:
            if topic == self._topics.replies:
                reply = decode(data, Reply)
                if reply.origin is not None:
                    read.replies.setdefault((reply.origin.partition, reply.origin.offset), reply)
            elif topic == self._topics.completions:
                event = decode(data, RunCompleted)
                read.repeats += event.run_id in read.runs
                if read.runs.setdefault(event.run_id, event) != event:
                    read.changed.append(f"run {event.run_id} has two completion events with different contents")
            else:
                letter = decode(data, DeadLetter)
                read.dead_letters.setdefault(letter.event_id, letter)
        except UndecodableMessage as error:
            read.unreadable.append(f"{topic}: {error}")
