"""The fields of a cron expression: sets of values, as bits of integers.

Pure values without a zone. `cron_matching.py` searches them, `zoned_cron.py` applies a zone.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache


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


@cache  # few rules are in use, and every search reads the result
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
