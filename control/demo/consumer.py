"""Consume replies, completions, lifecycle events and dead letters, from the start."""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from confluent_kafka import Consumer, Message

from tidewheel.clock import Clock
from tidewheel.errors import UndecodableMessage
from tidewheel.kafka.topics import Topics
from tidewheel.schemas.codec import decode
from tidewheel.schemas.generated.records import DeadLetter, LifecycleEvent, Reply, RunCompleted

_POLL_SECONDS = 0.2
_MAX_MESSAGES = 500


@dataclass(slots=True)
class Read:
    """All consumed records with repeats, each list in order of arrival.

    Args:
        replies: Replies with the instant of reading.
        completions: One event per terminal run.
        events: Lifecycle events of jobs.
        dead_letters: Dead letters of failed runs.
        unreadable: Messages that could not be decoded, in words.
    """

    replies: list[tuple[datetime, Reply]] = field(default_factory=list[tuple[datetime, Reply]])
    completions: list[RunCompleted] = field(default_factory=list[RunCompleted])
    events: list[LifecycleEvent] = field(default_factory=list[LifecycleEvent])
    dead_letters: list[DeadLetter] = field(default_factory=list[DeadLetter])
    unreadable: list[str] = field(default_factory=list[str])


class RecordConsumer:
    """A consumer on its own thread.

    Args:
        config: Bootstrap servers and the user's client settings.
        topics: The topic names.
        clock: The clock that stamps replies.
    """

    def __init__(self, config: Mapping[str, str], topics: Topics, clock: Clock) -> None:
        self._topics, self._clock = topics, clock
        self._consumer = Consumer(
            {
                **config,
                "group.id": f"{topics.prefix}-demo",
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

    def start(self) -> None:
        """Subscribe and start to consume."""
        topics = self._topics
        self._consumer.subscribe([topics.replies, topics.completions, topics.events, topics.dead_letters])
        self._thread.start()

    def close(self) -> None:
        """Stop consuming."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(timeout=10)
        self._consumer.close()

    def read(self) -> Read:
        """Return a copy of the records so far."""
        with self._lock:
            known = self._read
            return Read(
                list(known.replies),
                list(known.completions),
                list(known.events),
                list(known.dead_letters),
                list(known.unreadable),
            )

    def _run(self) -> None:
        while not self._stop.is_set():
            messages = self._consumer.consume(_MAX_MESSAGES, _POLL_SECONDS)
            with self._lock:
                for message in messages:
                    if message.error() is None:
                        self._take(message)

    def _take(self, message: Message) -> None:
        topic, value = message.topic(), message.value()
        data = value if isinstance(value, bytes) else b""
        try:
            if topic == self._topics.replies:
                self._read.replies.append((self._clock.now(), decode(data, Reply)))
            elif topic == self._topics.completions:
                self._read.completions.append(decode(data, RunCompleted))
            elif topic == self._topics.events:
                self._read.events.append(decode(data, LifecycleEvent))
            else:
                self._read.dead_letters.append(decode(data, DeadLetter))
        except UndecodableMessage as error:
            self._read.unreadable.append(f"{topic}: {error}")
