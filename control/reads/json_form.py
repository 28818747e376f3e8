"""The JSON form of what is read: the same facts for `--output json` and for REST."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass
from datetime import date, datetime, timedelta
from enum import Enum
from typing import Any, cast
from uuid import UUID

from pydantic import WithJsonSchema

from tidewheel.jobs.strict_json import Json
from tidewheel.jobs.values import format_iso_duration


def as_json(value: object) -> Json:
    """Return the JSON form: a dataclass as its fields, an instant, a duration or an id as text."""
    if value is None or type(value) in (bool, int, float, str):
        return cast("Json", value)
    for kind, show in _TEXTS:
        if isinstance(value, kind):
            return show(value)
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: as_json(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(name): as_json(part) for name, part in cast("Mapping[object, object]", value).items()}
    return [as_json(part) for part in cast("Iterable[object]", value)]


def one_of(values: Iterable[str]) -> WithJsonSchema:
    """Annotate a text that has one of these values, for the schema of its record."""
    return WithJsonSchema({"type": "string", "enum": [str(value) for value in values]})


_TEXTS: tuple[tuple[type, Callable[[Any], str]], ...] = (
    (Enum, lambda value: str(value.value)),
    (datetime, lambda value: value.isoformat().replace("+00:00", "Z")),
    (date, date.isoformat),
    (timedelta, format_iso_duration),
    (UUID, str),
    (bytes, lambda value: value.decode(errors="replace")),
)
