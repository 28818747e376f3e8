"""Back off from topics that refuse rows.

A busy broker does not know a topic for seconds after its creation. So the first pause is short, and later ones grow
while the topic keeps failing. Invariant: rows that were read before a pause are not produced during or after it,
because they would overtake the rows that were left behind.
"""

import logging
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta

from tidewheel.clock import monotonic_seconds
from tidewheel.kafka.topics import missing_topic_remedy
from tidewheel.process.logs import faults
from tidewheel.relay.outbox_rows import HEADERS, KEY, TOPIC, VALUE, DueRow

_LOG = logging.getLogger("tidewheel.relay")

_FIRST_SECONDS = 0.5
_MAX_SECONDS = 10.0  # the longest wait of a topic that has come into existence
_UNBROKEN_SECONDS = 600.0  # between two failures; after a longer gap (an outage of Kafka) the next is a first one

_FIRST_WAIT_SECONDS, _LONGEST_WAIT_SECONDS = 1.0, 30.0
_MARGIN_SECONDS = 0.1  # a postponed row is due a little after its topic is tried again
_QUIET_SECONDS = 5.0  # after the wait all rows are tried at once: without a refusal the topic accepts them


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


@dataclass(frozen=True, slots=True)
class _Limit:
    size: int  # the smallest that was refused since rows were tried last
    began: float
    until: float


class TopicLimits:
    """The topics of one publisher that have refused a row for its size.

    The producer has accepted the row, so Tidewheel's own limit has too: an operator has lowered the topic's
    `max.message.bytes`. No row is the cause. Rows of that size wait, up to 30 s between two tries, and smaller ones
    leave.
    """

    def __init__(self) -> None:
        self._limits: dict[str, _Limit] = {}

    def in_force(self) -> Mapping[str, int]:
        """Return the size that each topic refuses now: rows of that size are not tried."""
        now = monotonic_seconds()
        return {topic: limit.size for topic, limit in self._limits.items() if limit.until > now}

    def refuse(self, row: DueRow, why: str) -> None:
        """Record that a topic refuses a row alone for its size, and report it."""
        topic, size, now = row[TOPIC], size_of(row), monotonic_seconds()
        known = self._limits.get(topic)
        if known is not None and known.until > now:
            self._limits[topic] = _Limit(min(size, known.size), known.began, known.until)
            return
        began = now if known is None else known.began
        seconds = min(max(now - began, _FIRST_WAIT_SECONDS), _LONGEST_WAIT_SECONDS)
        self._limits[topic] = _Limit(size, began, now + seconds)
        problem = f"{why}: a message of {size} bytes waits (Tidewheel's limit is 1 MiB), smaller messages do not"
        faults.report(_work(topic), problem + "; raise the topic's max.message.bytes as docs/topics.md describes")

    def pause(self, topic: str) -> timedelta:
        """Return the time until rows that are too large for a topic are due again."""
        limit = self._limits.get(topic)
        left = 0.0 if limit is None else max(limit.until - monotonic_seconds(), 0.0)
        return timedelta(seconds=left + _MARGIN_SECONDS)

    def settle(self) -> None:
        """Report that it is over for each topic that has refused no row since its wait has ended."""
        now = monotonic_seconds()
        for topic in [topic for topic, limit in self._limits.items() if now > limit.until + _QUIET_SECONDS]:
            del self._limits[topic]
            faults.clear(_work(topic))


def size_of(row: DueRow) -> int:
    """Return the bytes of a row's key, value and headers, before compression."""
    return len(row[KEY] or b"") + len(row[VALUE] or b"") + sum(len(part or b"") for part in row[HEADERS] or ())


def _work(topic: str) -> str:
    return f"publishing to {topic}"
