"""Places of a tenant's runs in time, by a ring of buckets. Pure.

A tenant with a rate has so many places in each bucket of a second, or of a longer time below one a second. A run takes
a place in the first bucket from its own time on that has one. In its own bucket it becomes due at its own time. In a
later one it becomes due at its place, so that a backlog is due evenly. A timer that is written ahead takes a place of
its own time. It delays no trigger of this moment: one time of the next start, as a bucket of tokens has, would.
"""

import math
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from tidewheel.ids import micros

BUCKETS = 64
_SECOND = 1_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_REACH = 10  # buckets after the present that a backlog takes places in: the rest of it follows an edit of the rate


@dataclass(slots=True)
class Ring:
    """The places of one tenant that are taken.

    Args:
        first: The number of the first bucket, counted from 1970.
        used: The taken places of the buckets, from the first one on.
    """

    per_second: float
    first: int = 0
    used: list[int] = field(default_factory=lambda: [0] * BUCKETS)

    @property
    def width(self) -> int:
        """The microseconds of a bucket."""
        return max(1, math.ceil(1 / self.per_second)) * _SECOND

    def change_rate(self, per_second: float) -> None:
        """Apply a rate from now on: places that are taken stay taken, unless the buckets have another width."""
        width = self.width
        self.per_second = per_second
        if self.width != width:
            self.first, self.used = 0, [0] * BUCKETS

    def forget_past(self, now: datetime) -> None:
        """Begin with the bucket of this moment."""
        present = micros(now) // self.width
        gone = min(max(present - self.first, 0), BUCKETS)
        self.used = self.used[gone:] + [0] * gone
        self.first = max(self.first, present)

    def place(self, at: datetime, *, reach: int = _REACH, spaced: bool = False) -> datetime | None:
        """Take a place for a run that may become due at `at`; return the time at which it is due.

        Args:
            reach: The number of buckets after the first one in which a run that is delayed finds a place.
            spaced: True for a run that has waited: it is due at its place in its own bucket too.

        Returns:
            None if no bucket within reach has a place.
        """
        own = max(micros(at) // self.width - self.first, 0)
        for bucket in range(own, min(max(own + 1, reach + 1), BUCKETS)):
            room = self._places(bucket)
            if self.used[bucket] < room:
                self.used[bucket] += 1
                if bucket == own and not spaced:
                    return at
                start = (self.first + bucket) * self.width
                due = start + (self.used[bucket] - 1) * self.width // room
                return max(at, _EPOCH + timedelta(microseconds=due))
        return None

    def _places(self, bucket: int) -> int:
        """Return the places of a bucket; a rate of 2.5 a second has two and three in turn."""
        a_bucket = self.per_second * self.width / _SECOND
        number = self.first + bucket
        return math.floor((number + 1) * a_bucket) - math.floor(number * a_bucket)
