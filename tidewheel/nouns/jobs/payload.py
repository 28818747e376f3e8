"""The fields of a payload, by the JSON schema of the model that its handler declares."""

import json
import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import replace

from tidewheel.errors import FieldError
from tidewheel.jobs.invalid import InvalidValue
from tidewheel.jobs.strict_json import as_list, as_object
from tidewheel.nouns.jobs.fields import FIELDS, NOTHING, Kind, SpecField, put, text_of, value_of
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements

_READ_PAYLOAD_SCHEMA = Statements("tidewheel.control")["read_payload_schema"]
_PAYLOAD = next(each for each in FIELDS if each.path == "payload")
_NAME = re.compile(r"[\w-]+")  # others would be no part of a path
_MOST = 50  # fields: the JSON has all
_DEEPEST = 8  # references to references
_NULL = {"type": "null"}
_KINDS: Mapping[tuple[object, object], Kind] = {
    ("string", "date-time"): "moment", ("string", None): "string", ("integer", None): "whole",
    ("number", None): "real", ("boolean", None): "flag",
}  # fmt: skip
"""Kinds by type and format; other formats of a string are texts."""


def read_payload_fields(connection: Conn, handler: str) -> Sequence[SpecField]:
    """Return the fields of a handler's payload; none if no executor has recorded its schema."""
    row = connection.execute(_READ_PAYLOAD_SCHEMA, {"handler": handler}, binary=True).fetchone()
    return payload_fields(as_object(json.loads(row[0])) or {}) if row and isinstance(row[0], str) else ()


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


def payload_of(text: str) -> object:
    """Return the payload of a JSON text, an empty object for no text; `NOTHING` if it is unreadable."""
    try:
        return value_of(_PAYLOAD, text) if text.strip() else {}
    except InvalidValue:
        return NOTHING


def typed_payload(payload: object, fields: Sequence[SpecField]) -> dict[str, str]:
    """Return a payload as the texts of its fields.

    >>> typed_payload({"depot": 4}, payload_fields({"properties": {"depot": {"type": "integer"}}}))
    {'payload.depot': '4'}
    """
    found = as_object(payload) or {}
    return {each.path: text_of(each, found[each.label]) if each.label in found else "" for each in fields}


def over_payload(
    job: Mapping[str, object], texts: Mapping[str, str], shown: str, fields: Sequence[SpecField]
) -> tuple[dict[str, object], Sequence[FieldError]]:
    """Return a job with what was typed into the fields of its payload, which had shown a JSON text."""
    was, made, errors = typed_payload(payload_of(shown), fields), deepcopy(dict(job)), list[FieldError]()
    is_object = as_object(job.get("payload", {})) is not None
    for field in fields:
        text = texts.get(field.path, was[field.path]).replace("\r\n", "\n")
        if text == was[field.path].replace("\r\n", "\n"):
            continue
        if not is_object:
            problem = f"it is no object, and {text[:60]!r} was typed into its field {field.label}"
            return made, [FieldError("payload", problem, "write an object, or save once more without the field")]
        try:
            put(made, field.names, value_of(field, text) if text.strip() else NOTHING)
        except InvalidValue as error:
            errors += [replace(each, path=field.path) for each in error.errors]
    return made, errors


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
    return SpecField(f"payload.{name}", name, kind, only="handler", options=options, default=text, help=help)
