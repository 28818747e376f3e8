"""Up to where the timers of each shard are done with, so that no look walks over what was moved long ago.

A moved timer leaves an entry in the index that vacuum takes away, unless a transaction is open somewhere in the
database: then each look from the very start would walk over every timer that has fired since. A mark lies a second
below the clock and below whatever is still there, for a transaction may commit a timer that is due sooner; what is due
earlier still (a pause that ended, a clock that jumped back) is found by a walk from the start, once a second at most.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta

from tidewheel.clock import monotonic_seconds

EVER = datetime.min.replace(tzinfo=UTC)

_LATE_COMMIT = timedelta(seconds=1)
_WALK_SECONDS = 1.0
_WALK_SHARE = 20  # walks take at most one of so many parts of the time


class Marks:
    """The marks of the shards that one kind of look is at."""

    def __init__(self) -> None:
        self._marks: dict[int, datetime] = {}
        self._next_walk = self._begun = 0.0
        self._walking = False

    def begin(self, shards: Sequence[int]) -> list[datetime]:
        """From where to look at each of these shards now."""
        self._begun = monotonic_seconds()
        self._walking = self._begun >= self._next_walk
        return [EVER if self._walking else self._marks.get(shard, EVER) for shard in shards]

    def saw(self, earliest: Mapping[int, datetime | None], now: datetime) -> None:
        """What that look has found: the earliest timer of each shard, by the database's clock."""
        if self._walking:
            ended = monotonic_seconds()
            self._next_walk = ended + max(_WALK_SECONDS, (ended - self._begun) * _WALK_SHARE)
        for shard, at in earliest.items():
            self._marks[shard] = min(at or now, now) - _LATE_COMMIT

    def of(self, shards: Sequence[int]) -> dict[int, datetime]:
        """The marks of these shards, for the statement that locks what is due."""
        return {shard: self._marks.get(shard, EVER) for shard in shards}
