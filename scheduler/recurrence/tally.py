"""Counts matches of a cron expression over a stretch of plain local time, without visiting each of them.

A year of a one-second job is thirty million occurrences and twelve months.
"""

from datetime import date

from tidewheel.scheduler.recurrence.cron_fields import CronFields
from tidewheel.scheduler.recurrence.posix_rule import EPOCH_ORDINAL
from tidewheel.scheduler.recurrence.wall_clock import FIRST_DAY, LAST_DAY, month_shape

_DAY_SECONDS = 86_400


def matches(fields: CronFields, low: int, high: int) -> int:
    """How many local seconds in ``[low, high)`` match; seconds since 1970-01-01 00:00 on the wall.

    >>> from tidewheel.scheduler.recurrence.cron import parse_cron
    >>> matches(parse_cron("*/20 * * * *"), 0, 86_400)
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
    """How many times of day before `second` match."""
    minute, rest = divmod(second, 60)
    whole = (fields.minutes & ((1 << minute) - 1)).bit_count() * fields.seconds.bit_count()
    return whole + (fields.minutes >> minute & 1) * (fields.seconds & ((1 << rest) - 1)).bit_count()


def _days(fields: CronFields, first: int, last: int) -> int:
    """How many days in ``[first, last)`` match."""
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
