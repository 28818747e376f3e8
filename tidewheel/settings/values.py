"""Types of values that a setting takes in several forms: durations, lists."""

import re
from datetime import timedelta
from typing import Annotated, Final, cast

from pydantic import BeforeValidator

from tidewheel.jobs.values import parse_duration

_NUMBER: Final = re.compile(r"\d{1,12}(?:\.\d{1,9})?", re.ASCII)


def _duration(value: object) -> timedelta:
    """Return a duration in any form that requests accept; a number, also as text, is seconds."""
    match value:
        case timedelta():
            return value
        case str():
            bare = value.strip()
            return parse_duration(float(bare) if _NUMBER.fullmatch(bare) else bare)
        case int() | float() if not isinstance(value, bool):
            return parse_duration(value)
        case _:
            message = "write a duration such as 10s, 5m or 250ms, or a number of seconds"
            raise ValueError(message)


Duration = Annotated[timedelta, BeforeValidator(_duration)]


def _entries(value: object) -> object:
    """Return the entries of a list: of the file, or of a variable, separated by commas or line ends."""
    parts = re.split(r"[,\n]", value) if isinstance(value, str) else value
    if not isinstance(parts, list | tuple):
        message = "write entries separated by commas or line ends, or a list in the file"
        raise ValueError(message)  # noqa: TRY004 - pydantic reports a ValueError
    return tuple(entry for part in cast("list[object]", parts) if (entry := str(part).strip()))


Entries = Annotated[tuple[str, ...], BeforeValidator(_entries)]
