"""Which days are open under a job's calendars, and when they begin and end in a zone.

A day is a day on the wall clock: where the clock is put back over midnight it comes in two pieces, and one that a zone
has left out (Apia's 30 December 2011) is not open. Days are whole numbers here, 0 is 1970-01-01; instants are whole
seconds since 1970-01-01 UTC.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from datetime import date
from functools import lru_cache
from itertools import pairwise

from tidewheel.occurrences import DaySet
from tidewheel.scheduler.recurrence.posix_rule import EPOCH_ORDINAL
from tidewheel.scheduler.recurrence.zones import FOREVER, Zone, zone

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
