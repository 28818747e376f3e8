"""The consumer of replies, completions and dead letters, from the start: an ordinary Kafka client."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from confluent_kafka import Consumer

from tidewheel.kafka.topics import Topics
from tidewheel.schemas.codec import decode
from tidewheel.schemas.generated.records import DeadLetter, Reply, ReplyStatus, RunCompleted

_MAX_MESSAGES = 1000
_TOPICS = Topics()


@dataclass(slots=True)
class Seen:
    """The first copy of each record, by request, run and event; `changed` names runs whose repeat differs."""

    replies: dict[tuple[int, int], Reply] = field(default_factory=dict[tuple[int, int], Reply])
    ends: dict[str, RunCompleted] = field(default_factory=dict[str, RunCompleted])
    dead_letters: dict[str, DeadLetter] = field(default_factory=dict[str, DeadLetter])
    repeats: int = 0
    changed: list[str] = field(default_factory=list[str])

    @property
    def rejections(self) -> list[Reply]:
        """The replies to malformed requests."""
        return [reply for reply in self.replies.values() if reply.status is not ReplyStatus.ACCEPTED]

    def take(self, topic: str, value: bytes) -> None:
        """Add a message; raise UndecodableMessage if it has no record of its topic."""
        if topic == _TOPICS.replies:
            reply = decode(value, Reply)
            if reply.origin is not None:
                self.replies.setdefault((reply.origin.partition, reply.origin.offset), reply)
        elif topic == _TOPICS.completions:
            end = decode(value, RunCompleted)
            self.repeats += end.run_id in self.ends
            if self.ends.setdefault(end.run_id, end) != end:
                self.changed.append(end.run_id)
        else:
            letter = decode(value, DeadLetter)
            self.dead_letters.setdefault(letter.event_id, letter)


class RecordConsumer:
    """The client; a context manager. `seen` has what it has read."""

    def __init__(self, kafka: Mapping[str, str]) -> None:
        self.seen = Seen()
        own = {"group.id": "tidewheel-demo", "auto.offset.reset": "earliest", "enable.auto.commit": False}
        self._client = Consumer({**kafka, **own, "fetch.wait.max.ms": 50, "log_level": 2})

    def __enter__(self) -> Self:
        self._client.subscribe([_TOPICS.replies, _TOPICS.completions, _TOPICS.dead_letters])
        return self

    def __exit__(self, *error: object) -> None:
        self._client.close()

    def read(self, seconds: float) -> None:
        """Read what comes within a time."""
        for message in self._client.consume(_MAX_MESSAGES, seconds):
            if message.error() is None:
                self.seen.take(message.topic() or "", message.value() or b"")
