"""Instants on the command line, as every option reads them; shown in UTC and local time.

| text | instant |
| --- | --- |
| `2026-03-29T08:00:00+02:00`, `2026-03-29T06:00Z` | RFC 3339; the seconds may be left out |
| `2026-03-29`, `2026-03-29T08:00` | a time of the zone that --tz names |
| `now` | the present |
| `+5m`, `-1h30m` | from now on, and ago |
| `24h` | ago where an option looks back, from now on where it looks ahead |
| `yesterday`, `today`, `tomorrow 09:00` | a day of the zone that --tz names, else of UTC |

A local time that the clock skips or shows twice is refused. The error names the possible instants. The present is that
of this machine's clock.
"""

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from tidewheel.clock import SystemClock
from tidewheel.errors import FieldError, InvalidInput, ScheduleRefused, refuse
from tidewheel.jobs.invalid import InvalidValue
from tidewheel.jobs.values import format_timestamp, parse_duration, parse_timestamp

if TYPE_CHECKING:
    from tidewheel.schedules.zones import Zone


def _known_zone(name: str | None) -> str | None:
    """Return the value of --tz; refuse an unknown zone also where no time needs it."""
    if name is not None:
        from tidewheel.schedules.zones import zone  # here: most commands read no local time

        try:
            zone(name)
        except ScheduleRefused as refused:
            raise InvalidInput([FieldError("--tz", each.problem, each.remedy) for each in refused.errors]) from None
    return name


Tz = Annotated[
    str | None,
    typer.Option(
        "--tz",
        metavar="ZONE",
        help="IANA time zone of times without an offset, and of the output.",
        callback=_known_zone,
    ),
]

After = Annotated[
    str | None,
    typer.Option("--after", metavar="PLACE", help="Begin after this place; the last line of a page names it."),
]

SECONDS = re.compile(r"\d{1,9}(?:\.\d{1,6})?", re.ASCII)
"""A duration as a bare number of seconds."""

_PLACE = re.compile(r"(\S{20,40})/(\d{1,18})", re.ASCII)
_RELATIVE = re.compile(r"([+-]?)(?=[P\d])(.+)", re.ASCII)
_NAMED_DAY = re.compile(r"(yesterday|today|tomorrow)(?:[ T](\d\d:\d\d(?::\d\d)?))?", re.ASCII | re.IGNORECASE)
_DAYS = {"yesterday": -1, "today": 0, "tomorrow": 1}
_EXAMPLES = "write RFC 3339 such as 2026-03-29T08:00:00Z, or now, +5m, 24h, yesterday"
_LOCAL = re.compile(r"\d{4}-\d\d-\d\d(?:[Tt ]\d\d:\d\d(?::\d\d(?:\.\d{1,6})?)?)?", re.ASCII)
_OFFSET_WITHOUT_SECONDS = re.compile(r"(\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d)([Zz]|[+-]\d\d:\d\d)", re.ASCII)
_NEAR = 2 * 86_400  # no zone's clock was ever changed by more than a day


def read_instant(
    text: str, path: str, zone_name: str | None = None, *, ahead: bool = False, now: datetime | None = None
) -> datetime:
    """Parse an instant in one of the forms above.

    Args:
        text: The text.
        path: The option, for the error.
        zone_name: The zone of local times and named days.
        ahead: True if a duration without a sign is from now on, False if it is ago.
        now: The present; this machine's clock by default.

    Raises:
        InvalidInput: It names no instant, or two.
        ScheduleRefused: There is no such zone.

    >>> noon = datetime(2026, 3, 29, 12, tzinfo=UTC)
    >>> for text in ("now", "+5m", "24h", "yesterday", "tomorrow 09:00"):
    ...     print(rfc3339(read_instant(text, "--since", now=noon)))
    2026-03-29T12:00:00Z
    2026-03-29T12:05:00Z
    2026-03-28T12:00:00Z
    2026-03-28T00:00:00Z
    2026-03-30T09:00:00Z
    """
    present = now or SystemClock().now()
    if text.lower() == "now":
        return present
    if day := _NAMED_DAY.fullmatch(text):
        text, zone_name = _local_day(day, zone_name or "UTC", present), zone_name or "UTC"
    elif (instant := _relative(text, present, path, ahead=ahead)) is not None:
        return instant
    if not _LOCAL.fullmatch(text):
        try:
            return parse_timestamp(_OFFSET_WITHOUT_SECONDS.sub(r"\1:00\2", text))
        except InvalidValue as invalid:
            dated = text[:5].count("-") == 1 and text[:4].isdigit()
            errors = [FieldError(path, part.problem, part.remedy if dated else _EXAMPLES) for part in invalid.errors]
            raise InvalidInput(errors) from invalid
    if zone_name is None:
        problem = f"{text!r} has no offset, so its instant is unknown"
        refuse(path, problem, f"add its time zone with --tz, or write {_utc(text)}")
    try:
        local = datetime.fromisoformat(text)
    except ValueError as error:
        refuse(path, f"{text!r} is not a valid time ({error})", "write one such as 2026-03-29T08:00")
    from tidewheel.schedules.zones import zone  # here: most commands read no local time

    return _on_clock_of(zone(zone_name), local, text, path)


