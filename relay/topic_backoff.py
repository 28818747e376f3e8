"""Topics that are left alone for a while, because they are not there or not allowed: alone, and not the others.

A topic that was made a moment ago is unknown to a busy broker for seconds. So the first pause is short, and they grow
while a topic gives trouble. Invariant: once a topic is parked, nothing is produced to it that was read before, for that
would overtake what was left.
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass

from tidewheel.clock import monotonic_seconds

_LOG = logging.getLogger("tidewheel.relay")

_FIRST_SECONDS = 0.5
_LONGEST_SECONDS = 10.0  # a topic that is there at last is served this soon after


@dataclass(frozen=True, slots=True)
class _Parked:
    until: float
    seconds: float


class Parking:
    """The topics of one publisher that have given trouble and were not served since."""

    def __init__(self) -> None:
        self._parked: dict[str, _Parked] = {}
        self._since_asked: set[str] = set()
        self._tried: set[str] = set()

    def ask(self) -> list[str]:
        """Those whose rows are not to be read now; asked before each read."""
        now = monotonic_seconds()
        self._since_asked.clear()
        return [topic for topic, parked in self._parked.items() if parked.until > now]

    def try_others(self, topics: Iterable[str]) -> set[str]:
        """Which of these topics may be produced to: not those that were parked after their rows had been read."""
        others = set(topics) - self._since_asked
        self._tried = others & self._parked.keys()
        return others

    def may_follow(self, topic: str) -> bool:
        """Whether nothing was left of a topic since rows were read last."""
        return topic not in self._since_asked

    def park(self, topic: str, why: str) -> None:
        """Leave a topic alone for a while, longer each time; nothing when it is parked already."""
        now, before = monotonic_seconds(), self._parked.get(topic)
        self._since_asked.add(topic)
        self._tried.discard(topic)
        if before is not None and before.until > now:
            return
        seconds = _FIRST_SECONDS if before is None else min(2 * before.seconds, _LONGEST_SECONDS)
        self._parked[topic] = _Parked(now + seconds, seconds)
        if before is None or seconds == _LONGEST_SECONDS:
            _LOG.error("topic %s is parked: %s; run `tidewheel topics apply`, or grant WRITE", topic, why)

    def served(self) -> None:
        """Those tried last have taken what they were given: should they give trouble again, it is the first time."""
        for topic in self._tried:
            self._parked.pop(topic, None)
        self._tried.clear()
