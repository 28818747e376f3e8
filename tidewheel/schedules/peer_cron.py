"""Cron expressions in the order and the numbering of other schedulers.

EventBridge has minute, hour, day of month, month, day of week and year. Quartz has seconds first, and the year as an
optional seventh field. Both number the days of the week from Sunday, 1, and use `?` for a day field without a limit.

Sources: "Schedule types in EventBridge Scheduler", Amazon; "CronTrigger Tutorial", Quartz.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

_RATE = re.compile(r"rate\(\s*(\d{1,9})\s+(minute|hour|day)s?\s*\)", re.ASCII)
_CRON = re.compile(r"cron\(\s*([^()]*?)\s*\)", re.ASCII)
_YEARS = r"\d{4}(?:-\d{4})?(?:/\d{1,3})?"
_YEAR = re.compile(rf"\*(?:/\d{{1,3}})?|{_YEARS}(?:,{_YEARS})*", re.ASCII)
_DAY = r"(?:[1-7]|[a-z]{3})"
_DAYS = re.compile(
    rf"(?P<low>{_DAY}|\*)(?:-(?P<high>{_DAY}))?(?:/(?P<step>\d+))?(?P<nth>l|#\d)?|(?P<last>l)|\?",
    re.ASCII | re.IGNORECASE,
)


class EventBridge(NamedTuple):
    """A schedule of EventBridge: the field of ours, its text, and the year that it has beside them."""

    field: str
    text: str
    year: str = "*"


def event_bridge(text: str) -> EventBridge | None:
    """Parse `rate(…)` or `cron(…)`; None for any other text.

    >>> event_bridge("rate(5 minutes)"), event_bridge("cron(0 10 ? * 2-6 *)")
    (EventBridge(field='interval', text='5m', year='*'), EventBridge(field='cron', text='0 10 ? * 1-5', year='*'))
    """
    if rate := _RATE.fullmatch(text):
        return EventBridge("interval", f"{rate[1]}{rate[2][0]}")
    words = cron[1].split() if (cron := _CRON.fullmatch(text)) else []
    line = from_event_bridge(words)
    return EventBridge("cron", line, words[5]) if line else None


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
