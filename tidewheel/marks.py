"""Up to where what is due is done with, so that no look walks over what has gone long ago.

What is eaten from the front of an index leaves entries there that vacuum takes away, unless a transaction is open
somewhere in the database: then each look from the very start would walk over everything since. A mark lies a second
below the clock and below whatever is still there, for a transaction may commit what is due sooner; what is due earlier
still (a pause that ended, a clock that jumped back) is found by a walk from the start, once a second at most and for no
more than a twentieth of the time.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Generic, TypeVar

from tidewheel.clock import monotonic_seconds

EVER = datetime.min.replace(tzinfo=UTC)

K = TypeVar("K", bound=Hashable)

_LATE_COMMIT = timedelta(seconds=1)
_WALK_SECONDS = 1.0
WALK_SHARE = 20  # walks take at most one of so many parts of the time


class Marks(Generic[K]):
    """The marks of one kind of look: of shards, or of queues and lanes."""

    def __init__(self) -> None:
        self._marks: dict[K, datetime] = {}
        self._next_walk = self._may_walk = self._begun = 0.0
        self._walking = False

    def begin(self, keys: Sequence[K]) -> list[datetime]:
        """From where to look at each of these now."""
        self._begun = monotonic_seconds()
        self._walking = self._begun >= self._next_walk
        return [EVER if self._walking else self._marks.get(key, EVER) for key in keys]

    def woken(self) -> None:
        """Somebody has written something: it may be due already, and then nobody is to wait a second for it."""
        self._next_walk = self._may_walk

    def saw(self, earliest: Mapping[K, datetime | None], now: datetime) -> None:
        """What that look has found: the earliest of each, by the database's clock."""
        if self._walking:
            ended = monotonic_seconds()
            self._may_walk = ended + (ended - self._begun) * WALK_SHARE
            self._next_walk = max(ended + _WALK_SECONDS, self._may_walk)
        for key, at in earliest.items():
            self._marks[key] = min(at or now, now) - _LATE_COMMIT

    def of(self, keys: Iterable[K]) -> dict[K, datetime]:
        """The marks of these, for the statement that takes what is due."""
        return {key: self._marks.get(key, EVER) for key in keys}
