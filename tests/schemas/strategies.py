"""Hypothesis strategies that build any message from its schema, and its encoding by fastavro."""

import json
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from functools import cache
from io import BytesIO
from typing import Any, cast

from fastavro import parse_schema
from fastavro import schemaless_writer as _writer  # pyright: ignore[reportUnknownVariableType]
from hypothesis import strategies as st

from tidewheel.schemas.avro import Array, Enum, Nullable, Primitive, Record, Strings, Type, shape
from tidewheel.schemas.codec import FORMS, decode, decode_fields, encode, encode_fields
from tidewheel.schemas.generated import records

_write = cast("Callable[[BytesIO, object, object], None]", _writer)

KINDS = list(FORMS)

_PRIMITIVES: dict[str, st.SearchStrategy[Any]] = {
    "string": st.text(max_size=200),
    "bytes": st.binary(max_size=200) | st.sampled_from([b"null", b'{"a":[1,2.5]}', b'{"a": 1}', b'"x"', b"NaN"]),
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1),
    "double": st.floats(allow_nan=False, allow_infinity=False),
    "boolean": st.booleans(),
    "instant": st.datetimes(datetime(1970, 1, 1), datetime(9999, 12, 30), timezones=st.just(UTC)),  # noqa: DTZ001
}


def any_message(kind: str) -> st.SearchStrategy[Any]:
    """Any record of one kind; of a request, which has no class, the fields."""
    return _any(kind).map(datum) if kind == "Request" else _any(kind)


def write(message: Any, kind: str) -> bytes:  # noqa: ANN401 - a record, or a request's fields
    return encode_fields(kind, message) if kind == "Request" else encode(message)


def read(data: bytes, kind: str) -> Any:  # noqa: ANN401 - likewise
    return decode_fields(data, kind) if kind == "Request" else decode(data, getattr(records, kind))


@cache
def _any(name: str) -> st.SearchStrategy[Any]:
    fields = {field.name: _values(field.type) for field in shape().records[name].fields}
    return st.builds(getattr(records, name), **fields) if hasattr(records, name) else st.fixed_dictionaries(fields)


def _values(type_: Type) -> st.SearchStrategy[Any]:
    match type_:
        case Primitive(kind):
            return _PRIMITIVES[kind]
        case Strings():
            return st.dictionaries(st.text(max_size=10), st.text(max_size=10), max_size=4)
        case Array(items):
            return st.lists(_values(items), max_size=3).map(tuple)
        case Nullable(inner):
            return st.none() | _values(inner)
        case Enum(name=name, symbols=symbols):
            return st.sampled_from(getattr(records, name, symbols))
        case Record(name=name):
            return _any(name)


def datum(value: object) -> object:
    """Convert a record to the dictionaries that fastavro takes."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: datum(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, dict):
        return {name: datum(inner) for name, inner in cast("dict[str, object]", value).items()}
    if isinstance(value, tuple):
        return [datum(item) for item in cast("tuple[object, ...]", value)]
    return value


def fastavro_body(message: object, schema: str) -> bytes:
    """Encode a record or fields with fastavro, without a header."""
    target = BytesIO()
    _write(target, parse_schema(json.loads(schema)), datum(message))
    return target.getvalue()
