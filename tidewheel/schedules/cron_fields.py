"""The fields of a cron expression, in any scheduler's order, and the search for matches in local time.

Local time is an integer here, without zone and gaps: seconds since 1970-01-01 00:00 on the wall. `cron_schedule.py`
turns it into instants. Counting visits months, not matches: a year of a one-second job is thirty million occurrences.

EventBridge has minute, hour, day of month, month, day of week and year. Quartz has seconds first, and the year as an
optional seventh field. Both number the days of the week from Sunday, 1, and use `?` for a day field without a limit.

Sources: "Schedule types in EventBridge Scheduler", Amazon; "CronTrigger Tutorial", Quartz.
"""

import re
from calendar import isleap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import lru_cache
from typing import NamedTuple

from tidewheel.schedules.zones import EPOCH_ORDINAL, FOREVER, LAST_YEAR

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

_RATE = re.compile(r"rate\(\s*(\d{1,9})\s+(minute|hour|day)s?\s*\)", re.ASCII)
_CRON = re.compile(r"cron\(\s*([^()]*?)\s*\)", re.ASCII)
_YEARS = r"\d{4}(?:-\d{4})?(?:/\d{1,3})?"
_YEAR = re.compile(rf"\*(?:/\d{{1,3}})?|{_YEARS}(?:,{_YEARS})*", re.ASCII)
_DAY = r"(?:[1-7]|[a-z]{3})"
_DAYS = re.compile(
    rf"(?P<low>{_DAY}|\*)(?:-(?P<high>{_DAY}))?(?:/(?P<step>\d+))?(?P<nth>l|#\d)?|(?P<last>l)|\?",
    re.ASCII | re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class DayRule:
    """The days of a month that an expression matches.

    Args:
        days: Bits 1 to 31: plain days of the month.
        from_last: Bit ``k``: the day ``k`` days before the month's last (``L`` is bit 0, ``L-3`` bit 3).
        near: Bits 1 to 31: the weekday nearest to that day within its month (``15W``).
        last_weekday: Monday to Friday nearest to the month's end (``LW``).
        weekdays: Bits 0 to 6, Sunday first: plain days of the week.
        nth: Bit ``7 * (n - 1) + weekday``: the n-th such weekday of the month (``5#3``).
        last_of: Bits 0 to 6: the last such weekday of the month (``5L``).
        either: True if both day fields are restricted, so that a match of one is enough.
    """

    days: int = 0
    from_last: int = 0
    near: int = 0
    last_weekday: bool = False
    weekdays: int = 0
    nth: int = 0
    last_of: int = 0
    either: bool = False

    def with_parts(self, parts: Iterable["DayRule"]) -> "DayRule":
        """Return this rule with the days of the parts added."""
        whole = self
        for part in parts:
            whole = replace(
                whole,
                from_last=whole.from_last | part.from_last,
                near=whole.near | part.near,
                last_weekday=whole.last_weekday or part.last_weekday,
                nth=whole.nth | part.nth,
                last_of=whole.last_of | part.last_of,
            )
        return whole


@lru_cache(maxsize=4096)  # few rules are in use, and every search reads the result
def days_by_month_shape(rule: DayRule) -> tuple[int, ...]:
    """Return the days of each shape of month as bits 1 to 31.

    The index is ``4 * w + length - 28``, where `w` is the weekday of the first (0 = Sunday).
    """
    return tuple(_days_in_month(rule, weekday, length) for weekday in range(7) for length in range(28, 32))


@dataclass(frozen=True, slots=True)
class CronFields:
    """A parsed expression.

    Args:
        expression: What was read, without its zone and superfluous blanks.
        seconds: Bits 0 to 59.
        minutes: Bits 0 to 1439: minutes of the day, hours and minutes taken together.
        months: Bits 1 to 12.
        days: The days that fit, for each shape of month (see `days_by_month_shape`).
        follows_wall_clock: The minute or the hour field begins with ``*``.
        hashed: The expression holds an ``H``: what it says depends on the job.
        timezone: The zone named inline by ``CRON_TZ=`` or ``TZ=``.
    """

    expression: str
    seconds: int
    minutes: int
    months: int
    days: tuple[int, ...]
    follows_wall_clock: bool
    has_seconds: bool = False
    hashed: bool = False
    timezone: str | None = None


def bits(values: Iterable[int]) -> int:
    """Return the set as an integer.

    >>> bin(bits([0, 3]))
    '0b1001'
    """
    mask = 0
    for value in values:
        mask |= 1 << value
    return mask


def values(mask: int) -> Iterator[int]:
    """Yield the members of a set of bits, ascending.

    >>> list(values(0b1001))
    [0, 3]
    """
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


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


def _days_in_month(rule: DayRule, first_weekday: int, length: int) -> int:
    month = range(1, length + 1)
    by_date = rule.days | bits(length - k for k in values(rule.from_last) if k < length)
    by_date |= bits(_nearest_workday(day, first_weekday, length) for day in values(rule.near) if day <= length)
    if rule.last_weekday:
        by_date |= 1 << _nearest_workday(length, first_weekday, length)
    by_week = 0
    for day in month:
        weekday = (first_weekday + day - 1) % 7
        matches = rule.weekdays >> weekday | rule.nth >> (7 * ((day - 1) // 7) + weekday)
        if day + 7 > length:
            matches |= rule.last_of >> weekday
        by_week |= (matches & 1) << day
    found = by_date | by_week if rule.either else by_date & by_week
    return found & bits(month)


def _nearest_workday(day: int, first_weekday: int, length: int) -> int:
    """Return the day, or the nearest Monday to Friday of the same month."""
    weekday = (first_weekday + day - 1) % 7
    if weekday == 6:
        return day - 1 if day > 1 else 3
    if weekday == 0:
        return day + 1 if day < length else day - 2
    return day


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


class EventBridge(NamedTuple):
    """A schedule of EventBridge without its year: the field of ours, and its text."""

    field: str
    text: str


def event_bridge(text: str) -> EventBridge | None:
    """Parse `rate(…)` or `cron(…)`; None for any other text.

    >>> event_bridge("rate(5 minutes)"), event_bridge("cron(0 10 ? * 2-6 *)")
    (EventBridge(field='interval', text='5m'), EventBridge(field='cron', text='0 10 ? * 1-5'))
    """
    if rate := _RATE.fullmatch(text):
        return EventBridge("interval", f"{rate[1]}{rate[2][0]}")
    words = cron[1].split() if (cron := _CRON.fullmatch(text)) else []
    line = from_event_bridge(words)
    return EventBridge("cron", line) if line else None


def from_event_bridge(words: Sequence[str]) -> str | None:
    """Return six fields of EventBridge as five of cron, without the year; None if they are not its own.

    >>> from_event_bridge("0 10 ? * 2-6 *".split()), from_event_bridge("0 10 * * ? 2027".split())
    ('0 10 ? * 1-5', '0 10 * * ?')
    """
    if len(words) != 6 or not _YEAR.fullmatch(words[5]) or (days := from_sunday_as_1(words[4])) is None:
        return None
    return " ".join((*words[:4], days))


def from_quartz(words: Sequence[str]) -> str | None:
    """Return seven fields of Quartz as six, without the year; None if they are not its own.

    >>> from_quartz("0 0 12 ? * 2 2027".split())
    '0 0 12 ? * 1'
    """
    if len(words) != 7 or not _YEAR.fullmatch(words[6]) or (days := from_sunday_as_1(words[5])) is None:
        return None
    return " ".join((*words[:5], days))


def from_sunday_as_1(field: str) -> str | None:
    """Return a day-of-week field, in which Sunday is 1, with Sunday as 0; None if it cannot be read.

    >>> [from_sunday_as_1(field) for field in ("2-6", "1,7", "6#3", "2/2", "L", "6L", "MON-FRI", "?", "0")]
    ['1-5', '0,6', '5#3', '1-6/2', '6', '5L', 'MON-FRI', '?', None]
    """
    parts = [_DAYS.fullmatch(element) for element in field.split(",")]
    return ",".join(_renumbered(part) for part in parts if part) if all(parts) else None


def _renumbered(part: re.Match[str]) -> str:
    low, high, step, nth, last = part.group("low", "high", "step", "nth", "last")
    if last:
        return "6"  # alone it is the last day of the week
    if low is None:
        return part[0]
    if step and not high and low != "*":
        high = "7"  # with a step, a single day is the first of the rest of the week
    days = "-".join(str(int(day) - 1) if day.isdigit() else day for day in (low, high) if day)
    return days + (f"/{step}" if step else "") + (nth or "")
