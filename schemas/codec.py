"""Records to messages and back: Avro single-object encoding, and JSON, recognised on reading.

An Avro message names its writer's schema by fingerprint. `decode` looks for a foreign schema among the released ones in
the tree, then through `install_lookup`: the table `schemas`, to which `tidewheel migrate` adds those of its release. It
resolves the message to the record of this release.

`decode` returns a record or raises UndecodableMessage, for any bytes. An error of the look-up itself passes through,
since an unreachable database is no fault of the message.
"""

import json
from collections.abc import Callable, Hashable, Mapping, Sized
from dataclasses import dataclass, fields, is_dataclass
from datetime import datetime
from functools import cache
from io import BytesIO
from operator import attrgetter
from types import NoneType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

from fastavro import (
    parse_schema,
    schemaless_reader,  # pyright: ignore[reportUnknownVariableType] - its stubs leave IO without a type
    schemaless_writer,  # pyright: ignore[reportUnknownVariableType] - likewise
)
from fastavro.types import Schema

from tidewheel.clock import monotonic_seconds
from tidewheel.errors import UndecodableMessage
from tidewheel.schemas.avro import (
    HEADER_BYTES,
    MAGIC,
    REGISTRY_MAGIC,
    Array,
    Enum,
    Nullable,
    Record,
    Strings,
    Type,
    current,
    fingerprint,
    released,
    shape,
)
from tidewheel.schemas.generated import records, wire
from tidewheel.schemas.interop import from_json, to_json
from tidewheel.schemas.primitives import MAX_ITEMS

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

R = TypeVar("R")
K = TypeVar("K", bound=Hashable)
C = TypeVar("C", bound=Sized)
Lookup = Callable[[bytes], str | None]
RegistryLookup = Callable[[int], str | None]

_REGISTRY_HEADER_BYTES = 5

_MISSING_SECONDS = 5.0  # until an unknown schema is looked up again: a deploy is noticed after it
_MISSING_KEPT = 1000
MAX_MESSAGE_BYTES = 1 << 20  # Kafka's default max.message.bytes; Tidewheel writes no larger message


@dataclass(frozen=True, slots=True)
class Form:
    """A kind of message, which begins with the ten bytes of `header`, and its generated codec if any."""

    name: str
    schema: str
    header: bytes
    write: Callable[[Any], bytes] | None
    read: Callable[[bytes, int], tuple[Any, int]] | None


def _forms() -> dict[str, Form]:
    """Return the form of each kind of message by the name of its record."""
    found: dict[str, Form] = {}
    for stem, text in current().items():
        name, header = str(json.loads(text)["name"]), getattr(wire, f"{stem.upper()}_HEADER")
        write, read = getattr(wire, stem, None), getattr(wire, f"read_{stem}", None)
        found[name] = Form(name, text, header, write and _of_record(write, getattr(records, name)), read)
    return found


def _of_record(write: Callable[..., bytes], record_type: "type[DataclassInstance]") -> Callable[[object], bytes]:
    """Return a writer of records from one of their fields."""
    values = attrgetter(*_names(record_type))
    return lambda record: write(*values(record))


class StoredSchema(NamedTuple):
    """One schema of this release or of one before it."""

    fingerprint: bytes
    name: str
    version: str
    text: str


def encode(record: "DataclassInstance") -> bytes:
    """Return a record in Avro single-object encoding: C3 01, eight bytes of fingerprint, body."""
    form = FORMS[type(record).__name__]
    return form.write(record) if form.write is not None else encode_fields(form.name, _fields_of(record))


def encode_fields(name: str, values: Mapping[str, object]) -> bytes:
    """Return the message of a kind from its fields; those that may be null can be left out."""
    form, target = FORMS[name], BytesIO()
    target.write(form.header)
    schemaless_writer(target, _parsed(form.schema), values, strict_allow_default=True)
    return target.getvalue()


