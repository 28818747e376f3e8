"""Records for consumers that read no Avro: as JSON, and with the headers of a CloudEvent.

Every field has its own name. Instants are RFC 3339 in UTC with microseconds. Enums are their symbols. Request types
have a dot for the underscore, as in requests, and are read with either.

Bytes have one of two forms. `payload` is a JSON value if the bytes are compact JSON text, so that compact encoding
gives the same bytes again. `payload_base64` is any other content. Absent bytes have neither field.

A reader ignores unknown names. It reads an unknown symbol as the enum's default, as Avro readers do.

Source: CloudEvents 1.0.2, "Kafka Protocol Binding", section 3.2 "Binary Content Mode".
"""

import base64
import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal, TypeAlias, TypeVar, cast

from tidewheel.errors import UndecodableMessage
from tidewheel.jobs.strict_json import MAX_DEPTH, as_list, as_object, compact, depth_within, read_object
from tidewheel.jobs.values import format_timestamp, parse_timestamp
from tidewheel.schemas.avro import Array, Enum, Nullable, Primitive, Record, Strings, Type, json_schema_uri, shape
from tidewheel.schemas.generated import records
from tidewheel.schemas.generated.records import LifecycleEvent, RunStatus

R = TypeVar("R")

_BYTES = Primitive("bytes")
_DOTTED = "RequestType"

Headers: TypeAlias = list[tuple[str, bytes]]
ContentType: TypeAlias = Literal["application/avro", "application/json"]

_SPECVERSION = ("ce_specversion", b"1.0")
_CONTENT_TYPES = {
    "application/avro": ("content-type", b"application/avro"),
    "application/json": ("content-type", b"application/json"),
}
_COMPLETION_SCHEMA = ("ce_dataschema", json_schema_uri("run_completed").encode())
_LIFECYCLE_SCHEMA = ("ce_dataschema", json_schema_uri("lifecycle_event").encode())
_COMPLETION_TYPES = {status.value: ("ce_type", f"io.tidewheel.run.{status.value}.v1".encode()) for status in RunStatus}


def to_json(record: object) -> bytes:
    """Return a record as a JSON object in compact UTF-8."""
    return _COMPACT.encode(document(record)).encode()


def from_json(data: bytes, record_type: type[R]) -> R:
    """Return the record that a JSON object describes."""
    try:
        return cast("R", _record(shape().records[record_type.__name__], read_object(data), ""))
    except ValueError as error:
        raise UndecodableMessage(f"the message is not a readable {record_type.__name__}: {error}") from error


def document(record: object) -> dict[str, object]:
    """Return a record as the JSON object it is written as."""
    made: dict[str, object] = {}
    for field in shape().records[type(record).__name__].fields:
        value = getattr(record, field.name)
        type_ = field.value_type
        if type_ != _BYTES:
            made[field.name] = None if value is None else _written(type_, value)
        elif value is not None:
            name, content = _written_bytes(field.name, value)
            made[name] = content
    return made


_COMPACT = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _written(type_: Type, value: Any) -> object:  # noqa: ANN401 - `type_` has its type
    match type_:
        case Primitive("instant"):
            return format_timestamp(value)
        case Enum(name=name) if name == _DOTTED:
            return value.replace("_", ".")
        case Array(items):
            return [_written(items, item) for item in value]
        case Record():
            return document(value)
        case _:
            return value


def _written_bytes(name: str, value: bytes) -> tuple[str, object]:
    try:
        parsed = json.loads(value.decode())
        if depth_within(value, MAX_DEPTH) and compact(parsed) == value:
            return name, parsed
    except (ValueError, RecursionError):
        pass  # not JSON, or compact encoding gives other bytes
    return f"{name}_base64", base64.b64encode(value).decode()


def _record(record: Record, value: object, path: str) -> object:
    if (given := as_object(value)) is None:
        raise _misfit(path, value, "an object")
    fields: dict[str, Any] = {}
    for field in record.fields:
        where = f"{path}.{field.name}" if path else field.name
        inner = field.value_type
        absent = field.name not in given if inner == _BYTES else given.get(field.name) is None
        if inner == _BYTES and f"{field.name}_base64" in given:
            fields[field.name] = _from_base64(given[f"{field.name}_base64"], f"{where}_base64")
        elif not absent:
            fields[field.name] = _value(inner, given[field.name], where)
        elif not isinstance(field.type, Nullable):
            raise ValueError(f"{where} is missing")
    return getattr(records, record.name)(**fields)


