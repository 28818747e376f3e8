"""The consumer of replies, completions and dead letters, from the start: an ordinary Kafka client."""

from collections.abc import Mapping
from dataclasses import dataclass, field

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

    def read(self, client: Consumer, seconds: float) -> None:
        """Add what comes within a time; raise UndecodableMessage if a message has no record of its topic."""
        for message in client.consume(_MAX_MESSAGES, seconds):
            if message.error() is None:
                self._take(message.topic() or "", message.value() or b"")

    def _take(self, topic: str, value: bytes) -> None:
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


def consumer(kafka: Mapping[str, str]) -> Consumer:
    """Return a client that reads the three topics from their beginning."""
    own = {"group.id": "tidewheel-demo", "auto.offset.reset": "earliest", "enable.auto.commit": False}
    client = Consumer({**kafka, **own, "fetch.wait.max.ms": 50, "log_level": 2})
    client.subscribe([_TOPICS.replies, _TOPICS.completions, _TOPICS.dead_letters])
    return client
