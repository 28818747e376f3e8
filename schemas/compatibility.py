"""Check that every release reads the messages of every other release, older or newer.

Full and transitive: each current schema is compared with each released version of it, in both directions. Two changes
are allowed: adding or removing a nullable field, and a symbol of an enum with a default on both sides. Defaults never
change, because the canonical form under a fingerprint leaves them out.

Source: Apache Avro 1.12 Specification, "Schema Resolution".
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import TypeAlias

from fastavro import parse_schema

from tidewheel.jobs.strict_json import as_list, as_object
from tidewheel.schemas.files import current, released

Schema: TypeAlias = Mapping[str, object]

_THIS = "this tree"
_NOTHING = object()


def check() -> list[str]:
    """Return the problems of the schemas of this tree, each with its field and its rule."""
    return problems({**released(), _THIS: current()})


def problems(versions: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Return the problems of the last of several schema versions, given oldest first by file stem."""
    found = [problem for name, text in list(versions.values())[-1].items() for problem in _unfit(name, text)]
    for (old, olds), (new, news) in combinations(versions.items(), 2):
        for name, text in olds.items():
            if name not in news:
                found.append(f"{name}: was released in {old} and is missing in {new}; keep it")
                continue
            changes = incompatible(json.loads(text), json.loads(news[name]))
            found += [f"{name}: {change} (between {old} and {new})" for change in changes]
    return found


def incompatible(old: Schema, new: Schema) -> list[str]:
    """Return the changes from one schema to another that break reading in either direction."""
    return list(_Comparison(old, new).differences())


class _Comparison:
    """Two schemas side by side, each with its named types."""

    def __init__(self, old: Schema, new: Schema) -> None:
        self._roots = (old, new)
        self._named = (_named_types(old), _named_types(new))
        self._compared: set[tuple[object, object]] = set()

    def differences(self) -> Iterator[str]:
        yield from self._types(*self._roots, str(self._roots[1].get("name")))

    def _types(self, old: object, new: object, path: str) -> Iterator[str]:
        unions = as_list(old), as_list(new)
        if unions[0] is not None and unions[1] is not None:
            yield from self._unions(unions[0], unions[1], path)
            return
        older, newer = self._resolved(old, 0), self._resolved(new, 1)
        if _kind(older) != _kind(newer):
            yield f"{path}: the type changed from {_kind(older)} to {_kind(newer)}; add a field instead"
            return
        yield from self._same_kind(older, newer, path)

    def _same_kind(self, old: Schema, new: Schema, path: str) -> Iterator[str]:
        pair = (old.get("name"), new.get("name"))
        if None not in pair and pair in self._compared:  # named types are compared once, however often they are used
            return
        self._compared.add(pair)
        match old.get("type"):
            case "record":
                yield from _names(old, new, path)
                yield from self._fields(old, new)
            case "enum":
                yield from _names(old, new, path)
                yield from _symbols(old, new)
            case "fixed":
                yield from _names(old, new, path)
                if old.get("size") != new.get("size"):
                    yield f"{path}: the size changed; add a field instead"
            case "array":
                yield from self._types(old.get("items"), new.get("items"), f"{path}[]")
            case "map":
                yield from self._types(old.get("values"), new.get("values"), f"{path}{{}}")
            case _:
                return

    def _unions(self, old: Sequence[object], new: Sequence[object], path: str) -> Iterator[str]:
        if len(old) != len(new):
            yield f"{path}: the union changed its branches; add a field instead"
            return
        for older, newer in zip(old, new, strict=True):
            yield from self._types(older, newer, path)

    def _fields(self, old: Schema, new: Schema) -> Iterator[str]:
        record, older, newer = new.get("name"), _fields_of(old), _fields_of(new)
        for name in newer.keys() - older.keys():
            if "default" not in newer[name]:
                yield f'{record}.{name}: was added without a default; make it nullable with "default": null'
        for name in older.keys() - newer.keys():
            if "default" not in older[name]:
                yield f"{record}.{name}: was removed, but had no default for older readers; keep it"
        for name in older.keys() & newer.keys():
            if older[name].get("default", _NOTHING) != newer[name].get("default", _NOTHING):
                yield f"{record}.{name}: the default changed; keep it, because fingerprints leave defaults out"
            yield from self._types(older[name].get("type"), newer[name].get("type"), f"{record}.{name}")

    def _resolved(self, schema: object, side: int) -> Schema:
        if isinstance(schema, str):
            return self._named[side].get(schema, {"type": schema})
        return as_object(schema) or {"type": "union"}


