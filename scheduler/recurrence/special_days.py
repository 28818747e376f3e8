"""Reads the elements of day fields that depend on the month: ``L``, ``W``, ``#``.

Source: the Quartz job scheduler's cron trigger, "Special characters"; weekdays are numbered as cron does (Sunday 0).
"""

import re

from tidewheel.scheduler.recurrence.cron_fields import DayRule, bits
from tidewheel.scheduler.recurrence.element_refused import ElementRefused, number_of, span, unwrapped
from tidewheel.scheduler.recurrence.field_kinds import DAY_OF_MONTH, DAY_OF_WEEK, FieldKind

_FROM_LAST = re.compile(r"l(?:-(\d+))?", re.ASCII)
_LAST_WEEKDAY = re.compile(r"lw|wl", re.ASCII)
_NEAR = re.compile(r"(\d+)w|w(\d+)", re.ASCII)
_LAST_OF = re.compile(r"(\d+|[a-z]{3})l|l(\d+)", re.ASCII)
_NTH = re.compile(r"(\d+|[a-z]{3})(?:-(\d+|[a-z]{3}))?#(\d+)", re.ASCII)


def special_days(element: str, kind: FieldKind) -> DayRule | None:
    """The days an element in lower case names; None when it is none of these.

    >>> special_days("5#3", DAY_OF_WEEK) == DayRule(nth=1 << 7 * 2 + 5)
    True

    Raises:
        ElementRefused: It is, but names no day there is.
    """
    if kind is DAY_OF_MONTH:
        return _date(element)
    return _weekday(element) if kind is DAY_OF_WEEK else None


def _date(element: str) -> DayRule | None:
    if _LAST_WEEKDAY.fullmatch(element):
        return DayRule(last_weekday=True)
    if match := _NEAR.fullmatch(element):
        return DayRule(near=1 << number_of(match[1] or match[2], DAY_OF_MONTH))
    if match := _FROM_LAST.fullmatch(element):
        back = int(match[1] or 0)
        if back > 30:
            problem = f"L-{back} lies before the first day of every month"
            raise ElementRefused(problem, "L-30")
        return DayRule(from_last=1 << back)
    return None


def _weekday(element: str) -> DayRule | None:
    if match := _LAST_OF.fullmatch(element):
        return DayRule(last_of=1 << number_of(match[1] or match[2], DAY_OF_WEEK) % 7)
    match = _NTH.fullmatch(element)
    if match is None:
        return None
    number = int(match[3])
    if not 1 <= number <= 5:
        problem = f"the number after # is {span(1, 5)}, and {number} was read"
        raise ElementRefused(problem, f"{element.partition('#')[0].upper()}#{1 if number < 1 else 5}")
    low = number_of(match[1], DAY_OF_WEEK)
    high = 7 if match[2] == "sun" else number_of(match[2] or match[1], DAY_OF_WEEK)
    if low > high:
        problem = f"the day of week range {element.partition('#')[0].upper()} runs backwards"
        raise ElementRefused(problem, unwrapped(low, high, DAY_OF_WEEK, f"#{number}"))
    return DayRule(nth=bits(7 * (number - 1) + day % 7 for day in range(low, high + 1)))
