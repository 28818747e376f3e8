"""Check that every release reads the messages of every other release, older or newer.

Full and transitive: each current schema is compared with each released version of it. Two changes are allowed, both in
either direction: to add or remove a nullable field, and to add or remove a symbol of an enum. `shape` refuses what
would break them: a nullable field without default null, and an enum without a default symbol.

Source: Apache Avro 1.12 Specification, "Schema Resolution".
"""

import json
from collections.abc import Iterator, Mapping
from itertools import combinations

from tidewheel.schemas.files import current, released
from tidewheel.schemas.shape import Array, Enum, Field, Nullable, Primitive, Record, Shape, Type

_THIS = "this tree"
_NAMESPACE = "io.tidewheel"


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
