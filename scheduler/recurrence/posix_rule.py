"""Turns a zone's POSIX rule, such as ``CET-1CEST,M3.5.0,M10.5.0/3``, into instants of change, year by year.

Source: IEEE Std 1003.1-2024, section 8.3 "Other Environment Variables", TZ; the hours from -167 to 167 are the
extension of RFC 9636, section 3.3.
"""

import re
from dataclasses import dataclass
from datetime import date

EPOCH_ORDINAL = date(1970, 1, 1).toordinal()
"""The proleptic Gregorian ordinal of 1970-01-01: day numbers here count from that day."""

_NAME = r"(?:<[A-Za-z0-9+-]+>|[A-Za-z]{3,})"
_TIME = r"[+-]?\d{1,3}(?::\d{1,2}){0,2}"
_RULE = re.compile(
    rf"(?P<std>{_NAME})(?P<std_at>{_TIME})"
    rf"(?:(?P<dst>{_NAME})(?P<dst_at>{_TIME})?,(?P<begin>[^,]+),(?P<end>[^,]+))?",
    re.ASCII,
)
_DAY = re.compile(rf"(?:M(\d+)\.(\d+)\.(\d+)|(J?)(\d+))(?:/({_TIME}))?", re.ASCII)
_DEFAULT_TIME = 2 * 3600  # seconds after midnight when a rule names no time (POSIX)


@dataclass(frozen=True, slots=True)
class Change:
    """One change of offset: the instant in seconds since 1970 UTC, the offset from then on, and its abbreviation."""

    at: int
    offset: int
    abbreviation: str


def changes_by_rule(footer: str, years: range) -> list[Change]:
    """Every change the rule makes in the given years, ascending; empty when the rule knows no daylight time.

    Raises:
        ValueError: The footer is no POSIX TZ string.
    """
    rule = _RULE.fullmatch(footer)
    if rule is None:
        problem = f"{footer!r} is no POSIX TZ rule"
        raise ValueError(problem)
    if rule["dst"] is None:
        return []
    standard = -_seconds(rule["std_at"])  # POSIX counts westward
    daylight = -_seconds(rule["dst_at"]) if rule["dst_at"] else standard + 3600
    found: dict[int, Change] = {}
    for year in years:
        end = _local_second(rule["end"], year) - daylight
        begin = _local_second(rule["begin"], year) - standard
        found[end] = Change(end, standard, rule["std"].strip("<>"))
        found[begin] = Change(begin, daylight, rule["dst"].strip("<>"))
    return [found[at] for at in sorted(found)]


def _local_second(text: str, year: int) -> int:
    """When the rule says so in that year, as local seconds since 1970-01-01 00:00."""
    match = _DAY.fullmatch(text)
    if match is None:
        problem = f"{text!r} is no day of a POSIX TZ rule"
        raise ValueError(problem)
    month, week, weekday, julian, number, time = match.groups()
    day = _nth_weekday(year, int(month), int(week), int(weekday)) if month else _numbered_day(year, julian, int(number))
    return (day - EPOCH_ORDINAL) * 86_400 + (_seconds(time) if time else _DEFAULT_TIME)


def _nth_weekday(year: int, month: int, week: int, weekday: int) -> int:
    """The ordinal of the week-th weekday (0 = Sunday) of a month; week 5 is the last one."""
    first = date(year, month, 1).toordinal()
    following = date(year + month // 12, month % 12 + 1, 1).toordinal()
    day = first + (weekday - first) % 7 + 7 * (week - 1)
    return day if day < following else day - 7


def _numbered_day(year: int, julian: str, number: int) -> int:
    if not julian:  # 0 to 365, 29 February counted
        return date(year, 1, 1).toordinal() + number
    ordinary = date(2001, 1, 1).toordinal() + number - 1  # J1 to J365 names the same date in every year
    return date.fromordinal(ordinary).replace(year=year).toordinal()


def _seconds(text: str) -> int:
    sign = -1 if text.startswith("-") else 1
    parts = [int(part) for part in text.lstrip("+-").split(":")]
    return sign * sum(part * unit for part, unit in zip(parts, (3600, 60, 1), strict=False))
