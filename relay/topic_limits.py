"""Postpone rows that a topic does not accept for their size, each topic by itself.

The producer has accepted the row, so Tidewheel's own limit has too: an operator has lowered the topic's
`max.message.bytes`. No row is the cause. Rows of that size wait, up to 30 s between two tries, and smaller ones leave.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from tidewheel.clock import monotonic_seconds
from tidewheel.process.faults import faults
from tidewheel.relay.due_rows import HEADERS, KEY, TOPIC, VALUE, DueRow

_FIRST_SECONDS, _LONGEST_SECONDS = 1.0, 30.0
_MARGIN_SECONDS = 0.1  # a postponed row is due a little after its topic is tried again
_QUIET_SECONDS = 5.0  # after the wait all rows are tried at once: without a refusal the topic accepts them


@dataclass(frozen=True, slots=True)
class _Limit:
    size: int  # the smallest that was refused since rows were tried last
    began: float
    until: float


class TopicLimits:
    """The topics of one publisher that have refused a row for its size."""

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
        seconds = min(max(now - began, _FIRST_SECONDS), _LONGEST_SECONDS)
        self._limits[topic] = _Limit(size, began, now + seconds)
        problem = f"{why}: a row of {size} bytes waits, though Tidewheel sends up to 1 MiB; smaller ones leave"
        faults.report(_work(topic), problem + "; raise the topic's max.message.bytes as docs/topics.md has it")

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
    return len(row[KEY] or b"") + len(row[VALUE] or b"") + sum(map(len, row[HEADERS] or ()))


def _work(topic: str) -> str:
    return f"publishing to {topic}"