def encode_json(record: object) -> bytes:
    """Return a record as a JSON object, in the form that `json_form` describes."""
    return to_json(record)


def decode(data: bytes, record_type: type[R]) -> R:
    """Return the record of a message."""
    form = FORMS[record_type.__name__]
    if form.read is not None and data.startswith(form.header) and len(data) <= MAX_MESSAGE_BYTES:
        record: R = _read(data, form, form.read)
        return record
    if data.lstrip()[:1] == b"{":
        return from_json(data, record_type)
    return cast("R", _value_of(shape().records[form.name], decode_fields(data, form.name)))


def decode_fields(data: bytes, name: str) -> dict[str, Any]:
    """Return the fields of an Avro message of a kind; enums are their symbols, and parts dictionaries too."""
    if len(data) > MAX_MESSAGE_BYTES:
        raise UndecodableMessage(f"the message has {len(data)} bytes; at most {MAX_MESSAGE_BYTES} are read")
    form = FORMS[name]
    if data.startswith(form.header):
        return _resolved(data, HEADER_BYTES, form.schema, form)
    if data.startswith(MAGIC):
        return _resolved(data, HEADER_BYTES, _schema_named(data[len(MAGIC) : HEADER_BYTES]), form)
    if is_registry_format(data) and (lookup := _registry.get("lookup")) is not None:
        return _resolved(data, _REGISTRY_HEADER_BYTES, _schema_numbered(data, lookup), form)
    raise UndecodableMessage(_unrecognised(data))


def bounded(items: C) -> C:
    """Return an array or a map of a message, or refuse it if it has more items than are ever written."""
    if len(items) > MAX_ITEMS:
        raise UndecodableMessage(f"an array or a map has {len(items)} items; at most {MAX_ITEMS} are read")
    return items


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


def sparing(find: Callable[[K], str | None]) -> Callable[[K], str | None]:
    """Return a look-up that looks for a missing schema again after some seconds only."""
    missing: dict[K, float] = {}

    def lookup(key: K) -> str | None:
        if missing.get(key, 0.0) > monotonic_seconds():
            return None
        found = find(key)
        if found is None:
            if len(missing) >= _MISSING_KEPT:
                missing.clear()
            missing[key] = monotonic_seconds() + _MISSING_SECONDS
        return found

    return lookup


def install_registry(lookup: RegistryLookup | None) -> None:
    """Set the look-up of a schema registry's ids, for the whole process. A found schema is kept."""
    _registry["lookup"] = lookup
    _numbered.clear()


_registry: dict[str, RegistryLookup | None] = {"lookup": None}
_numbered: dict[int, str] = {}
_state: dict[str, Lookup | None] = {"lookup": None}
_looked_up: dict[bytes, str] = {}


def _read(data: bytes, form: Form, read: Callable[[bytes, int], tuple[R, int]]) -> R:
    try:
        record, behind = read(data, HEADER_BYTES)
    except Exception as error:
        raise _damaged(form, error) from error
    if behind != len(data):
        raise _of_another_length(form, len(data) - behind)
    return record


def _resolved(data: bytes, start: int, writer: str, form: Form) -> dict[str, Any]:
    """Return the fields of a message of some schema, with its body at `start`, as this release has them."""
    _require_kind(writer, form)
    source, ours = BytesIO(data), None if writer is form.schema else _parsed(form.schema)
    source.seek(start)
    try:
        found = cast("dict[str, Any]", schemaless_reader(source, _parsed(writer), ours))
        if ours is not None:
            found = _as_ours(found, ours)
    except Exception as error:
        raise _damaged(form, error) from error
    if surplus := len(data) - source.tell():
        raise _of_another_length(form, surplus)
    return found


def _as_ours(datum: dict[str, Any], schema: Schema) -> dict[str, Any]:
    """Return a datum of a foreign schema as ours reads it, whose logical types may be others."""
    written = BytesIO()
    schemaless_writer(written, schema, datum)
    written.seek(0)
    return cast("dict[str, Any]", schemaless_reader(written, schema, None))


