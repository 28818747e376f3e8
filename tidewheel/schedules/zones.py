"""Time zones of tzdata, with their offset changes.

The zone files of the operating system are never read. So two schedulers with the same package compute the same instants
on any machine.

Compiled zone files (TZif) have offset changes, and the POSIX rule that holds after the last one. Sources: RFC 9636
"The Time Zone Information Format (TZif)", section 3. Version 1 files (32-bit times only) are not read: the tzdata
package has held none since 2020. For rules such as ``CET-1CEST,M3.5.0,M10.5.0/3``: IEEE Std 1003.1-2024, section 8.3
"Other Environment Variables", TZ. Hours from -167 to 167 are the extension of RFC 9636, section 3.3.
"""

import difflib
import re
import struct
from bisect import bisect_right
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import cache
from importlib.resources import files

import tzdata  # type: ignore[import-untyped]  # ships no annotations

from tidewheel.errors import ScheduleRefused

FOREVER = 2**62
"""Later than any second a datetime can name; negated, earlier."""
LAST_YEAR = 2199
"""The last year of zone rules and of searches. No schedule of today needs a later year, and a search for a date that
never comes ends in a few milliseconds.
"""
_HEADER = struct.Struct(">4sc15x6L")  # section 3.1: magic, version, six counts
_TYPE = struct.Struct(">lBB")  # section 3.2: offset in seconds, is daylight time, index of its abbreviation
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
class Zone:
    """A zone as spans: span ``i`` holds from ``starts[i]`` (inclusive) until ``starts[i + 1]``.

    Args:
        starts: Seconds since 1970-01-01 UTC, strictly ascending; the first is ``-FOREVER``.
        offsets: Seconds east of UTC, one for each span.
        abbreviations: Such as ``CEST``, one for each span.
    """

    name: str
    starts: tuple[int, ...]
    offsets: tuple[int, ...]
    abbreviations: tuple[str, ...]

    def span_at(self, second: int) -> int:
        """Return the index of the span in force at that second since 1970-01-01 UTC."""
        return bisect_right(self.starts, second) - 1


def zone(name: str) -> Zone:
    """Return the zone of that IANA name, with its transitions to the end of `LAST_YEAR`.

    >>> zone("Asia/Kolkata").offsets[-1]
    19800

    Raises:
        ScheduleRefused: tzdata has no such zone. The remedy holds the nearest names.
    """
    if name not in zone_names():
        problem = f"{name[:64]!r} is not a time zone of tzdata {tzdata_version()}"
        raise ScheduleRefused(problem, _nearest(name[:64]), "timezone")
    return _load(name)


def tzdata_version() -> str:
    """Return the IANA release of the package, such as ``2026f``."""
    return str(tzdata.IANA_VERSION)


@cache
def zone_names() -> frozenset[str]:
    """Return every name that `zone` accepts."""
    return frozenset(files("tzdata").joinpath("zones").read_text(encoding="ascii").split())


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
        raise ValueError("not a TZif file of version 2 or later")
    return int(_HEADER.size + 5 * times + _TYPE.size * types + chars + 8 * leaps + is_std + is_ut)


def _text_at(names: bytes, index: int) -> str:
    return names[index : names.index(b"\0", index)].decode("ascii")


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
        raise ValueError(f"{footer!r} is not a POSIX TZ rule")
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


@cache
def _load(name: str) -> Zone:
    data = files("tzdata").joinpath("zoneinfo", *name.split("/")).read_bytes()
    file = read_zone_file(data)
    later = _by_rule(file)
    return Zone(
        name,
        (-FOREVER, *file.transitions, *(change.at for change in later)),
        (*file.offsets, *(change.offset for change in later)),
        (*file.abbreviations, *(change.abbreviation for change in later)),
    )


def _by_rule(file: ZoneFile) -> list[Change]:
    """Return the changes by the footer's rule after the last transition in the file."""
    if not file.footer:
        return []
    last = file.transitions[-1] if file.transitions else -FOREVER
    first_year = datetime.fromtimestamp(last, UTC).year if file.transitions else 1
    return [change for change in changes_by_rule(file.footer, range(first_year, LAST_YEAR + 1)) if change.at > last]


def _nearest(name: str) -> str:
    """Return a remedy with the names that are most similar."""
    hours = re.fullmatch(r"(?:UTC|GMT)?([+-])0?(\d{1,2})(?::?00)?", name.strip(), re.IGNORECASE | re.ASCII)
    if hours and f"Etc/GMT{hours[1]}{hours[2]}" in zone_names():
        turned = "-" if hours[1] == "+" else "+"
        return f"write Etc/GMT{turned}{hours[2]} (IANA counts westward), or the zone of a place"
    folded = {known.casefold(): known for known in sorted(zone_names())}
    if name.strip().casefold() in folded:
        return f"write {folded[name.strip().casefold()]}"
    tails = {known.rpartition("/")[2].casefold(): known for known in sorted(zone_names())}
    near = difflib.get_close_matches(name.casefold().replace(" ", "_"), [*folded, *tails], n=3, cutoff=0.7)
    names = list(dict.fromkeys(folded.get(found) or tails[found] for found in near))
    if not names:
        return "write an IANA name such as Europe/Berlin, America/New_York or UTC"
    return f"the nearest names are {', '.join(names)}"


def _local_second(text: str, year: int) -> int:
    """Return the local second of a rule's change in that year, since 1970-01-01 00:00."""
    match = _DAY.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a day of a POSIX TZ rule")
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
