"""Search and count the matches of a cron expression in plain local time.

Plain means: no zone, no gaps, every day of 86,400 seconds.

Local time is an integer here: seconds since 1970-01-01 00:00 on the wall. `zoned_cron.py` turns it into instants.
Counting visits months, not matches: a year of a one-second job is thirty million occurrences and twelve months.
"""

from calendar import isleap
from datetime import date

from tidewheel.schedules.cron_fields import CronFields
from tidewheel.schedules.tzif import EPOCH_ORDINAL
from tidewheel.schedules.zones import FOREVER, LAST_YEAR

FIRST_YEAR = 1900
"""The first year of a search: before it most places had no zone time, and cron no users."""

FIRST_DAY = date(FIRST_YEAR, 1, 1).toordinal() - EPOCH_ORDINAL
"""The first day on which a match counts, in days since 1970-01-01."""

LAST_DAY = date(LAST_YEAR, 12, 31).toordinal() - EPOCH_ORDINAL
"""The last day on which a match counts, in days since 1970-01-01."""

_DAY_SECONDS = 86_400
_NONE = -1  # no such bit; days before 1970 are negative, hence _NO_DAY
_NO_DAY = FOREVER
_LENGTHS = (0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)


def following(fields: CronFields, local: int) -> int:
    """Return the first matching second at or after `local`; `FOREVER` if none is by `LAST_YEAR`."""
    day, second = divmod(local, _DAY_SECONDS)
    if day < FIRST_DAY:
        day, second = FIRST_DAY, 0
    found = _day_from(fields, day)
    if found == day:
        time = _time_from(fields, second)
        if time != _NONE:
            return day * _DAY_SECONDS + time
        found = _day_from(fields, day + 1)
    return FOREVER if found == _NO_DAY else found * _DAY_SECONDS + _time_from(fields, 0)


def preceding(fields: CronFields, local: int) -> int:
    """Return the last matching second at or before `local`; ``-FOREVER`` if none is from `FIRST_YEAR`."""
    day, second = divmod(local, _DAY_SECONDS)
    if day > LAST_DAY:
        day, second = LAST_DAY, _DAY_SECONDS - 1
    found = _day_until(fields, day)
    if found == day:
        time = _time_until(fields, second)
        if time != _NONE:
            return day * _DAY_SECONDS + time
        found = _day_until(fields, day - 1)
    return -FOREVER if found == _NO_DAY else found * _DAY_SECONDS + _time_until(fields, _DAY_SECONDS - 1)


def _bit_from(mask: int, at: int) -> int:
    rest = mask >> at
    return at + (rest & -rest).bit_length() - 1 if rest else _NONE


def _bit_until(mask: int, at: int) -> int:
    return (mask & ((2 << at) - 1)).bit_length() - 1


def _time_from(fields: CronFields, second: int) -> int:
    """Return the first second of the day at or after `second` that matches, or `_NONE`."""
    minute, rest = divmod(second, 60)
    if fields.minutes >> minute & 1:
        found = _bit_from(fields.seconds, rest)
        if found != _NONE:
            return minute * 60 + found
        minute += 1
    elif rest:
        minute += 1
    minute = _bit_from(fields.minutes, minute)
    return _NONE if minute == _NONE else minute * 60 + _bit_from(fields.seconds, 0)


def _time_until(fields: CronFields, second: int) -> int:
    minute, rest = divmod(second, 60)
    if fields.minutes >> minute & 1:
        found = _bit_until(fields.seconds, rest)
        if found != _NONE:
            return minute * 60 + found
    if minute == 0:
        return _NONE
    minute = _bit_until(fields.minutes, minute - 1)
    return _NONE if minute == _NONE else minute * 60 + _bit_until(fields.seconds, 59)


def _day_from(fields: CronFields, day: int) -> int:
    if day > LAST_DAY:
        return _NO_DAY
    today = date.fromordinal(day + EPOCH_ORDINAL)
    year, month, start = today.year, today.month, today.day
    while year <= LAST_YEAR:
        if fields.months >> month & 1:
            before_first, mask, _ = month_shape(fields, year, month)
            found = _bit_from(mask, start)
            if found != _NONE:
                return before_first + found
        start = 1
        year, month = (year + 1, 1) if month == 12 else (year, month + 1)
    return _NO_DAY


def _day_until(fields: CronFields, day: int) -> int:
    if day < FIRST_DAY:
        return _NO_DAY
    today = date.fromordinal(day + EPOCH_ORDINAL)
    year, month, end = today.year, today.month, today.day
    while year >= FIRST_YEAR:
        if fields.months >> month & 1:
            before_first, mask, _ = month_shape(fields, year, month)
            found = _bit_until(mask, end)
            if found != _NONE:
                return before_first + found
        end = 31
        year, month = (year - 1, 12) if month == 1 else (year, month - 1)
    return _NO_DAY


def month_shape(fields: CronFields, year: int, month: int) -> tuple[int, int, int]:
    """Return the day number before a month's first, the bits of its matching days, and its length."""
    first = date(year, month, 1).toordinal()
    length = 29 if month == 2 and isleap(year) else _LENGTHS[month]
    days = fields.days[first % 7 * 4 + length - 28]  # ordinal 7 was a Sunday
    return first - 1 - EPOCH_ORDINAL, days, length


def count_matches(fields: CronFields, low: int, high: int) -> int:
    """Count the matching local seconds in ``[low, high)``; seconds since 1970-01-01 00:00 on the wall.

    >>> from tidewheel.schedules.cron_parser import parse_cron
    >>> count_matches(parse_cron("*/20 * * * *"), 0, 86_400)
    72
    """
    low = max(low, FIRST_DAY * _DAY_SECONDS)
    high = min(high, (LAST_DAY + 1) * _DAY_SECONDS)
    return _until(fields, low, high) if low < high else 0


def _until(fields: CronFields, low: int, high: int) -> int:
    (first, early), (last, late) = divmod(low, _DAY_SECONDS), divmod(high, _DAY_SECONDS)
    whole = fields.minutes.bit_count() * fields.seconds.bit_count()
    found = _days(fields, first, last) * whole - _days(fields, first, first + 1) * _times(fields, early)
    return found + (_days(fields, last, last + 1) * _times(fields, late) if late else 0)


def _times(fields: CronFields, second: int) -> int:
    """Count the matching times of day before `second`."""
    minute, rest = divmod(second, 60)
    whole = (fields.minutes & ((1 << minute) - 1)).bit_count() * fields.seconds.bit_count()
    return whole + (fields.minutes >> minute & 1) * (fields.seconds & ((1 << rest) - 1)).bit_count()


def _days(fields: CronFields, first: int, last: int) -> int:
    """Count the matching days in ``[first, last)``."""
    found, day = 0, first
    while day < last:
        today = date.fromordinal(day + EPOCH_ORDINAL)
        before_first, mask, length = month_shape(fields, today.year, today.month)
        following = before_first + length + 1
        if fields.months >> today.month & 1:
            end = min(last, following) - before_first  # days of this month in [today, end)
            found += (mask & ((1 << end) - 1) & -(1 << today.day)).bit_count()
        day = following
    return found
