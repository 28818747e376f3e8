"""Arguments of the client: one of a wrong type is refused by its name, before anything reads it."""

from collections.abc import Mapping
from typing import cast
from uuid import UUID

from tidewheel.errors import refuse
from tidewheel.jobs.validation import shown


def as_id(value: UUID | str, name: str) -> UUID:
    """Return an id, also from its text.

    >>> as_id("00000000-0000-0000-0000-000000000001", "run_id")
    UUID('00000000-0000-0000-0000-000000000001')

    Raises:
        InvalidInput: The value is no id; the error has the argument's name.
    """
    try:
        return value if isinstance(value, UUID) else UUID(value)
    except (AttributeError, TypeError, ValueError):
        pass
    return refuse(name, f"{shown(value)} is not an id", "pass the UUID from a reply, an event or a list")


def as_document(value: object, name: str) -> dict[str, object]:
    """Return a mapping as a document.

    Raises:
        InvalidInput: The value is no mapping of names; the error has the argument's name.
    """
    if not isinstance(value, Mapping):
        refuse(name, f"{shown(value)} is not a mapping", f"pass the fields of the {name} by their names")
    return dict(cast("Mapping[str, object]", value))
