"""The schema, the writer and the reader of each record that is a message of its own."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from tidewheel.schemas.files import current
from tidewheel.schemas.generated import records, wire

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Form(Generic[R]):
    """The wire form of one kind of record.

    Attributes:
        name: The record's name, as its schema has it.
        schema: The text of the schema.
        header: The ten bytes its messages begin with.
        encode: From the record to the whole message.
        read: From a message and a position to the record and the position behind it.
    """

    name: str
    schema: str
    header: bytes
    encode: Callable[[R], bytes]
    read: Callable[[bytes, int], tuple[R, int]]


def _forms() -> dict[type, Form[Any]]:
    """Gather what the generated modules hold for each schema, by its file's name."""
    found: dict[type, Form[Any]] = {}
    for stem, text in current().items():
        name = str(json.loads(text)["name"])
        header: bytes = getattr(wire, f"{stem.upper()}_HEADER")
        found[getattr(records, name)] = Form(
            name, text, header, getattr(wire, f"encode_{stem}"), getattr(wire, f"read_{stem}")
        )
    return found


FORMS: dict[type, Form[Any]] = _forms()