def _fields_of(record: "DataclassInstance") -> dict[str, object]:
    """Return the fields of a record as fastavro writes them."""
    return {
        name: value if (value := getattr(record, name)).__class__ in _WRITTEN_AS_THEY_ARE else _datum(value)
        for name in _names(type(record))
    }


def _datum(value: object) -> object:
    if isinstance(value, tuple):
        return [_datum(item) for item in cast("tuple[object, ...]", value)]
    return _fields_of(value) if is_dataclass(value) and not isinstance(value, type) else value


@cache
def _names(record_type: "type[DataclassInstance]") -> tuple[str, ...]:
    return tuple(field.name for field in fields(record_type))


def _value_of(type_: Type, datum: Any) -> object:  # noqa: ANN401 - `type_` has its type
    """Return a value that fastavro has read as records have it."""
    match type_:
        case Nullable(inner):
            return None if datum is None else _value_of(inner, datum)
        case Array(items):
            return tuple(_value_of(items, item) for item in bounded(datum))
        case Strings():
            return bounded(datum)
        case Enum(name=name):
            return getattr(records, name)(datum)
        case Record(name=name):
            return getattr(records, name)(
                **{each.name: _value_of(each.type, datum[each.name]) for each in type_.fields}
            )
        case _:
            return datum


def _schema_named(name: bytes) -> str:
    if known := _own_schemas().get(name) or _looked_up.get(name):
        return known
    lookup = _state["lookup"]
    if len(name) == HEADER_BYTES - len(MAGIC) and lookup is not None and (found := lookup(name)):
        _looked_up[name] = _checked(found, name)
        return found
    raise UndecodableMessage(
        f"schema id {name.hex()} is unknown; run `tidewheel migrate` of the release that wrote the message, "
        "or send the request as JSON or with a schema of this release"
    )


def _schema_numbered(data: bytes, lookup: RegistryLookup) -> str:
    if len(data) < _REGISTRY_HEADER_BYTES:
        raise UndecodableMessage("the message ends within the schema id of the registry's wire format")
    number = int.from_bytes(data[len(REGISTRY_MAGIC) : _REGISTRY_HEADER_BYTES])
    if number not in _numbered:
        found = lookup(number)
        if found is None:
            msg = f"the schema registry has no Avro schema with id {number}; register it there, or send JSON"
            raise UndecodableMessage(msg)
        _numbered[number] = found
    return _numbered[number]


def _checked(schema: str, name: bytes) -> str:
    """Return a schema that was looked up if it has the expected fingerprint."""
    try:
        right = fingerprint(schema) == name
    except Exception as error:
        problem = f"the entry stored under schema id {name.hex()} is not a schema: {str(error)[:200]}"
        raise UndecodableMessage(f"{problem}; run `tidewheel migrate`") from error
    if not right:
        msg = f"the entry stored under schema id {name.hex()} is another schema; run `tidewheel migrate`"
        raise UndecodableMessage(msg)
    return schema


def _require_kind(writer: str, form: Form) -> None:
    try:
        name = _name(writer)
    except ValueError as error:
        raise _damaged(form, error) from error
    if name != form.name:
        raise UndecodableMessage(f"the message is a {name}, but a {form.name} is expected")


def _of_another_length(form: Form, surplus: int) -> UndecodableMessage:
    what = f"{surplus} bytes follow the record" if surplus > 0 else f"the record is cut short by {-surplus} bytes"
    return UndecodableMessage(f"the message is not a readable {form.name}: {what}")


def _damaged(form: Form, error: Exception) -> UndecodableMessage:
    return UndecodableMessage(f"the message is not a readable {form.name}: {type(error).__name__}: {str(error)[:200]}")


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


_WRITTEN_AS_THEY_ARE = frozenset({str, bytes, int, float, bool, datetime, dict, NoneType})
FORMS: dict[str, Form] = _forms()
