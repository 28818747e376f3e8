"""Options with times, and times in output: UTC beside local time. control/instants.py reads them."""

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Annotated, TypeVar
from uuid import UUID

import typer

from tidewheel.control.instants import SECONDS, read_instant
from tidewheel.errors import FieldError, InvalidInput, ScheduleRefused, refuse
from tidewheel.jobs.invalid import InvalidValue
from tidewheel.jobs.values import format_timestamp, parse_duration


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

T = TypeVar("T")
_IDS: Mapping[object, str] = {int: r"\d{1,18}", UUID: r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"}


def read_place(text: str, kind: Callable[[str], T]) -> tuple[datetime, T]:
    """Parse the place of a row in a list: its instant and its id; raise InvalidInput if it is none."""
    if (found := re.fullmatch(rf"(\S{{20,40}})/({_IDS[kind]})", text, re.ASCII)) is None:
        refuse("--after", f"{text!r} is no place", "copy it from the last line of a page")
    return read_instant(found[1], "--after"), kind(found[2])


def place_text(at: datetime, number: int | UUID) -> str:
    """Return the text of a place."""
    return f"{format_timestamp(at)}/{number}"


def read_duration(text: str, path: str) -> timedelta:
    """Parse a duration; a bare number is seconds. Raise InvalidInput for other texts."""
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
