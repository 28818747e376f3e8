"""Read compiled zone files (TZif): offset changes, and the POSIX rule that holds after the last one.

Sources: RFC 9636 "The Time Zone Information Format (TZif)", section 3. Version 1 files (32-bit times only) are not
read: the tzdata package has held none since 2020. For rules such as ``CET-1CEST,M3.5.0,M10.5.0/3``: IEEE Std
1003.1-2024, section 8.3 "Other Environment Variables", TZ. Hours from -167 to 167 are the extension of RFC 9636,
section 3.3.
"""

import re
import struct
from dataclasses import dataclass
from datetime import date

_HEADER = struct.Struct(">4sc15x6L")  # section 3.1: magic, version, six counts
_TYPE = struct.Struct(">lBB")  # section 3.2: offset in seconds, is daylight time, index of its abbreviation


@dataclass(frozen=True, slots=True)
class ZoneFile:
    """The second data block of a file.

    Args:
        transitions: Instants of change, seconds since 1970-01-01 UTC, ascending.
        offsets: Seconds east of UTC; one more than transitions: the first holds before all of them.
        abbreviations: Such as ``CEST``, one for each offset.
        footer: The POSIX TZ string for what comes after the last transition; empty when there is none.
    """

    transitions: tuple[int, ...]
    offsets: tuple[int, ...]
    abbreviations: tuple[str, ...]
    footer: str


def read_zone_file(data: bytes) -> ZoneFile:
    """Parse the transitions, offsets and footer of one TZif file of version 2 or later."""
    start = _second_block(data)
    _, _, is_ut, is_std, leaps, times, types, chars = _HEADER.unpack_from(data, start)
    at = start + _HEADER.size
    transitions = struct.unpack_from(f">{times}q", data, at)
    at += 8 * times
    used = (0, *data[at : at + times])  # section 3.2: type 0 holds before the first transition
    at += times
    kinds = [_TYPE.unpack_from(data, at + _TYPE.size * index) for index in range(types)]
    at += _TYPE.size * types
    names = data[at : at + chars]
    at += chars + 12 * leaps + is_std + is_ut
    return ZoneFile(
        transitions=transitions,
        offsets=tuple(kinds[index][0] for index in used),
        abbreviations=tuple(_text_at(names, kinds[index][2]) for index in used),
        footer=data[at:].strip(b"\n").decode("ascii"),
    )


def _second_block(data: bytes) -> int:
    magic, version, is_ut, is_std, leaps, times, types, chars = _HEADER.unpack_from(data)
    if magic != b"TZif" or version < b"2":
        problem = "not a TZif file of version 2 or later"
        raise ValueError(problem)
    return int(_HEADER.size + 5 * times + _TYPE.size * types + chars + 8 * leaps + is_std + is_ut)


def _text_at(names: bytes, index: int) -> str:
    return names[index : names.index(b"\0", index)].decode("ascii")


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
    """One change of offset: its second since 1970 UTC, the new offset, and its abbreviation."""

    at: int
    offset: int
    abbreviation: str


def changes_by_rule(footer: str, years: range) -> list[Change]:
    """Return the changes by the rule in these years, ascending; none without daylight saving time."""
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
    """Return the local second of a rule's change in that year, since 1970-01-01 00:00."""
    match = _DAY.fullmatch(text)
    if match is None:
        problem = f"{text!r} is not a day of a POSIX TZ rule"
        raise ValueError(problem)
    month, week, weekday, julian, number, time = match.groups()
    day = _nth_weekday(year, int(month), int(week), int(weekday)) if month else _numbered_day(year, julian, int(number))
    return (day - EPOCH_ORDINAL) * 86_400 + (_seconds(time) if time else _DEFAULT_TIME)


def _nth_weekday(year: int, month: int, week: int, weekday: int) -> int:
    """Return the ordinal of the week-th weekday (0 = Sunday) of a month; week 5 is the last one."""
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
