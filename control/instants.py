"""Instants as people write them on the command line.

| text | instant |
| --- | --- |
| `2026-03-29T08:00:00+02:00`, `2026-03-29T06:00Z` | RFC 3339; the seconds may be left out |
| `2026-03-29`, `2026-03-29T08:00` | a time of the zone that the reader names |
| `now` | the present |
| `+5m`, `-1h30m`, `in 5 min`, `3 s ago` | from now on, and ago |
| `24h` | ago where an option looks back, from now on where it looks ahead |
| `2:30`, `3am`, `3:15 pm`, `yesterday`, `Fri 2:30` | a day of that zone, else of UTC; a weekday is the last one |
| `13 Nov 02:30`, `Fri 13 Nov 2026`, `Nov 13, 2:30` | likewise; without a year it is the nearest one |

A local time that the clock skips or shows twice is refused. The error names the possible instants. ` UTC` behind a
local time is its zone.
"""

import re
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING

from tidewheel.clock import SystemClock
from tidewheel.errors import FieldError, InvalidInput, refuse
from tidewheel.jobs.invalid import InvalidValue
from tidewheel.jobs.values import format_timestamp, parse_duration, parse_timestamp

if TYPE_CHECKING:
    from tidewheel.schedules.zones import Zone

SECONDS = re.compile(r"\d{1,9}(?:\.\d{1,6})?", re.ASCII)
"""A duration as a bare number of seconds."""

_NUMBER = re.compile(r"\d{1,15}(?:\.\d{1,9})?", re.ASCII)
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_WEEKDAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_DAYS = {"yesterday": -1, "today": 0, "tomorrow": 1}
_NEAREST_YEARS = 4  # before and after now in which a date without a year is looked for: each has a leap day
_LATE = timedelta(minutes=1)  # between the computation of a time by a script and its use here
_NEAR = 2 * 86_400  # no zone's clock was ever changed by more than a day

_WEEKDAY = r"(?P<weekday>mon|tue|wed|thu|fri|sat|sun)(?:day|sday|nesday|rsday|urday)?"
_MONTH = r"(?P<month>jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]{0,6}"
_YEAR = r"(?:,? (?P<year>\d{4}))?"
_CLOCK = r"(?P<clock>(?!24)\d{1,2}:\d\d(?::\d\d(?:\.\d{1,6})?)?)"  # newer Pythons read 24:00 as the next day
_IN_WORDS = [
    re.compile(form, re.ASCII | re.IGNORECASE)
    for form in (
        _CLOCK,
        rf"(?P<named>yesterday|today|tomorrow)(?:[ T]{_CLOCK})?",
        rf"{_WEEKDAY}(?:,? {_CLOCK})?",
        rf"(?:{_WEEKDAY},? )?(?P<day>\d{{1,2}})\.? {_MONTH}{_YEAR}(?:,? {_CLOCK})?",
        rf"(?:{_WEEKDAY},? )?{_MONTH} (?P<day>\d{{1,2}}){_YEAR}(?:,? {_CLOCK})?",
    )
]
_RELATIVE = re.compile(r"([+-]?)(?=[P\d])(.+)", re.ASCII)
_SPOKEN = re.compile(r"(?:(in) )?(\d[\d. a-z]{0,30}?)(?: (ago))?", re.ASCII | re.IGNORECASE)
_LOCAL = re.compile(r"\d{4}-\d\d-\d\d(?:[Tt ](?!24)\d\d:\d\d(?::\d\d(?:\.\d{1,6})?)?)?", re.ASCII)
_OFFSET_WITHOUT_SECONDS = re.compile(r"(\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d)([Zz]|[+-]\d\d:\d\d)", re.ASCII)
_WITHOUT_SECONDS = re.compile(r"(?:.*[Tt ])?\d{1,2}:\d\d(?:[Zz]|[+-]\d\d:\d\d)?", re.ASCII)
_TWELVE_HOURS = re.compile(r"(?<![\d:+-])(1[0-2]|0?[1-9])(:\d\d(?::\d\d(?:\.\d{1,6})?)?)? ?([ap])m\Z", re.ASCII | re.I)
_EXAMPLES = "write 04:03, 3am, yesterday, Fri 02:30, now, +5m, 24h, or RFC 3339 such as 2026-03-29T08:00:00+02:00"


