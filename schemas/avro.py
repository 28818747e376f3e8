"""The schema files, current and released, their fingerprints, and the compatibility of releases.

Supported are the types of Tidewheel's schemas: no fixed, no nested union, only unions of null and one other type with
default null. No record is empty or contains itself, so that its schema bounds the depth and the size of a message.
Each type and each field has a doc, each enum a default, and none an alias, because names never change.

A schema's file is named after its record in snake case: `run_request.avsc` holds `io.tidewheel.RunRequest`.

Full and transitive: each current schema is compared with each released version of it. Two changes are allowed, both in
either direction: to add or remove a nullable field, and to add or remove a symbol of an enum. `shape` refuses what
would break them: a nullable field without default null, and an enum without a default symbol.

Source: Apache Avro 1.12 Specification, "Single-object encoding", "Schema Fingerprints" and "Schema Resolution".
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.metadata import version
from importlib.resources import files
from importlib.resources.abc import Traversable
from itertools import combinations
from typing import TypeAlias, cast

from fastavro import parse_schema
from fastavro.schema import fingerprint as _fingerprint
from fastavro.schema import to_parsing_canonical_form

from tidewheel.jobs.strict_json import as_list, as_object

MAGIC = b"\xc3\x01"
HEADER_BYTES = 10
REGISTRY_MAGIC = b"\0"  # begins the wire format of a schema registry, before four bytes of id

_HERE: Traversable = files("tidewheel.schemas")

Json: TypeAlias = Mapping[str, object]
PRIMITIVES = ("string", "bytes", "int", "long", "double", "boolean")

_THIS = "this tree"
_NAMESPACE = "io.tidewheel"


@cache
def current() -> dict[str, str]:
    """Return the text of each current schema by its file's stem."""
    return _texts(_HERE)


@cache
def released() -> dict[str, dict[str, str]]:
    """Return the texts of each released version, oldest version first."""
    versions = [folder for folder in (_HERE / "released").iterdir() if folder.is_dir()]
    versions.sort(key=lambda folder: [int(part) for part in folder.name.split(".")])
    return {folder.name: _texts(folder) for folder in versions}


@cache
def json_schema_uri(stem: str) -> str:
    """Return the name of the JSON schema of a record, by its file's stem: the `$id` of `json/<stem>.json`.

    It names no address. It ends with this release, so that an event names the schema of the release that wrote it.
    """
    return f"urn:tidewheel:schema:{stem}:{version('tidewheel')}"


@lru_cache(maxsize=1024)
def fingerprint(schema: str) -> bytes:
    """Return the CRC-64-AVRO fingerprint of a schema's canonical form.

    It has eight bytes, little-endian as on the wire. The canonical form leaves out docs and defaults. Two schemas that
    differ in these alone have one fingerprint.
    """
    canonical = to_parsing_canonical_form(parse_schema(json.loads(schema)))
    return bytes.fromhex(_fingerprint(canonical, "CRC-64-AVRO"))


def single_object_header(schema: str) -> bytes:
    """Return the ten bytes with which every message of a schema begins."""
    return MAGIC + fingerprint(schema)


def _texts(folder: Traversable) -> dict[str, str]:
    found = {file.name.removesuffix(".avsc"): file for file in folder.iterdir() if file.name.endswith(".avsc")}
    return {stem: found[stem].read_text("utf-8") for stem in sorted(found)}


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


def check() -> list[str]:
    """Return the problems of the schemas of this tree, each with its field and its rule."""
    return problems({**released(), _THIS: current()})


def problems(versions: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Return the problems of several schema versions, given oldest first by file stem."""
    found: list[str] = []
    shapes = {
        version: {name: _read(name, text, found) for name, text in texts.items()} for version, texts in versions.items()
    }
    for (old, olds), (new, news) in combinations(shapes.items(), 2):
        for name in olds:
            if name not in news:
                found.append(f"{name}: was released in {old} and is missing in {new}; keep it")
                continue
            older, newer = olds[name], news[name]
            if older is not None and newer is not None:
                changes = dict.fromkeys(_changes(older, newer, newer.name))
                found += [f"{name}: {change} (between {old} and {new})" for change in changes]
    return found


def _read(name: str, text: str, found: list[str]) -> Record | None:
    schema = json.loads(text)
    if schema.get("namespace") != _NAMESPACE:
        found.append(f"{name}: the namespace is not {_NAMESPACE}; keep it")
    try:
        return Shape([schema]).records[schema["name"]]
    except ValueError as error:
        found.append(f"{name}: {error}")
        return None


def _changes(old: Type, new: Type, path: str) -> Iterator[str]:
    """Yield the changes that break reading in either direction."""
    match old, new:
        case (Record(name=was), Record(name=now)) | (Enum(name=was), Enum(name=now)) if was != now:
            yield f"{path}: the type {was} was renamed to {now}; keep the name"
        case Record(), Record():
            yield from _fields(old, new)
        case Enum(), Enum():
            if old.default != new.default:
                yield f"{path}: the default symbol changed; keep it"
        case Nullable(older), Nullable(newer):
            yield from _changes(older, newer, path)
        case Array(older), Array(newer):
            yield from _changes(older, newer, f"{path}[]")
        case _:
            if old != new:
                yield f"{path}: the type changed from {_kind(old)} to {_kind(new)}; add a field instead"


def _fields(old: Record, new: Record) -> Iterator[str]:
    older, newer = _by_name(old), _by_name(new)
    for name in newer.keys() - older.keys():
        if not isinstance(newer[name].type, Nullable):
            yield f'{new.name}.{name}: was added without a default; make it nullable with "default": null'
    for name in older.keys() - newer.keys():
        if not isinstance(older[name].type, Nullable):
            yield f"{new.name}.{name}: was removed, but had no default for older readers; keep it"
    for name in older.keys() & newer.keys():
        yield from _changes(older[name].type, newer[name].type, f"{new.name}.{name}")


def _by_name(record: Record) -> dict[str, Field]:
    return {field.name: field for field in record.fields}


def _kind(type_: Type) -> str:
    return type_.kind if isinstance(type_, Primitive) else type(type_).__name__.lower()
