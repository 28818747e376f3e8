"""Avro schemas as typed values: for the codec, for JSON, for the generator, and to compare releases.

Supported are the types of Tidewheel's schemas: no fixed, no nested union, only unions of null and one other type with
default null. No record is empty or contains itself, so that its schema bounds the depth and the size of a message.
Each type and each field has a doc, each enum a default, and none an alias, because names never change.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias, cast

from tidewheel.jobs.strict_json import as_list, as_object
from tidewheel.schemas.files import current

Json: TypeAlias = Mapping[str, object]
PRIMITIVES = ("string", "bytes", "int", "long", "double", "boolean")


@dataclass(frozen=True, slots=True)
class Primitive:
    """A value of its own: one of PRIMITIVES, or `instant` for timestamp-micros."""

    kind: str


@dataclass(frozen=True, slots=True)
class Strings:
    """A map of strings."""


@dataclass(frozen=True, slots=True)
class Array:
    """A sequence of one type."""

    items: "Type"


@dataclass(frozen=True, slots=True)
class Nullable:
    """Null or one other type."""

    inner: "Type"


@dataclass(frozen=True, slots=True)
class Enum:
    """A named set of symbols, one of which readers fall back on."""

    name: str
    doc: str
    symbols: tuple[str, ...]
    default: str


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a record."""

    name: str
    type: "Type"
    doc: str

    @property
    def value_type(self) -> "Type":
        """Its type where it is not null."""
        return self.type.inner if isinstance(self.type, Nullable) else self.type


@dataclass(frozen=True, slots=True)
class Record:
    """A named sequence of fields; `root` when a message is one."""

    name: str
    doc: str
    fields: tuple[Field, ...]
    root: bool


Type: TypeAlias = Primitive | Strings | Array | Nullable | Enum | Record


class Shape:
    """Every named type of a set of schemas, each once, parts before the types that contain them."""

    def __init__(self, schemas: Iterable[Json]) -> None:
        self.enums: dict[str, Enum] = {}
        self.records: dict[str, Record] = {}
        for schema in schemas:
            self._record(schema, root=True)

    def _type(self, schema: object) -> Type:
        if isinstance(schema, str):
            return self._named(schema)
        if (union := as_list(schema)) is not None:
            if len(union) != 2 or union[0] != "null":
                raise _unknown(schema)
            return Nullable(self._type(union[1]))
        return self._complex(as_object(schema) or {})

    def _complex(self, schema: Json) -> Type:
        made: Type
        match schema:
            case {"logicalType": "timestamp-micros", "type": "long"}:
                made = Primitive("instant")
            case {"type": "map", "values": "string"}:
                made = Strings()
            case {"type": "array"}:
                made = Array(self._type(schema.get("items")))
            case {"type": "enum"}:
                made = self._enum(schema)
            case {"type": "record"}:
                made = self._record(schema, root=False)
            case _:
                raise _unknown(schema)
        return made

    def _named(self, name: str) -> Type:
        if name in PRIMITIVES:
            return Primitive(name)
        if named := self.enums.get(name) or self.records.get(name):
            return named
        raise _unknown(name)

    def _enum(self, schema: Json) -> Enum:
        name, doc = _named_and_described(schema)
        if "default" not in schema:
            raise _unfit(name, 'has no default symbol; add "default": "unknown"')
        enum = Enum(name, doc, tuple(cast("list[str]", schema["symbols"])), str(schema["default"]))
        if self.enums.setdefault(name, enum) != enum:
            raise _ambiguous(name)
        return enum

    def _record(self, schema: Json, *, root: bool) -> Record:
        name, doc = _named_and_described(schema)
        made = tuple(self._field(field, name) for field in cast("list[Json]", schema["fields"]))
        if not made:
            raise _unfit(name, "has no fields, so nothing bounds their number in a message")
        record = Record(name, doc, made, root)
        if self.records.setdefault(name, record) != record:
            raise _ambiguous(name)
        return record

    def _field(self, schema: Json, owner: str) -> Field:
        name, doc = _named_and_described(schema, owner)
        type_ = self._type(schema["type"])
        if isinstance(type_, Nullable) != ("default" in schema) or schema.get("default") is not None:
            raise _unfit(name, 'a nullable field has "default": null, and no other field has a default', owner)
        return Field(name, type_, doc)


@cache
def shape(*stems: str) -> Shape:
    """Return the types of all current schemas, or of those in these files."""
    return Shape(json.loads(text) for stem, text in current().items() if stem in (stems or current()))


def snake(name: str) -> str:
    """Return a record's name in snake case: `run_request` for `RunRequest`."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def _named_and_described(schema: Json, owner: str = "") -> tuple[str, str]:
    name = str(schema["name"])
    if not schema.get("doc"):
        raise _unfit(name, "has no doc; describe its content and unit", owner)
    if schema.get("aliases"):
        raise _unfit(name, "has aliases; remove them, because names never change", owner)
    return name, str(schema["doc"])


def _unfit(name: str, problem: str, owner: str = "") -> ValueError:
    return ValueError(f"{owner}.{name}: {problem}" if owner else f"{name}: {problem}")


def _unknown(schema: object) -> ValueError:
    return ValueError(f"this type is not supported, or contains itself: {schema}")


def _ambiguous(name: str) -> ValueError:
    return _unfit(name, "names two different types")
