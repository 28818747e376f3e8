"""Spans of time as people write them: `10s`, `1h30m`, `250ms`, ISO 8601 such as `PT10S`, or a number of seconds."""

import math
import re
from datetime import timedelta
from fractions import Fraction
from functools import lru_cache

from tidewheel.jobs.misfit import Misfit

_NUMBER = r"(\d{1,12}(?:\.\d{1,9})?)"
_SHORT = re.compile(
    rf"(?:{_NUMBER}w)?(?:{_NUMBER}d)?(?:{_NUMBER}h)?(?:{_NUMBER}m(?!s))?(?:{_NUMBER}s)?(?:{_NUMBER}ms)?(?:{_NUMBER}us)?",
    re.ASCII,
)
_ISO = re.compile(rf"P(?:{_NUMBER}W)?(?:{_NUMBER}D)?(?:T(?:{_NUMBER}H)?(?:{_NUMBER}M)?(?:{_NUMBER}S)?)?", re.ASCII)
_ISO_CALENDAR = re.compile(r"P[\d.]*[YM]", re.ASCII)
_MICROSECONDS = (604_800_000_000, 86_400_000_000, 3_600_000_000, 60_000_000, 1_000_000, 1_000, 1)
_LONGEST = timedelta(days=36_525)  # a century: beyond any use, within what every reader can count
_REMEDY = "write a duration such as 10s, 5m, 1h30m, 250ms or PT10S, or a number of seconds"


def parse_duration(value: str | float) -> timedelta:
    """Return the span of time a duration names.

    >>> parse_duration("1h30m") == parse_duration("PT1H30M") == parse_duration(5400)
    True

    Args:
        value: Text, or a number of seconds.

    Raises:
        Misfit: It is none, negative, finer than a microsecond or longer than a century.
    """
    if isinstance(value, str):
        return _from_text(value) if len(value) <= 64 else _refuse(f"{value[:20]!r}... is no duration")
    return _from_seconds(value)


def format_duration(span: timedelta) -> str:
    """Return a span of time as it may be written.

    >>> format_duration(timedelta(minutes=90)), format_duration(timedelta(milliseconds=250))
    ('1h30m', '250ms')
    """
    left = microseconds(span)
    parts: list[str] = []
    for unit, size in zip(("d", "h", "m", "s", "ms", "us"), _MICROSECONDS[1:], strict=True):
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"


def microseconds(span: timedelta) -> int:
    """Return a span of time as a whole number of microseconds."""
    return (span.days * 86_400 + span.seconds) * 1_000_000 + span.microseconds


@lru_cache(maxsize=4096)  # the same few durations come again and again
def _from_text(text: str) -> timedelta:
    match = _SHORT.fullmatch(text) or _ISO.fullmatch(text)
    if match is None or not any(match.groups()) or text.endswith("T"):
        if _ISO_CALENDAR.match(text):
            return _refuse(f"{text!r} counts months or years, which have no fixed length", "count days, or use cron")
        return _refuse(f"{text!r} is no duration")
    total = sum(Fraction(number) * size for number, size in zip(match.groups(), _MICROSECONDS, strict=False) if number)
    if total.denominator != 1:
        return _refuse(f"{text!r} is finer than a microsecond")
    return _bounded(int(total), text)


def _from_seconds(seconds: float) -> timedelta:
    if isinstance(seconds, bool) or not math.isfinite(seconds):
        return _refuse(f"{seconds!r} is no duration")
    if abs(seconds) > _LONGEST.total_seconds():
        return _refuse(f"{seconds:.6g} s is longer than a century")
    return _bounded(round(seconds * 1_000_000), f"{seconds!r} s")


def _bounded(micros: int, text: str) -> timedelta:
    if micros < 0:
        return _refuse(f"{text} is negative")
    if micros > microseconds(_LONGEST):
        return _refuse(f"{text} is longer than a century")
    return timedelta(microseconds=micros)


def _refuse(problem: str, remedy: str = _REMEDY) -> timedelta:
    raise Misfit(problem=problem, remedy=remedy)
