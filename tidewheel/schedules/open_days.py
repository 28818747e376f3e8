"""Which days are open under a job's calendars, and when they begin and end in a zone.

A day is a day on the wall clock: where the clock is put back over midnight it comes in two pieces, and one that a zone
has left out (Apia's 30 December 2011) is not open. Days are whole numbers here, 0 is 1970-01-01; instants are whole
seconds since 1970-01-01 UTC.

Where occurrences of days that are not open go under `next_business_day`: the same wall time of the next open day.

They are set into the zone as an entry of the schedule would be (`localise.py`): what falls into a gap of the clock is
made up after it, or not, and of two passes of an overlap the chosen one counts. An occurrence finds its new day within
`MAX_SHIFT_DAYS`, or it is left out: a calendar that has run out must not pour years into one day.
Instants and wall times are whole microseconds here: since 1970-01-01 UTC, and since 1970-01-01 00:00 on the wall.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from functools import lru_cache
from itertools import pairwise

from tidewheel.schedules.decision import DaySet
from tidewheel.schedules.schedule import Schedule, at_microsecond, microseconds
from tidewheel.schedules.tzif import EPOCH_ORDINAL
from tidewheel.schedules.zoned_cron import OffsetSpans
from tidewheel.schedules.zones import FOREVER, Zone, zone

DAY_SECONDS = 86_400

_WEEK = range(7)
_TWO_DAYS = 2 * DAY_SECONDS  # no change of a clock is longer


class OpenDays:
    """The days on which a job may fire, in one zone.

    Args:
        exclude: A day that one of them has is not open.
        include: When there are any, only a day that one of them has is open.
        of: The zone whose days are meant.

    >>> days = OpenDays((DaySet(weekdays=frozenset({0, 6})),), (), zone("UTC"))
    >>> days.opens(0), days.nearest(2, 1, opens=True)  # a Thursday; from Saturday to Monday
    (True, 4)
    """

    __slots__ = ("_exceptions", "_ordered", "_regular", "_zone")

    def __init__(self, exclude: tuple[DaySet, ...], include: tuple[DaySet, ...], of: Zone) -> None:
        closed, wanted = _union(exclude), _union(include)
        self._zone = of
        self._regular = tuple(
            weekday not in closed.weekdays and (not include or weekday in wanted.weekdays) for weekday in _WEEK
        )
        named = {day.toordinal() - EPOCH_ORDINAL: day for day in closed.days | wanted.days}
        unlike = {
            number
            for number, day in named.items()
            if (day not in closed and (not include or day in wanted)) != self._regular[_weekday(number)]
        }
        for number in _missing_days(of):
            (unlike.add if self._regular[_weekday(number)] else unlike.discard)(number)
        self._exceptions = frozenset(unlike)
        self._ordered = tuple(sorted(unlike))

    def opens(self, day: int) -> bool:
        """Whether that day is open."""
        return self._regular[_weekday(day)] != (day in self._exceptions)

    def day_at(self, second: int) -> int:
        """The day on the wall clock at that second."""
        return (second + self._zone.offsets[self._zone.span_at(second)]) // DAY_SECONDS

    def nearest(self, day: int, step: int, *, opens: bool) -> int | None:
        """The nearest day that is open (or is not), itself included, going forward (1) or back (-1); None: no such."""
        if opens in self._regular:
            while self.opens(day) != opens:
                day += step
            return day
        place = bisect_left(self._ordered, day) if step > 0 else bisect_right(self._ordered, day) - 1
        return self._ordered[place] if 0 <= place < len(self._ordered) else None

    def following(self, second: int, *, opens: bool) -> int:
        """The first second at or after that one which lies on a day that is open (or is not), else `FOREVER`."""
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
        """The last second at or before that one which lies on a day that is open (or is not), else ``-FOREVER``."""
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
        """The seconds of a day: from, until (not itself) and the offset; two pieces where the clock changes."""
        spans = self._zone
        low, high = day * DAY_SECONDS, (day + 1) * DAY_SECONDS
        for index in range(spans.span_at(low - DAY_SECONDS), spans.span_at(high + DAY_SECONDS) + 1):
            offset = spans.offsets[index]
            end = spans.starts[index + 1] if index + 1 < len(spans.starts) else FOREVER
            start, end = max(low - offset, spans.starts[index]), min(high - offset, end)
            if start < end:
                yield start, end, offset


@lru_cache(maxsize=1024)  # distinct sets of calendars in use: a few per tenant; their days are read once
def open_days(exclude: tuple[DaySet, ...], include: tuple[DaySet, ...], zone_name: str) -> OpenDays:
    """The open days under these calendars in the zone of that name; one object for all who ask for the same.

    Raises:
        ScheduleRefused: tzdata has no such zone.
    """
    return OpenDays(exclude, include, zone(zone_name))


def _weekday(day: int) -> int:
    return (day + 4) % 7  # 1970-01-01 was a Thursday; 0 is Sunday


def _union(sets: tuple[DaySet, ...]) -> DaySet:
    days = frozenset[date]().union(*(each.days for each in sets))
    weekdays = frozenset[int]().union(*(each.weekdays for each in sets))
    return DaySet(days, weekdays)


def _missing_days(of: Zone) -> Iterator[int]:
    """Days that never were there: a clock put forward by a day or more."""
    for index, (before, after) in enumerate(pairwise(of.offsets), start=1):
        if after - before >= DAY_SECONDS:
            low, high = of.starts[index] + before, of.starts[index] + after
            yield from range(-(-low // DAY_SECONDS), high // DAY_SECONDS)


MAX_SHIFT_DAYS = 366
"""Days: an occurrence goes no further than to the same season."""

_DAY = DAY_SECONDS * 1_000_000
_SECOND = 1_000_000
_TICK = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class DayShifts:
    """The occurrences that are shifted to a day.

    Args:
        schedule: What says when, on days that are not open too.
        days: Which days are open.
        stretches: How local times become instants.
        since: What lies at or before it is not shifted.
    """

    schedule: Schedule
    days: OpenDays
    offset_spans: OffsetSpans
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
        first = day - MAX_SHIFT_DAYS if earlier is None else max(earlier + 1, day - MAX_SHIFT_DAYS)
        return list(range(first, day))

    def _parts(self, day: int) -> Iterator[tuple[int, int, int, int, int]]:
        """The stretches of local time that concern a day, ascending.

        Each is: wall time of the day from which times are made up, from which they count, until which; offset; the
        instant at which they are made up.
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
