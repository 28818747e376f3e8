"""The fields of a payload, by the JSON schema of the model that its handler declares."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from tidewheel.control.reads.stored import read_stored_json
from tidewheel.errors import FieldError, InvalidInput
from tidewheel.jobs.invalid import InvalidValue
from tidewheel.jobs.strict_json import as_list, as_object
from tidewheel.nouns.jobs.fields import FIELDS, Kind, SpecField, json_text, text_of, value_of
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements

_READ_PAYLOAD_SCHEMA = Statements("tidewheel.control")["read_payload_schema"]
_PAYLOAD = next(each for each in FIELDS if each.path == "payload")
_NAME = re.compile(r"[\w-]+")  # others would be no part of a path
_MOST = 50  # fields: the JSON has all
_DEEPEST = 8  # references to references
_LOST = re.compile(r"[\x00-\x08\x0b-\x1f]")  # browsers change or drop these characters
_NULL = {"type": "null"}
_KINDS: Mapping[tuple[object, object], Kind] = {
    ("string", "date-time"): "moment", ("string", None): "string", ("integer", None): "whole",
    ("number", None): "real", ("boolean", None): "flag",
}  # fmt: skip
"""Kinds by type and format; other formats of a string are texts."""


def read_payload_fields(connection: Conn, handler: str) -> Sequence[SpecField]:
    """Return the fields of a handler's payload; none if no executor has recorded its schema."""
    row = connection.execute(_READ_PAYLOAD_SCHEMA, {"handler": handler}, binary=True).fetchone()
    if row is None or not isinstance(row[0], str):
        return ()
    return payload_fields(as_object(read_stored_json("payload_schema", row[0], handler)) or {})


def payload_fields(schema: Mapping[str, object]) -> list[SpecField]:
    """Return the fields of an object's properties; a property of another type has none.

    >>> payload_fields({"properties": {"to": {"type": "string"}, "of": {"type": "array"}}})[0].path
    'payload.to'
    """
    definitions = as_object(schema.get("$defs")) or {}
    whole = _resolved(schema, definitions)
    required = as_list(whole.get("required")) or ()
    found = [
        _field(name, _resolved(as_object(part) or {}, definitions), is_required=name in required)
        for name, part in (as_object(whole.get("properties")) or {}).items()
        if _NAME.fullmatch(name)
    ]
    return [each for each in found if each is not None][:_MOST]


def split_payload(text: str, fields: Sequence[SpecField]) -> dict[str, str] | None:
    r"""Return a payload as the texts of its fields and the JSON of the rest; None if it is no object.

    A value that its field cannot show exactly, such as null, stays with the rest.

    >>> split_payload('{"depot": 4, "b": []}', payload_fields({"properties": {"depot": {"type": "integer"}}}))
    {'payload.depot': '4', 'payload': '{\n  "b": []\n}'}
    """
    try:
        payload = _object_of(text)
    except InvalidValue:
        return None
    found = {each.label: text_of(each, payload[each.label]) for each in fields if _is_exact(each, payload)}
    rest = {name: value for name, value in payload.items() if name not in found}
    typed = {each.path: found.get(each.label, "") for each in fields}
    return typed | {"payload": json_text(rest) if text.strip() else ""}


def join_payload(texts: Mapping[str, str], fields: Sequence[SpecField], was: Mapping[str, object]) -> str:
    """Return the JSON text of a payload from the texts of its fields and the JSON of the rest.

    Args:
        was: The payload before, whose order remains: jobs with another order differ.

    Raises:
        InvalidInput: A text cannot be read, with the path of its field.
    """
    given = {each: text for each in fields if (text := texts.get(each.path, "").replace("\r\n", "\n")).strip()}
    if not given:
        return texts.get("payload", "")
    found, rest, errors = dict[str, object](), dict[str, object](), list[FieldError]()
    for field, text in given.items():
        try:
            found[field.label] = value_of(field, text)
        except InvalidValue as error:
            errors += [replace(each, path=field.path) for each in error.errors]
    try:
        rest = _object_of(texts.get("payload", ""))
    except InvalidValue as error:
        errors += [replace(each, path="payload") for each in error.errors]
    if twice := ", ".join(repr(each.label) for each in given if each.label in rest):
        errors.append(FieldError("payload", f"{twice}: typed into the fields above, too", "write each value once"))
    if errors:
        raise InvalidInput(errors)
    made = {**found, **rest}
    return json_text({name: made[name] for name in (*was, *made) if name in made})


def _is_exact(field: SpecField, payload: Mapping[str, object]) -> bool:
    """Return True if a value comes back from its field as it was."""
    if field.label not in payload:
        return False
    value = payload[field.label]
    text = text_of(field, value)
    try:
        return bool(text.strip()) and not _LOST.search(text) and value_of(field, text) == value
    except InvalidValue:
        return False


def _object_of(text: str) -> dict[str, object]:
    """Return the object that a JSON text describes; an empty one for no text."""
    found = as_object(value_of(_PAYLOAD, text)) if text.strip() else {}
    if found is None:
        raise InvalidValue(problem="is no object, and has fields", remedy="write an object, or empty the fields above")
    return found


def _resolved(part: Mapping[str, object], definitions: Mapping[str, object]) -> Mapping[str, object]:
    """Return a schema with what it refers to in its place, and without its null."""
    for _ in range(_DEEPEST):
        choices = [each for each in as_list(part.get("anyOf")) or () if each != _NULL]
        below = choices[0] if len(choices) == 1 else None
        if isinstance(name := part.get("$ref"), str):
            below = definitions.get(name.rpartition("/")[2])
        if (found := as_object(below)) is None:
            break
        part = {**found, **{name: value for name, value in part.items() if name not in {"$ref", "anyOf"}}}
    return part


def _field(name: str, part: Mapping[str, object], *, is_required: bool) -> SpecField | None:
    values = as_list(part.get("enum")) or ([part["const"]] if "const" in part else ())
    types = part.get("type") if isinstance(part.get("type"), str) else None  # a list of types is typed as JSON
    kind = _KINDS.get((types, str(part.get("format")))) or _KINDS.get((types, None))
    options: tuple[str, ...] = ("true", "false") if kind == "flag" else ()
    if values:
        kind = "string" if all(isinstance(each, str) for each in values) else "json"
        options = tuple(str(each) if kind == "string" else json.dumps(each) for each in values)
    if kind is None:
        return None
    default = part.get("default")
    text = default if isinstance(default, str) else "" if default is None else json.dumps(default)
    example = "Such as 2026-12-24T08:00:00Z." if kind == "moment" else ""
    help = " ".join(filter(None, (str(part.get("description", "")), example, "Required." if is_required else "")))
    return SpecField(f"payload.{name}", name, kind, options=options, default=text, help=help)
