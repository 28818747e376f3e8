"""Avro schemas as typed values, for the generator and for JSON.

Supported are the types of Tidewheel's schemas: no fixed, no nested union, only unions of null and one other type. No
record contains itself, so that its schema bounds the depth of a message.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias, cast

from tidewheel.jobs.strict_json import as_list, as_object

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
        symbols = tuple(cast(list[str], schema["symbols"]))
        enum = Enum(str(schema["name"]), str(schema["doc"]), symbols, str(schema["default"]))
        if self.enums.setdefault(enum.name, enum) != enum:
            raise _ambiguous(enum.name)
        return enum

    def _record(self, schema: Json, *, root: bool) -> Record:
        fields = cast(list[Json], schema["fields"])
        made = tuple(Field(str(field["name"]), self._type(field["type"]), str(field["doc"])) for field in fields)
        record = Record(str(schema["name"]), str(schema["doc"]), made, root)
        if self.records.setdefault(record.name, record) != record:
            raise _ambiguous(record.name)
        return record


def snake(name: str) -> str:
    """Return a record's name in snake case: `run_request` for `RunRequest`."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def _unknown(schema: object) -> ValueError:
    return ValueError(f"this type is not supported: {schema}")


def _ambiguous(name: str) -> ValueError:
    return ValueError(f"{name} names two different types")
