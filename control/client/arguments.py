"""Arguments of the client: one of a wrong type is refused by its name, before anything reads it."""

import math
from collections.abc import Mapping
from datetime import timedelta
from typing import cast
from uuid import UUID

from tidewheel.errors import refuse
from tidewheel.jobs.validation import ensure_text_names, shown

MAX_INT = 2**31 - 1  # of an `integer` column
MAX_BIGINT = 2**63 - 1


def as_id(value: UUID | str, name: str) -> UUID:
    """Return an id, also from its text.

    >>> as_id("00000000-0000-0000-0000-000000000001", "run_id")
    UUID('00000000-0000-0000-0000-000000000001')
    """
    try:
        return value if isinstance(value, UUID) else UUID(value)
    except (AttributeError, TypeError, ValueError):
        pass
    return refuse(name, f"{shown(value)} is not an id", "pass the UUID from a reply, an event or a list")


def as_document(value: object, name: str) -> dict[str, object]:
    """Return a mapping as a document."""
    if not isinstance(value, Mapping):
        refuse(name, f"{shown(value)} is not a mapping", f"pass the fields of the {name} by their names")
    document = cast("Mapping[str, object]", value)
    ensure_text_names(document, name)
    return dict(document)


def as_int(value: int, name: str, most: int = MAX_INT) -> int:
    """Return a number that a column holds.

    >>> as_int(3, "attempt")
    3
    """
    if type(value) is not int or not 0 <= value <= most:
        refuse(name, f"{shown(value)} does not fit", f"pass a whole number from 0 to {most}")
    return value


def as_seconds(timeout: timedelta | float) -> float:
    """Return a timeout in seconds."""
    seconds = timeout.total_seconds() if isinstance(timeout, timedelta) else timeout
    if type(seconds) not in {int, float} or not (0 <= seconds < math.inf):
        refuse("timeout", f"{shown(seconds)} is not a timeout", "pass a number of seconds, 0 or more")
    return seconds
