"""Open days under a job's calendars, and the occurrences that `next_business_day` shifts to them.

A day is a day on the wall clock. Where the clock is set back over midnight a day has two pieces. A day that a zone has
skipped (Apia's 30 December 2011) is not open. Days are whole numbers: 0 is 1970-01-01. Instants are whole seconds since
1970-01-01 UTC.

A shifted occurrence keeps its wall time. The zone applies to it as to an expression of the schedule
(`cron_schedule.py`), with the same policies for gaps and overlaps. It is shifted by at most `MAX_SHIFT_DAYS`, else
excluded: a calendar that has run out must not pour years into one day. For shifts instants and wall times are whole
microseconds, since 1970-01-01 UTC and since 1970-01-01 00:00 on the wall.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date, datetime
from itertools import pairwise
from typing import TypeAlias

from tidewheel.schedules.cron_schedule import OffsetSpans
from tidewheel.schedules.decision import DaySet
from tidewheel.schedules.schedule import TICK, Schedule, at_microsecond, microseconds
from tidewheel.schedules.zones import EPOCH_ORDINAL, FOREVER, Zone, zone
from tidewheel.weighed_cache import WeighedCache

DAY_SECONDS = 86_400

_Calendars: TypeAlias = tuple[tuple[DaySet, ...], tuple[DaySet, ...], str]  # excluded, included, the zone

_WEEK = range(7)
_TWO_DAYS = 2 * DAY_SECONDS  # no change of a clock is longer
MAX_SHIFT_DAYS = 366
"""The most days of a shift: at most to the same season."""

_DAY = DAY_SECONDS * 1_000_000
_SECOND = 1_000_000


class OpenDays:
    """The days on which a job may fire, in one zone.

    Args:
        exclude: Days of these are not open.
        include: If there are any, only days of these are open.

    >>> days = OpenDays((DaySet(weekdays=frozenset({0, 6})),), (), zone("UTC"))
    >>> days.opens(0), days.nearest(2, 1, opens=True)  # a Thursday; from Saturday to Monday
    (True, 4)
    """

    __slots__ = ("_exceptions", "_ordered", "_regular", "_zone")

    def __init__(self, exclude: tuple[DaySet, ...], include: tuple[DaySet, ...], of: Zone) -> None:
        closed, included = _union(exclude), _union(include)
        self._zone = of
        self._regular = tuple(
            weekday not in closed.weekdays and (not include or weekday in included.weekdays) for weekday in _WEEK
        )
        named = {day.toordinal() - EPOCH_ORDINAL: day for day in closed.days | included.days}
        unlike = {
            number
            for number, day in named.items()
            if (day not in closed and (not include or day in included)) != self._regular[_weekday(number)]
        }
        for number in _missing_days(of):
            (unlike.add if self._regular[_weekday(number)] else unlike.discard)(number)
        self._exceptions = frozenset(unlike)
        self._ordered = tuple(sorted(unlike))

    def opens(self, day: int) -> bool:
        """Return True if that day is open."""
        return self._regular[_weekday(day)] != (day in self._exceptions)

    def day_at(self, second: int) -> int:
        """Return the day on the wall clock at that second."""
        return (second + self._zone.offsets[self._zone.span_at(second)]) // DAY_SECONDS

    def nearest(self, day: int, step: int, *, opens: bool) -> int | None:
        """Return the nearest open (or closed) day, itself included, forward (1) or back (-1), or None."""
        if opens in self._regular:
            while self.opens(day) != opens:
                day += step
            return day
        place = bisect_left(self._ordered, day) if step > 0 else bisect_right(self._ordered, day) - 1
        return self._ordered[place] if 0 <= place < len(self._ordered) else None

    def following(self, second: int, *, opens: bool) -> int:
        """Return the first second at or after that one on a day that is open (or is not), else `FOREVER`."""
        spans, index = self._zone, self._zone.span_at(second)
        while True:
            offset = spans.offsets[index]
            day = self.nearest((second + offset) // DAY_SECONDS, 1, opens=opens)
            found = FOREVER if day is None else max(second, day * DAY_SECONDS - offset)
            index += 1
            if index == len(spans.starts) or found < spans.starts[index]:
                return found
            if day is None and spans.starts[index] - second > _TWO_DAYS:  # too far for a clock put back
                return FOREVER
            second = spans.starts[index]

    def preceding(self, second: int, *, opens: bool) -> int:
        """Return the last second at or before that one on a day that is open (or is not), else ``-FOREVER``."""
        spans, index = self._zone, self._zone.span_at(second)
        while True:
            offset = spans.offsets[index]
            day = self.nearest((second + offset) // DAY_SECONDS, -1, opens=opens)
            found = -FOREVER if day is None else min(second, (day + 1) * DAY_SECONDS - 1 - offset)
            if index == 0 or found >= spans.starts[index]:
                return found
            if day is None and second - spans.starts[index] > _TWO_DAYS:
                return -FOREVER
            second = spans.starts[index] - 1
            index -= 1

    def pieces(self, day: int) -> Iterator[tuple[int, int, int]]:
        """Yield the pieces of a day: start, end (exclusive) and offset; two pieces if the clock changes."""
        spans = self._zone
        low, high = day * DAY_SECONDS, (day + 1) * DAY_SECONDS
        for index in range(spans.span_at(low - DAY_SECONDS), spans.span_at(high + DAY_SECONDS) + 1):
            offset = spans.offsets[index]
            end = spans.starts[index + 1] if index + 1 < len(spans.starts) else FOREVER
            start, end = max(low - offset, spans.starts[index]), min(high - offset, end)
            if start < end:
                yield start, end, offset


def open_days(exclude: tuple[DaySet, ...], include: tuple[DaySet, ...], zone_name: str) -> OpenDays:
    """Return the open days under these calendars in that zone: one object for the same arguments."""
    return _OPEN_DAYS.of((exclude, include, zone_name))


def _read(calendars: _Calendars) -> OpenDays:
    exclude, include, zone_name = calendars
    return OpenDays(exclude, include, zone(zone_name))


def _weigh(calendars: _Calendars) -> int:
    exclude, include, _ = calendars
    return 1000 + sum(days.weight for days in exclude + include)


_OPEN_DAYS = WeighedCache(_read, _weigh, 16 << 20)  # a few sets of calendars per tenant; their days are read once


def _weekday(day: int) -> int:
    return (day + 4) % 7  # 1970-01-01 was a Thursday; 0 is Sunday


def _union(sets: tuple[DaySet, ...]) -> DaySet:
    days = frozenset[date]().union(*(each.days for each in sets))
    weekdays = frozenset[int]().union(*(each.weekdays for each in sets))
    return DaySet(days, weekdays)


def _missing_days(of: Zone) -> Iterator[int]:
    """Yield the days that a clock skipped when it was set forward by a day or more."""
    for index, (before, after) in enumerate(pairwise(of.offsets), start=1):
        if after - before >= DAY_SECONDS:
            low, high = of.starts[index] + before, of.starts[index] + after
            yield from range(-(-low // DAY_SECONDS), high // DAY_SECONDS)


@dataclass(frozen=True, slots=True)
class DayShifts:
    """The occurrences that are shifted to a day.

    Args:
        schedule: The schedule, on days that are not open too.
        since: Occurrences at or before it are not shifted.
    """

    schedule: Schedule
    days: OpenDays
    offset_spans: OffsetSpans
    since: datetime | None = None

    def first(self, day: int, after: datetime) -> datetime | None:
        """Return the first occurrence shifted to that open day, strictly later than an instant."""
        instant, sources = microseconds(after), self._sources(day)
        for low, shifted_until, high, offset, start in self._parts(day):
            if instant < start and self._of_sources(min, self._first_wall, sources, low, shifted_until) is not None:
                return at_microsecond(start)
            from_wall = max(shifted_until, instant + offset - day * _DAY + 1)
            wall = self._of_sources(min, self._first_wall, sources, from_wall, high)
            if wall is not None:
                return at_microsecond(day * _DAY + wall - offset)
        return None

    def last(self, day: int, before: datetime) -> datetime | None:
        """Return the last occurrence shifted to that open day, strictly earlier than an instant."""
        instant, sources = microseconds(before), self._sources(day)
        for low, shifted_until, high, offset, start in reversed(list(self._parts(day))):
            until_wall = min(high, instant + offset - day * _DAY)
            wall = self._of_sources(max, self._last_wall, sources, shifted_until, until_wall)
            if wall is not None:
                return at_microsecond(day * _DAY + wall - offset)
            if start < instant and self._of_sources(min, self._first_wall, sources, low, shifted_until) is not None:
                return at_microsecond(start)
        return None

    def _sources(self, day: int) -> list[int]:
        """Return the days whose occurrences are shifted to that one."""
        earlier = self.days.nearest(day - 1, -1, opens=True)
        first = day - MAX_SHIFT_DAYS if earlier is None else max(earlier + 1, day - MAX_SHIFT_DAYS)
        return list(range(first, day))

    def _parts(self, day: int) -> Iterator[tuple[int, int, int, int, int]]:
        """Yield the spans of local time of a day, ascending.

        Each is: the wall time from which times of a gap fire at its end, the one from which times count, the one until
        which they count, the offset, and the instant at the end of the gap.
        """
        of, low_day, high_day = self.offset_spans, day * DAY_SECONDS, (day + 1) * DAY_SECONDS
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
        """Return the first wall time of a day's occurrences in ``[low, high)``."""
        walls: list[int] = []
        for start, end, to_wall in self._ranges(day, low, high):
            at = at_microsecond(start)
            found = None if at is None else self.schedule.after(at - TICK)
            if found is not None and microseconds(found) < end:
                walls.append(microseconds(found) + to_wall)
        return min(walls, default=None)

    def _last_wall(self, day: int, low: int, high: int) -> int | None:
        """Return the last wall time of a day's occurrences in ``[low, high)``."""
        walls: list[int] = []
        for start, end, to_wall in self._ranges(day, low, high):
            at = at_microsecond(end)
            found = None if at is None else self.schedule.before(at)
            if found is not None and microseconds(found) >= start:
                walls.append(microseconds(found) + to_wall)
        return max(walls, default=None)

    def _ranges(self, day: int, low: int, high: int) -> Iterator[tuple[int, int, int]]:
        """Yield spans of a day's wall times in ``[low, high)``: start, end, difference to wall time."""
        floor = -FOREVER * _SECOND if self.since is None else microseconds(self.since) + 1
        for start, end, offset in self.days.pieces(day):
            to_wall = offset * _SECOND - day * _DAY
            low_at, high_at = max(start * _SECOND, low - to_wall, floor), min(end * _SECOND, high - to_wall)
            if low_at < high_at:
                yield low_at, high_at, to_wall
