"""Records to messages and back: Avro single-object encoding, and JSON, recognised on reading.

An Avro message names its writer's schema by fingerprint. `decode` looks for a foreign schema among the released ones in
the tree, then through `install_lookup`: the table `schemas`, to which `tidewheel migrate` adds those of its release. It
resolves the message to the record of this release.

`decode` returns a record or raises UndecodableMessage, for any bytes. An error of the look-up itself passes through,
since an unreachable database is no fault of the message.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from io import BytesIO
from typing import Any, Generic, NamedTuple, TypeVar

from fastavro import (
    parse_schema,
    schemaless_reader,  # pyright: ignore[reportUnknownVariableType] - its stubs leave IO without a type
    schemaless_writer,  # pyright: ignore[reportUnknownVariableType] - likewise
)
from fastavro.types import Schema

from tidewheel.errors import UndecodableMessage
from tidewheel.schemas.files import HEADER_BYTES, MAGIC, REGISTRY_MAGIC, current, fingerprint, released
from tidewheel.schemas.generated import records, wire
from tidewheel.schemas.json_form import from_json, to_json

R = TypeVar("R")
Lookup = Callable[[bytes], str | None]
RegistryLookup = Callable[[int], str | None]

_REGISTRY_HEADER_BYTES = 5

MAX_MESSAGE_BYTES = 1 << 20  # Kafka's default max.message.bytes; Tidewheel writes no larger message


@dataclass(frozen=True, slots=True)
class Form(Generic[R]):
    """The wire form of one kind of record; its messages begin with the ten bytes of `header`."""

    name: str
    schema: str
    header: bytes
    encode: Callable[[R], bytes]
    read: Callable[[bytes, int], tuple[R, int]]


def _forms() -> dict[type, Form[Any]]:
    """Return the generated writer and reader of each schema by its record."""
    found: dict[type, Form[Any]] = {}
    for stem, text in current().items():
        name = str(json.loads(text)["name"])
        header: bytes = getattr(wire, f"{stem.upper()}_HEADER")
        found[getattr(records, name)] = Form(
            name, text, header, getattr(wire, f"encode_{stem}"), getattr(wire, f"read_{stem}")
        )
    return found


FORMS: dict[type, Form[Any]] = _forms()


class StoredSchema(NamedTuple):
    """One schema of this release or of one before it."""

    fingerprint: bytes
    name: str
    version: str
    text: str


def encode(record: object) -> bytes:
    """Return a record in Avro single-object encoding: C3 01, eight bytes of fingerprint, body."""
    return FORMS[type(record)].encode(record)


def encode_json(record: object) -> bytes:
    """Return a record as a JSON object, in the form that `json_form` describes."""
    return to_json(record)


def decode(data: bytes, record_type: type[R]) -> R:
    """Return the record of a message."""
    if len(data) > MAX_MESSAGE_BYTES:
        msg = f"the message has {len(data)} bytes; at most {MAX_MESSAGE_BYTES} are read"
        raise UndecodableMessage(msg)
    form: Form[R] = FORMS[record_type]
    if data.startswith(form.header):
        return _read(data, form)
    if data.startswith(MAGIC):
        return _read(_resolved(data, HEADER_BYTES, _schema_named(data[len(MAGIC) : HEADER_BYTES]), form), form)
    if is_registry_format(data) and (lookup := _registry.get("lookup")) is not None:
        return _read(_resolved(data, _REGISTRY_HEADER_BYTES, _schema_numbered(data, lookup), form), form)
    if data.lstrip()[:1] == b"{":
        return from_json(data, record_type)
    raise UndecodableMessage(_unrecognised(data))


def is_avro(data: bytes) -> bool:
    """Return True if a message begins as Avro single-object encoding does."""
    return data.startswith(MAGIC)


def is_registry_format(data: bytes) -> bool:
    """Return True if a message begins as the wire format of a schema registry does."""
    return data.startswith(REGISTRY_MAGIC)


def all_schemas() -> list[StoredSchema]:
    """Return every schema of this release and of those before it, each fingerprint once."""
    found: dict[bytes, StoredSchema] = {}
    for version, texts in released().items():
        for text in texts.values():
            found.setdefault(fingerprint(text), StoredSchema(fingerprint(text), _name(text), version, text))
    for text in current().values():
        found.setdefault(fingerprint(text), StoredSchema(fingerprint(text), _name(text), "unreleased", text))
    return list(found.values())


def install_lookup(lookup: Lookup | None) -> None:
    """Set the look-up for schemas that this release does not contain, for the whole process.

    A found schema is kept. A missing one is looked up again: the release that wrote it may be migrating now.
    """
    _state["lookup"] = lookup
    _looked_up.clear()


def install_registry(lookup: RegistryLookup | None) -> None:
    """Set the look-up of a schema registry's ids, for the whole process. A found schema is kept."""
    _registry["lookup"] = lookup
    _numbered.clear()


