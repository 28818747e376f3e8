"""Where occurrences of days that are not open go under `next_business_day`: the same wall time of the next open day.

They are set into the zone as an entry of the schedule would be (`localise.py`): what falls into a gap of the clock is
made up after it, or not, and of two passes of an overlap the chosen one counts. An occurrence finds its new day within
`MOST_SHIFT_DAYS`, or it is left out: a calendar that has run out must not pour years into one day.
Instants and wall times are whole microseconds here: since 1970-01-01 UTC, and since 1970-01-01 00:00 on the wall.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from tidewheel.scheduler.recurrence.instants import at_microsecond, microseconds
from tidewheel.scheduler.recurrence.kinds import Schedule
from tidewheel.scheduler.recurrence.localise import Stretches
from tidewheel.scheduler.recurrence.open_days import DAY_SECONDS, OpenDays
from tidewheel.scheduler.recurrence.zones import FOREVER

MOST_SHIFT_DAYS = 366
"""Days: an occurrence goes no further than to the same season."""

_DAY = DAY_SECONDS * 1_000_000
_SECOND = 1_000_000
_TICK = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Shifts:
    """The occurrences that are shifted to a day.

    Args:
        schedule: What says when, on days that are not open too.
        days: Which days are open.
        stretches: How local times become instants.
        since: What lies at or before it is not shifted.
    """

    schedule: Schedule
    days: OpenDays
    stretches: Stretches
    since: datetime | None = None

    def first(self, day: int, after: datetime) -> datetime | None:
        """The first occurrence shifted to that open day, strictly later than an instant."""
        instant, sources = microseconds(after), self._sources(day)
        for low, made_up_until, high, offset, start in self._parts(day):
            if instant < start and self._of_sources(min, self._first_wall, sources, low, made_up_until) is not None:
                return at_microsecond(start)
            from_wall = max(made_up_until, instant + offset - day * _DAY + 1)
            wall = self._of_sources(min, self._first_wall, sources, from_wall, high)
            if wall is not None:
                return at_microsecond(day * _DAY + wall - offset)
        return None

    def last(self, day: int, before: datetime) -> datetime | None:
        """The last occurrence shifted to that open day, strictly earlier than an instant."""
        instant, sources = microseconds(before), self._sources(day)
        for low, made_up_until, high, offset, start in reversed(list(self._parts(day))):
            until_wall = min(high, instant + offset - day * _DAY)
            wall = self._of_sources(max, self._last_wall, sources, made_up_until, until_wall)
            if wall is not None:
                return at_microsecond(day * _DAY + wall - offset)
            if start < instant and self._of_sources(min, self._first_wall, sources, low, made_up_until) is not None:
                return at_microsecond(start)
        return None

    def _sources(self, day: int) -> list[int]:
        """The days whose occurrences are shifted to that one."""
        earlier = self.days.nearest(day - 1, -1, opens=True)
        first = day - MOST_SHIFT_DAYS if earlier is None else max(earlier + 1, day - MOST_SHIFT_DAYS)
        return list(range(first, day))

    def _parts(self, day: int) -> Iterator[tuple[int, int, int, int, int]]:
        """The stretches of local time that concern a day, ascending.

        Each is: wall time of the day from which times are made up, from which they count, until which; offset; the
        instant at which they are made up.
        """
        of, low_day, high_day = self.stretches, day * DAY_SECONDS, (day + 1) * DAY_SECONDS
        first = bisect_right(of.starts, low_day - DAY_SECONDS) - 1
        for index in range(first, bisect_right(of.starts, high_day + DAY_SECONDS)):
            low, high = max(of.entries[index], low_day), min(of.highs[index], high_day)
            if low < high:
                counts = min(max(of.lows[index], low), high)
                yield (
                    (low - low_day) * _SECOND,
                    (counts - low_day) * _SECOND,
                    (high - low_day) * _SECOND,
                    of.offsets[index] * _SECOND,
                    of.starts[index] * _SECOND,
                )

    def _of_sources(
        self,
        best: Callable[..., int | None],
        of: Callable[[int, int, int], int | None],
        sources: list[int],
        low: int,
        high: int,
    ) -> int | None:
        if low >= high:
            return None
        return best((wall for day in sources if (wall := of(day, low, high)) is not None), default=None)

    def _first_wall(self, day: int, low: int, high: int) -> int | None:
        """The first wall time of a day's occurrences in ``[low, high)``."""
        walls: list[int] = []
        for start, end, to_wall in self._ranges(day, low, high):
            at = at_microsecond(start)
            found = None if at is None else self.schedule.after(at - _TICK)
            if found is not None and microseconds(found) < end:
                walls.append(microseconds(found) + to_wall)
        return min(walls, default=None)

    def _last_wall(self, day: int, low: int, high: int) -> int | None:
        """The last wall time of a day's occurrences in ``[low, high)``."""
        walls: list[int] = []
        for start, end, to_wall in self._ranges(day, low, high):
            at = at_microsecond(end)
            found = None if at is None else self.schedule.before(at)
            if found is not None and microseconds(found) >= start:
                walls.append(microseconds(found) + to_wall)
        return max(walls, default=None)

    def _ranges(self, day: int, low: int, high: int) -> Iterator[tuple[int, int, int]]:
        """The instants of a day's wall times in ``[low, high)``: from, until, and what makes them wall times."""
        floor = -FOREVER * _SECOND if self.since is None else microseconds(self.since) + 1
        for start, end, offset in self.days.pieces(day):
            to_wall = offset * _SECOND - day * _DAY
            low_at, high_at = max(start * _SECOND, low - to_wall, floor), min(end * _SECOND, high - to_wall)
            if low_at < high_at:
                yield low_at, high_at, to_wall