def _value(type_: Type, value: object, path: str) -> object:
    match type_:
        case Primitive(kind):
            return _primitive(kind, value, path)
        case Enum(name=name, symbols=symbols, default=default):
            symbol = value.replace(".", "_") if name == _DOTTED and isinstance(value, str) else value
            return getattr(records, name)(symbol if symbol in symbols else default)
        case Record():
            return _record(type_, value, path)
        case Strings():
            return _strings(value, path)
        case Array(items) if (elements := as_list(value)) is not None:
            return tuple(_value(items, item, f"{path}.{index}") for index, item in enumerate(elements))
        case _:
            raise _misfit(path, value, "a list")


def _primitive(kind: str, value: object, path: str) -> object:
    match kind, value:
        case ("bytes", _):
            return compact(value)
        case ("string", str()) | ("boolean", bool()):
            return value
        case ("int" | "long", int()) if not isinstance(value, bool) and _fits(kind, value):
            return value
        case ("double", float()):
            return value
        case ("double", int()) if not isinstance(value, bool) and _fits("long", value):
            return float(value)
        case ("instant", str()):
            return _instant(value, path)
        case _:
            raise _misfit(path, value, kind)


def _fits(kind: str, value: int) -> bool:
    bits = 31 if kind == "int" else 63
    return -(1 << bits) <= value < 1 << bits


def _instant(value: str, path: str) -> datetime:
    try:
        return parse_timestamp(value)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _strings(value: object, path: str) -> Mapping[str, str]:
    given = as_object(value)
    if given is not None and all(isinstance(item, str) for item in given.values()):
        return {name: str(item) for name, item in given.items()}
    raise _misfit(path, value, "an object of strings")


def _from_base64(value: object, path: str) -> bytes:
    if isinstance(value, str):
        try:
            return base64.b64decode(value, validate=True)
        except ValueError:
            pass
    raise _misfit(path, value, "base64")


def _misfit(path: str, value: object, expected: str) -> ValueError:
    return ValueError(f"{path or 'the message'} is {value!r:.80}, but {expected} is expected")


def completion_headers(
    source: str,
    *,
    event_id: bytes,
    run_id: bytes,
    status: str,
    finished_at: datetime,
    traceparent: str | None = None,
    content_type: ContentType = "application/avro",
) -> Headers:
    """Return the headers of a completion event.

    Args:
        source: URI reference of this installation, such as `/tidewheel/default`.
        event_id: As in the message's value, and so the following.
        traceparent: W3C trace context carried since the request; no header when there is none.
    """
    headers = [
        ("ce_id", event_id),
        _COMPLETION_TYPES[status],
        ("ce_source", source.encode()),
        ("ce_time", format_timestamp(finished_at).encode()),
        ("ce_subject", run_id),
        _SPECVERSION,
        _CONTENT_TYPES[content_type],
    ]
    return _completed(headers, _COMPLETION_SCHEMA, content_type, traceparent)


def lifecycle_headers(
    event: LifecycleEvent,
    source: str,
    *,
    traceparent: str | None = None,
    content_type: ContentType = "application/avro",
) -> Headers:
    """Return the headers of a lifecycle event; its subject is the run, or the job if there is no run."""
    headers = [
        ("ce_id", event.event_id.encode()),
        ("ce_type", event.type.encode()),
        ("ce_source", source.encode()),
        ("ce_time", format_timestamp(event.occurred_at).encode()),
        ("ce_subject", (event.run_id or event.job_id).encode()),
        _SPECVERSION,
        _CONTENT_TYPES[content_type],
    ]
    return _completed(headers, _LIFECYCLE_SCHEMA, content_type, traceparent)


def _completed(
    headers: Headers, schema: tuple[str, bytes], content_type: ContentType, traceparent: str | None
) -> Headers:
    """Append the attributes that not all events have: Avro messages name their schema themselves."""
    if content_type == "application/json":
        headers.append(schema)
    if traceparent is not None:
        headers.append(("traceparent", traceparent.encode()))
    return headers