def read_instant(
    text: str, path: str, zone_name: str | None = None, *, ahead: bool = False, now: datetime | None = None
) -> datetime:
    """Parse an instant in one of the forms above.

    Args:
        zone_name: The zone of local times and named days.
        ahead: True if a duration without a sign is from now on, False if it is ago.

    >>> noon = datetime(2026, 3, 29, 12, tzinfo=UTC)
    >>> for text in ("now", "+5m", "24h", "3 min ago", "yesterday", "tomorrow 9am", "2:30", "Fri 13 Nov 02:30"):
    ...     print(f"{read_instant(text, '--since', now=noon):%Y-%m-%d %H:%M}")
    2026-03-29 12:00
    2026-03-29 12:05
    2026-03-28 12:00
    2026-03-29 11:57
    2026-03-28 00:00
    2026-03-30 09:00
    2026-03-29 02:30
    2026-11-13 02:30
    """
    present = now or SystemClock().now()
    if text.lower() == "now":
        return present
    if text.endswith(" UTC"):
        text, zone_name = text.removesuffix(" UTC"), "UTC"
    asked, text = text, _of_24_hours(text)
    if day := next((found for form in _IN_WORDS if (found := form.fullmatch(text))), None):
        text, zone_name = _local_day(day, zone_name or "UTC", present, path), zone_name or "UTC"
    elif (instant := _relative(_unspoken(text), present, path, ahead=ahead)) is not None:
        return instant
    if not _LOCAL.fullmatch(text):
        try:
            return parse_timestamp(_OFFSET_WITHOUT_SECONDS.sub(r"\1:00\2", text))
        except InvalidValue as invalid:
            if text[:5].count("-") != 1 or not text[:4].isdigit():
                refuse(path, f"{asked[:64]!r} is not a time", _EXAMPLES)
            raise InvalidInput([FieldError(path, part.problem, part.remedy) for part in invalid.errors]) from invalid
    if zone_name is None:
        refuse(path, f"{asked!r} has no UTC offset", f"add its time zone with --tz, or write {_utc(text)}")
    try:
        local = datetime.fromisoformat(text)
    except ValueError as error:
        refuse(path, f"{text!r} is not a valid time ({error})", "write a time such as 2026-03-29T08:00")
    from tidewheel.schedules.zones import zone  # here: most commands read no local time

    return _on_clock_of(zone(zone_name), local, text, path)


def typed_number(text: str) -> float | None:
    """Return a number that a person typed; None for any other text.

    >>> [typed_number(text) for text in ("12", "0.5", "inf", "1e9", "1_000", "-1")]
    [12.0, 0.5, None, None, None, None]
    """
    return float(text) if _NUMBER.fullmatch(text) else None


def typed_whole(text: str) -> int | None:
    """Return a whole number of up to nine digits that a person typed; None for any other text.

    >>> [typed_whole(text) for text in ("012", "0.5", "1_000", "-1", "\N{FULLWIDTH DIGIT ONE}", "1234567890")]
    [12, None, None, None, None, None]
    """
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else None


def read_later(text: str, path: str, zone_name: str | None, remedy: str) -> datetime:
    """Parse an instant at which something is to happen; raise as `read_instant`, also if it has passed.

    A script may name the present, by a clock that is a little behind.
    """
    now = SystemClock().now()
    instant = read_instant(text, path, zone_name, ahead=True, now=now)
    if instant < now - _LATE:
        refuse(path, f"{text!r} has passed: that was {format_timestamp(instant)}", f"write a later time, or {remedy}")
    return instant


def unit_of(text: str) -> timedelta:
    """Return the unit to which a text names an instant: a minute if it has no seconds.

    >>> [unit_of(text).seconds for text in ("2:30", "Fri 3am UTC", "2026-03-29T08:00Z", "08:00:07", "+5m")]
    [60, 60, 60, 1, 1]
    """
    text = _of_24_hours(text.removesuffix(" UTC"))
    return timedelta(minutes=1) if _WITHOUT_SECONDS.fullmatch(text) else timedelta(seconds=1)


def _of_24_hours(text: str) -> str:
    """Return a text with a time of twelve hours at its end written with 24.

    >>> [_of_24_hours(text) for text in ("3am", "Fri 12:15 PM", "12 am", "13pm")]
    ['03:00', 'Fri 12:15', '00:00', '13pm']
    """
    return _TWELVE_HOURS.sub(
        lambda found: f"{int(found[1]) % 12 + 12 * (found[3] in 'pP'):02}{found[2] or ':00'}", text
    )