def read_place(text: str) -> tuple[datetime, int]:
    """Parse the place of a row in a list: its instant and its id.

    Raises:
        InvalidInput: It is none.
    """
    if (found := _PLACE.fullmatch(text)) is None:
        refuse("--after", f"{text!r} is no place", "copy it from the last line of a page")
    return read_instant(found[1], "--after"), int(found[2])


def place_text(at: datetime, number: int) -> str:
    """Return the text of a place."""
    return f"{format_timestamp(at)}/{number}"


def read_duration(text: str, path: str) -> timedelta:
    """Parse a duration; a bare number is seconds.

    Raises:
        InvalidInput: It names no duration.
    """
    try:
        return parse_duration(float(text) if SECONDS.fullmatch(text) else text)
    except InvalidValue as invalid:
        raise InvalidInput([FieldError(path, part.problem, part.remedy) for part in invalid.errors]) from invalid


def rfc3339(at: datetime) -> str:
    """Return an instant in UTC, in its shortest exact form.

    >>> from datetime import timezone
    >>> rfc3339(datetime(2026, 3, 29, 8, tzinfo=timezone(timedelta(hours=2))))
    '2026-03-29T06:00:00Z'
    """
    return at.astimezone(UTC).replace(tzinfo=None).isoformat() + "Z"


def wall(local: datetime) -> str:
    """Return a local time with weekday, offset and abbreviation; for UTC the weekday alone.

    >>> from tidewheel.schedules.describe import to_zone
    >>> wall(to_zone(datetime(2026, 3, 29, 1, tzinfo=UTC), "Europe/Berlin"))
    'Sun 2026-03-29T03:00:00+02:00 CEST'
    """
    if local.tzname() == "UTC":
        return f"{local:%a}"
    name = local.tzname() or ""
    return f"{local:%a} {local.isoformat()}" + (f" {name}" if name[:1].isalpha() else "")


def utc_and_local(at: datetime, zone_name: str | None) -> str:
    """Return an instant in UTC, followed by the local time if a zone other than UTC is known."""
    if zone_name is None or zone_name == "UTC":
        return rfc3339(at)
    from tidewheel.schedules.describe import to_zone  # here: UTC needs no zone data

    return f"{rfc3339(at)}  {wall(to_zone(at, zone_name))}"


def _local_day(day: re.Match[str], zone_name: str, now: datetime) -> str:
    """Return a named day, with its time, as a local time of the zone."""
    from tidewheel.schedules.describe import to_zone  # here: most commands read no local time

    date = to_zone(now, zone_name).date() + timedelta(days=_DAYS[day[1].lower()])
    return f"{date.isoformat()}T{day[2]}" if day[2] else f"{date.isoformat()}T00:00"


def _relative(text: str, now: datetime, path: str, *, ahead: bool) -> datetime | None:
    """Return the instant that a duration names; None if the text is none."""
    found = _RELATIVE.fullmatch(text)
    if found is None or (not found[1] and SECONDS.fullmatch(found[2])):
        return None  # a number without a sign may be a year or a time of Unix
    try:
        span = parse_duration(float(found[2]) if SECONDS.fullmatch(found[2]) else found[2])
        return now + span if found[1] == "+" or (ahead and not found[1]) else now - span
    except OverflowError:
        refuse(path, f"{text!r} is outside the calendar", _EXAMPLES)
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
