"""Instants as text: RFC 3339 with an offset, and nothing else.

Source: RFC 3339 section 5.6, "Internet Date/Time Format".
"""

import re
from datetime import UTC, datetime

from tidewheel.jobs.misfit import Misfit

_RFC3339 = re.compile(r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d:\d\d(?:\.\d{1,9})?)([Zz]|[+-]\d\d:\d\d)?", re.ASCII)
_EARLIEST_YEAR = 1970  # run ids count milliseconds from here
_EXAMPLE = "2026-03-29T08:00:00+02:00"


def parse_timestamp(text: str) -> datetime:
    """Return an instant in UTC; what is finer than a microsecond is cut off.

    >>> parse_timestamp("2026-03-29T08:00:00+02:00").isoformat()
    '2026-03-29T06:00:00+00:00'

    Raises:
        Misfit: It names no instant.
    """
    match = _RFC3339.fullmatch(text) if len(text) <= 64 else None
    if match is None:
        raise Misfit(problem=f"{text[:64]!r} is no RFC 3339 timestamp", remedy=f"write one such as {_EXAMPLE}")
    date, time, offset = match.groups()
    if offset is None:
        problem = f"{text!r} has no offset, so it names no instant"
        raise Misfit(problem=problem, remedy=f"write {date}T{time}Z, or an offset such as +02:00 in place of the Z")
    try:
        moment = datetime.fromisoformat(f"{date}T{time}{offset.upper()}").astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise Misfit(problem=f"{text!r} is no instant ({error})", remedy=f"write one such as {_EXAMPLE}") from error
    if moment.year < _EARLIEST_YEAR:
        raise Misfit(problem=f"{text!r} lies before {_EARLIEST_YEAR}", remedy="write a later instant")
    return moment


def format_timestamp(moment: datetime) -> str:
    """Return an aware instant in UTC with microseconds, so that equal instants are equal text.

    >>> format_timestamp(datetime(2026, 3, 29, 6, tzinfo=UTC))
    '2026-03-29T06:00:00.000000Z'
    """
    return moment.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"
