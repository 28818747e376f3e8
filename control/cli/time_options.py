"""Instants on the command line: RFC 3339 or local time of a zone; shown in UTC and local time.

A local time that the clock skips or shows twice is refused. The error names the possible instants.
"""

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from tidewheel.errors import FieldError, InvalidInput, refuse
from tidewheel.jobs.invalid import InvalidValue
from tidewheel.jobs.values import parse_duration, parse_timestamp

if TYPE_CHECKING:
    from tidewheel.schedules.zones import Zone

Tz = Annotated[
    str | None,
    typer.Option("--tz", metavar="ZONE", help="IANA time zone of times without an offset, and of the output."),
]

SECONDS = re.compile(r"\d{1,9}(?:\.\d{1,6})?", re.ASCII)
"""A duration as a bare number of seconds."""

_LOCAL = re.compile(r"\d{4}-\d\d-\d\d(?:[Tt ]\d\d:\d\d(?::\d\d(?:\.\d{1,6})?)?)?", re.ASCII)
_OFFSET_WITHOUT_SECONDS = re.compile(r"(\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d)([Zz]|[+-]\d\d:\d\d)", re.ASCII)
_NEAR = 2 * 86_400  # no zone's clock was ever changed by more than a day


def read_instant(text: str, path: str, zone_name: str | None = None) -> datetime:
    """Parse an instant: RFC 3339, or a local time such as `2026-03-29T08:00` if a zone is given.

    Seconds may be left out.

    Raises:
        InvalidInput: It names no instant, or two.
        ScheduleRefused: There is no such zone.
    """
    if not _LOCAL.fullmatch(text):
        try:
            return parse_timestamp(_OFFSET_WITHOUT_SECONDS.sub(r"\1:00\2", text))
        except InvalidValue as invalid:
            raise InvalidInput([FieldError(path, part.problem, part.remedy) for part in invalid.errors]) from invalid
    if zone_name is None:
        problem = f"{text!r} has no offset, so its instant is unknown"
        refuse(path, problem, f"add its time zone with --tz, or write {_utc(text)}")
    try:
        local = datetime.fromisoformat(text)
    except ValueError as error:
        refuse(path, f"{text!r} is not a valid time ({error})", "write one such as 2026-03-29T08:00")
    from tidewheel.schedules.zones import zone  # here: most commands read no local time

    return _on_clock_of(zone(zone_name), local, text, path)


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
