"""Back off from topics that do not exist or are not authorized, each by itself.

A busy broker does not know a topic for seconds after its creation. So the first pause is short, and later ones grow
while the topic keeps failing. Invariant: rows that were read before a pause are not produced during or after it,
because they would overtake the rows that were left behind.
"""

import logging
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from tidewheel.clock import monotonic_seconds
from tidewheel.kafka.topics import missing_topic_remedy

_LOG = logging.getLogger("tidewheel.relay")

_FIRST_SECONDS = 0.5
_MAX_SECONDS = 10.0  # the longest wait of a topic that has come into existence
_UNBROKEN_SECONDS = 600.0  # between two failures; after a longer gap (an outage of Kafka) the next is a first one


@dataclass(frozen=True, slots=True)
class _Pause:
    until: float
    seconds: float
    first: float
    last: float


class TopicBackoff:
    """The topics of one publisher that have failed and have not taken a message since."""

    def __init__(self) -> None:
        self._pauses: dict[str, _Pause] = {}
        self._failed_since_read: set[str] = set()
        self._retried: set[str] = set()

    def paused_topics(self) -> list[str]:
        """Return the topics whose rows must not be read now; call it before each read."""
        now = monotonic_seconds()
        self._failed_since_read.clear()
        return [topic for topic, pause in self._pauses.items() if pause.until > now]

    def failing_topics(self, seconds: float) -> Collection[str]:
        """Return the topics whose tries have all failed for so long."""
        return [topic for topic, pause in self._pauses.items() if pause.last - pause.first >= seconds]

    def usable(self, topics: Iterable[str]) -> set[str]:
        """Return the topics that may be produced to: those that have not failed since their rows were read."""
        usable = set(topics) - self._failed_since_read
        self._retried = usable & self._pauses.keys()
        return usable

    def may_follow(self, topic: str) -> bool:
        """Return True if no row of a topic was left behind since rows were read last."""
        return topic not in self._failed_since_read

    def back_off(self, topic: str, why: str) -> None:
        """Pause a topic, longer each time; do nothing when it is paused already."""
        now, previous = monotonic_seconds(), self._pauses.get(topic)
        self._failed_since_read.add(topic)
        self._retried.discard(topic)
        if previous is not None and previous.until > now:
            return
        seconds = _FIRST_SECONDS if previous is None else min(2 * previous.seconds, _MAX_SECONDS)
        first = now if previous is None or now - previous.last > _UNBROKEN_SECONDS else previous.first
        self._pauses[topic] = _Pause(now + seconds, seconds, first, now)
        if previous is None or seconds == _MAX_SECONDS:
            remedy = missing_topic_remedy(topic)
            _LOG.error("topic %s is paused: %s; run `%s`, or grant WRITE", topic, why, remedy)

    def reset_retried(self) -> None:
        """Forget the failures of the topics that were retried last: they have taken their messages."""
        for topic in self._retried:
            self._pauses.pop(topic, None)
        self._retried.clear()