def _local_day(day: re.Match[str], zone_name: str, now: datetime, path: str) -> str:
    """Return a day in words, with its time, as a local time of the zone."""
    from tidewheel.schedules.describe import to_zone  # here: most commands read no local time

    parts = {"named": None, "weekday": None, "month": None, "year": None, **day.groupdict()}
    today = to_zone(now, zone_name).date()
    weekday = _WEEKDAYS.index(parts["weekday"].lower()) if parts["weekday"] else None
    if parts["month"]:
        dates = _dates(today, int(parts["day"] or 0), _MONTHS.index(parts["month"].lower()) + 1, parts["year"])
        if not dates:
            refuse(path, f"{day[0]!r} is not a day of the calendar", _EXAMPLES)
        if not (fitting := [each for each in dates if weekday in {None, each.weekday()}]):
            refuse(path, f"{dates[0].isoformat()} is a {dates[0]:%A}", "leave out the weekday, or add the year")
        found = fitting[0]
    elif weekday is not None:
        found = today - timedelta(days=(today.weekday() - weekday) % 7)
    else:
        found = today + timedelta(days=_DAYS[(parts["named"] or "today").lower()])
    clock = parts["clock"] or "00:00"
    return f"{found.isoformat()}T{clock if clock[2] == ':' else f'0{clock}'}"


def _dates(today: date, day: int, month: int, year: str | None) -> list[date]:
    """Return a day of a month in a year, else in each year that has it, the nearest first."""

    def days() -> Iterator[date]:
        years = [int(year)] if year else range(today.year - _NEAREST_YEARS, today.year + _NEAREST_YEARS + 1)
        for each in years:
            try:
                yield date(each, month, day)
            except ValueError:
                continue

    return sorted(days(), key=lambda found: abs(found - today))


def _unspoken(text: str) -> str:
    """Return a duration as pages write it in the form of an option.

    >>> [_unspoken(text) for text in ("in 5 min", "2 h 5 min ago", "1 h ago", "24h", "2026-01-01")]
    ['+5m', '-2h5m', '-1h', '24h', '2026-01-01']
    """
    found = _SPOKEN.fullmatch(text)
    if found is None or bool(found[1]) == bool(found[3]):
        return text
    return ("+" if found[1] else "-") + found[2].replace(" ", "").replace("min", "m")


def _relative(text: str, now: datetime, path: str, *, ahead: bool) -> datetime | None:
    """Return the instant that a duration names; None if the text is none."""
    found = _RELATIVE.fullmatch(text)
    if found is None or (not found[1] and SECONDS.fullmatch(found[2])):
        return None  # a number without a sign may be a year or a time of Unix
    try:
        span = parse_duration(float(found[2]) if SECONDS.fullmatch(found[2]) else found[2])
        return now + span if found[1] == "+" or (ahead and not found[1]) else now - span
    except OverflowError:
        refuse(path, f"{text!r} is out of range", _EXAMPLES)
    except InvalidValue:
        return None


def _on_clock_of(of: "Zone", local: datetime, text: str, path: str) -> datetime:
    from tidewheel.schedules.schedule import at_second, whole_second

    second = whole_second(local.replace(tzinfo=UTC))
    spans = range(max(of.span_at(second - _NEAR), 0), of.span_at(second + _NEAR) + 1)
    found = sorted(second - of.offsets[span] for span in spans if of.span_at(second - of.offsets[span]) == span)
    if not found:
        after = next(of.starts[span] for span in spans if span and second < of.starts[span] + of.offsets[span])
        problem = f"{text!r} does not exist in {of.name} (DST gap)"
        refuse(path, problem, f"the first time after it is {_pasted(after, of)}")
    if len(found) > 1:
        problem = f"{text!r} occurs {'twice' if len(found) == 2 else 'several times'} in {of.name}"
        refuse(path, problem, f"write {' or '.join(_pasted(one, of) for one in found)}")
    return at_second(found[0]).replace(microsecond=local.microsecond)


def _pasted(second: int, of: "Zone") -> str:
    from tidewheel.schedules.describe import to_zone
    from tidewheel.schedules.schedule import at_second

    return to_zone(at_second(second), of.name).isoformat()


def _utc(text: str) -> str:
    day, _, time = text.upper().replace(" ", "T").partition("T")
    parts = (time or "00:00").split(":")
    return f"{day}T{':'.join(parts if len(parts) == 3 else [*parts, '00'])}Z"
