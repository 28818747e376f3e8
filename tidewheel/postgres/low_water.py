"""Up to where what is due is done with, so that no look walks over what has gone long ago.

What is eaten from the front of an index leaves entries there that vacuum takes away, unless a transaction is open
somewhere in the database: then each look from the very start would walk over everything since. A mark lies a second
below the clock and below whatever is still there, for a transaction may commit what is due sooner; what is due earlier
still (a pause that ended, a clock that jumped back) is found by a walk from the start, once a second at most and for no
more than a twentieth of the time. A walk that takes long is made in parts, so that nothing waits long for any of them.
"""

import sys
from collections.abc import Hashable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, Generic, TypeVar

from tidewheel.clock import monotonic_seconds

EVER = datetime.min.replace(tzinfo=UTC)

K = TypeVar("K", bound=Hashable)

LATE_COMMIT: Final = timedelta(seconds=1)  # between a transaction's clock reading and its commit; later ones are late
_QUICK_SECONDS = 0.1  # a pause that nobody minds: latency at its 99th percentile may be 60 ms (docs/performance.md)


class Marks(Generic[K]):
    """The marks of one kind of look: of shards, or of queues and lanes."""

    def __init__(self) -> None:
        self._marks: dict[K, datetime] = {}
        self._walks = Walks()
        self._most = sys.maxsize  # of them that are walked in one look: fewer, when that takes long
        self._line: list[K] = []  # whose turn comes first

    def begin(self, keys: Sequence[K]) -> list[datetime]:
        """From where to look at each of these now."""
        walked = self._next(keys) if self._walks.begin() else frozenset[K]()
        return [EVER if key in walked else self._marks.get(key, EVER) for key in keys]

    def _next(self, keys: Sequence[K]) -> frozenset[K]:
        self._most = max(min(self._most, len(keys)), 1)
        self._most = max(self._most // 2, 1) if self._walks.slow else self._most * 2
        line = [*self._line, *(key for key in keys if key not in self._line)]
        walked = [key for key in line if key in keys][: self._most]
        self._line = [*(key for key in line if key not in walked), *walked]
        return frozenset(walked)

    def woken(self) -> None:
        """Somebody has written something: it may be due already, and then nobody is to wait a second for it."""
        self._walks.hurry()

    def saw(self, earliest: Mapping[K, datetime | None], now: datetime) -> None:
        """What that look has found: the earliest of each, by the database's clock."""
        self._walks.ended()
        for key, at in earliest.items():
            self._marks[key] = min(at or now, now) - LATE_COMMIT

    def of(self, keys: Iterable[K]) -> dict[K, datetime]:
        """The marks of these, for the statement that takes what is due."""
        return {key: self._marks.get(key, EVER) for key in keys}


class Walks:
    """When to look at everything again: every so often, and for a twentieth of the time at most.

    A walk meets all that has gone and that vacuum cannot take away yet: it may take any time.

    Args:
        every_seconds: From the end of one to the next, when they are quick.
        at_once: Whether the first need not wait for that.
        share: They take at most one of so many parts of the time.
    """

    def __init__(self, every_seconds: float = 1.0, *, at_once: bool = True, share: int = 20) -> None:
        self._every_seconds, self._share = every_seconds, share
        self._next = 0.0 if at_once else monotonic_seconds() + every_seconds
        self._allowed = self._began = 0.0
        self._walking = False
        self._seconds = 0.0

    @property
    def slow(self) -> bool:
        """Whether the last one took so long that the next is better made in parts, or beside what waits for it."""
        return self._seconds > _QUICK_SECONDS

    @property
    def pause_seconds(self) -> float:
        """From the end of the last one to the next."""
        return max(self._every_seconds, self._seconds * self._share)

    def begin(self) -> bool:
        """A look begins; returns whether it is to be a walk, and is one until it has `ended`."""
        now = monotonic_seconds()
        if self._walking:  # it has failed; that may have been for the time that it took
            self._seconds = max(now - self._began, self._seconds)
        self._began = now
        self._walking = now >= self._next
        return self._walking

    def ended(self) -> None:
        """That look is over; nothing where it was no walk. One that fails does not end, and is due again at once."""
        if self._walking:
            self.took(monotonic_seconds() - self._began)

    def took(self, seconds: float, *, whole: bool = True) -> None:
        """A walk is over that took so long, or a part of one."""
        ended = monotonic_seconds()
        allowed = ended + seconds * self._share
        self._seconds = seconds if whole else max(seconds, self._seconds)
        self._allowed = allowed if whole else max(allowed, self._allowed)
        self._next = max(ended + self._every_seconds, self._allowed)
        self._walking = False

    def hurry(self) -> None:
        """Let the next look be one, unless they have had their share of the time."""
        self._next = self._allowed