def _names(old: Schema, new: Schema, path: str) -> Iterator[str]:
    if (was := old.get("name")) != (now := new.get("name")):
        yield f"{path}: the type {was} was renamed to {now}; keep the name"
    if old.get("namespace") != new.get("namespace"):
        yield f"{path}: the namespace changed; keep it"


def _symbols(old: Schema, new: Schema) -> Iterator[str]:
    name, older, newer = new.get("name"), as_list(old.get("symbols")) or (), as_list(new.get("symbols")) or ()
    if old.get("default") != new.get("default"):
        yield f"{name}: the default symbol changed; keep it"
    for symbol in newer:
        if symbol not in older and "default" not in old:
            yield f"{name}: the symbol {symbol} was added, but older readers have no default symbol for it; add a field"
    for symbol in older:
        if symbol not in newer and "default" not in new:
            yield f"{name}: the symbol {symbol} was removed, and there is no default symbol; keep it"


def _unfit(name: str, text: str) -> Iterator[str]:
    """Yield what a schema lacks whatever came before it."""
    schema = json.loads(text)
    try:
        parse_schema(schema)
    except Exception as error:  # noqa: BLE001 - whatever fastavro finds wrong, it is the schema's fault
        yield f"{name}: is not an Avro schema: {error}"
        return
    for type_ in _named_types(schema).values():
        yield from (f"{name}: {problem}" for problem in _unfit_type(type_))
    yield from (f"{name}: {problem}" for problem in _recursive(schema, ()))


def _unfit_type(type_: Schema) -> Iterator[str]:
    if not type_.get("doc"):
        yield f"{type_.get('name')}: has no doc; describe it"
    if type_.get("aliases"):
        yield f"{type_.get('name')}: has aliases; remove them, because names never change"
    if type_.get("type") == "enum" and "default" not in type_:
        yield f'{type_.get("name")}: has no default symbol; add "default": "unknown"'
    if type_.get("type") == "record" and not _fields_of(type_):
        yield f"{type_.get('name')}: has no fields, so nothing bounds their number in a message"
    for name, field in _fields_of(type_).items():
        yield from (f"{type_.get('name')}.{name}: {problem}" for problem in _unfit_field(field))


def _unfit_field(field: Schema) -> Iterator[str]:
    if not field.get("doc"):
        yield "has no doc; describe its content and unit"
    if field.get("aliases"):
        yield "has aliases; remove them, because names never change"
    union = as_list(field.get("type"))
    if union is None and "default" in field:
        yield 'has a default but is not nullable; make it ["null", type] with "default": null'
    if union is not None and (len(union) != 2 or union[0] != "null" or field.get("default", _NOTHING) is not None):
        yield 'is a union, but not ["null", type] with "default": null'


def _recursive(schema: object, inside: tuple[str, ...]) -> Iterator[str]:
    """Yield each record that contains itself: the schema must bound the depth of a message."""
    if isinstance(schema, str) and schema in inside:
        yield f"{schema}: contains itself, so nothing bounds the depth of a message"
    for part in as_list(schema) or ():
        yield from _recursive(part, inside)
    if (type_ := as_object(schema)) is not None:
        names = (*inside, str(type_["name"])) if type_.get("type") == "record" else inside
        parts = [type_.get("items"), type_.get("values"), *(field.get("type") for field in _fields_of(type_).values())]
        for part in parts:
            yield from _recursive(part, names)


def _named_types(schema: object) -> dict[str, Schema]:
    found: dict[str, Schema] = {}
    for part in as_list(schema) or ():
        found |= _named_types(part)
    if (type_ := as_object(schema)) is not None:
        if type_.get("type") in ("record", "enum", "fixed"):
            found[str(type_.get("name"))] = type_
        for part in (type_.get("items"), type_.get("values"), *(f.get("type") for f in _fields_of(type_).values())):
            found |= _named_types(part)
    return found


def _fields_of(schema: Schema) -> dict[str, Schema]:
    fields = (as_object(field) or {} for field in as_list(schema.get("fields")) or ())
    return {str(field.get("name")): field for field in fields}


def _kind(schema: Schema) -> str:
    """Return the part of a type that must not change: its kind and its logical type."""
    logical = schema.get("logicalType")
    return f"{schema.get('type')} ({logical})" if logical else str(schema.get("type"))