_registry: dict[str, RegistryLookup | None] = {"lookup": None}
_numbered: dict[int, str] = {}
_state: dict[str, Lookup | None] = {"lookup": None}
_looked_up: dict[bytes, str] = {}


def _read(data: bytes, form: Form[R]) -> R:
    try:
        record, behind = form.read(data, HEADER_BYTES)
    except Exception as error:
        raise _damaged(form, error) from error
    if behind != len(data):
        surplus = len(data) - behind
        what = f"{surplus} bytes follow the record" if surplus > 0 else f"the record is cut short by {-surplus} bytes"
        msg = f"this is not a readable {form.name}: {what}"
        raise UndecodableMessage(msg)
    return record


def _resolved(data: bytes, start: int, writer: str, form: Form[R]) -> bytes:
    """Return a message of a foreign schema, with its body at `start`, as this release writes it."""
    try:
        name = _name(writer)
    except ValueError as error:
        raise _damaged(form, error) from error
    if name != form.name:
        msg = f"the message is a {name}, and a {form.name} is expected"
        raise UndecodableMessage(msg)
    source, target = BytesIO(data), BytesIO()
    source.seek(start)
    try:
        datum = schemaless_reader(source, _parsed(writer), _parsed(form.schema))
        target.write(form.header)
        schemaless_writer(target, _parsed(form.schema), datum)
    except Exception as error:
        raise _damaged(form, error) from error
    if surplus := len(data) - source.tell():
        msg = f"this is not a readable {form.name}: {surplus} bytes follow the record"
        raise UndecodableMessage(msg)
    return target.getvalue()


def _schema_named(name: bytes) -> str:
    if known := _own_schemas().get(name) or _looked_up.get(name):
        return known
    lookup = _state["lookup"]
    if len(name) == HEADER_BYTES - len(MAGIC) and lookup is not None and (found := lookup(name)):
        _looked_up[name] = _checked(found, name)
        return found
    msg = (
        f"schema id {name.hex()} is unknown; run `tidewheel migrate` of the release that wrote the message, "
        "or send the request as JSON or with a schema of this release"
    )
    raise UndecodableMessage(msg)


def _schema_numbered(data: bytes, lookup: RegistryLookup) -> str:
    if len(data) < _REGISTRY_HEADER_BYTES:
        msg = "the message is cut short within the schema id of its registry's wire format"
        raise UndecodableMessage(msg)
    number = int.from_bytes(data[len(REGISTRY_MAGIC) : _REGISTRY_HEADER_BYTES])
    if number not in _numbered:
        found = lookup(number)
        if found is None:
            msg = f"the schema registry has no Avro schema of id {number}; register it there, or send JSON"
            raise UndecodableMessage(msg)
        _numbered[number] = found
    return _numbered[number]


def _checked(schema: str, name: bytes) -> str:
    """Return a schema that was looked up if it has the expected fingerprint."""
    try:
        right = fingerprint(schema) == name
    except Exception as error:
        problem = f"the entry stored under schema id {name.hex()} is not a schema: {str(error)[:200]}"
        msg = f"{problem}; run `tidewheel migrate`"
        raise UndecodableMessage(msg) from error
    if not right:
        msg = f"the entry stored under schema id {name.hex()} is another schema; run `tidewheel migrate`"
        raise UndecodableMessage(msg)
    return schema


def _damaged(form: Form[R], error: Exception) -> UndecodableMessage:
    return UndecodableMessage(f"this is not a readable {form.name}: {type(error).__name__}: {str(error)[:200]}")


def _unrecognised(data: bytes) -> str:
    if not data:
        return "the message is empty"
    if data[0] == 0:
        hint = "; 00 begins the wire format of a schema registry: set TIDEWHEEL_SCHEMA_REGISTRY_URL"
    elif data.startswith(b"\xef\xbb\xbf"):
        hint = "; EF BB BF is a byte order mark: send JSON without it"
    else:
        hint = ""
    return f"the message begins with {data[:12].hex(' ')}: neither JSON nor Avro single-object encoding (c3 01){hint}"


@cache
def _own_schemas() -> dict[bytes, str]:
    return {schema.fingerprint: schema.text for schema in all_schemas()}


@cache
def _parsed(schema: str) -> Schema:
    return parse_schema(json.loads(schema))


@cache
def _name(schema: str) -> str:
    parsed = json.loads(schema)
    return str(parsed.get("name")) if isinstance(parsed, dict) else str(parsed)  # pyright: ignore[reportUnknownArgumentType, reportUnknownMemberType]
