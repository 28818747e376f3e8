"""The rules of schema changes: each allowed and each refused change, compared with fastavro."""

import copy
import json
import re
from collections.abc import Callable
from io import BytesIO
from typing import Any, TypeAlias, cast

import pytest
from fastavro import parse_schema
from fastavro import schemaless_reader as _reader  # pyright: ignore[reportUnknownVariableType]
from fastavro import schemaless_writer as _writer  # pyright: ignore[reportUnknownVariableType]
from hypothesis import given
from hypothesis import strategies as st

from tests.fixtures.examples import examples
from tidewheel.schemas.avro import check, problems

_write = cast("Callable[[BytesIO, object, object], None]", _writer)
_read = cast("Callable[[BytesIO, object, object], object]", _reader)

LANE = {"type": "enum", "name": "Lane", "doc": "A lane.", "symbols": ["unknown", "a"], "default": "unknown"}
SIZE = {"name": "size", "type": "long", "doc": "Its size."}
PART: dict[str, Any] = {"type": "record", "name": "Part", "doc": "A part.", "fields": [SIZE]}
BASE: dict[str, Any] = {
    "type": "record",
    "name": "Thing",
    "namespace": "io.tidewheel",
    "doc": "A thing.",
    "fields": [
        {"name": "id", "type": "string", "doc": "Its id."},
        {"name": "count", "type": "int", "doc": "How many."},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}, "doc": "When."},
        {"name": "note", "type": ["null", "string"], "default": None, "doc": "A note."},
        {"name": "lane", "type": LANE, "doc": "Its lane."},
        {"name": "tags", "type": {"type": "map", "values": "string"}, "doc": "Tags."},
        {"name": "parts", "type": {"type": "array", "items": PART}, "doc": "Its parts."},
    ],
}


Change: TypeAlias = Callable[[dict[str, Any]], object]


def changed(change: Change) -> dict[str, Any]:
    schema = copy.deepcopy(BASE)
    change(schema)
    return schema


def field(schema: dict[str, Any], name: str) -> dict[str, Any]:
    return next(one for one in schema["fields"] if one["name"] == name)


def add(**made: object) -> Change:
    return lambda schema: schema["fields"].append({"name": "more", "doc": "More.", **made})


def alter(which: str, /, **made: object) -> Change:
    return lambda schema: field(schema, which).update(made)


def alter_lane(**made: object) -> Change:
    return lambda schema: field(schema, "lane")["type"].update(made)


def remove(name: str) -> Change:
    return lambda schema: schema["fields"].remove(field(schema, name))


def between(*schemas: dict[str, Any]) -> list[str]:
    """The problems of some versions of one schema."""
    return problems({str(number): {"thing": json.dumps(schema)} for number, schema in enumerate(schemas, 1)})


ALLOWED: dict[str, Change] = {
    "nothing": lambda schema: None,
    "a nullable field added": add(type=["null", "int"], default=None),
    "a nullable field removed": remove("note"),
    "a symbol added": alter_lane(symbols=["unknown", "a", "b"]),
    "a symbol removed": alter_lane(symbols=["unknown"]),
    "fields in another order": lambda schema: schema["fields"].reverse(),
    "other words in a doc": alter("id", doc="Another word."),
}
REFUSED: dict[str, tuple[Change, str]] = {
    "a field added without a default": (add(type="int"), "Thing.more: was added without a default"),
    "a field without a default removed": (remove("id"), "Thing.id: was removed, but had no default"),
    "a type changed": (alter("id", type="bytes"), "Thing.id: the type changed from string to bytes"),
    "a promotion": (alter("count", type="long"), "Thing.count: the type changed from int to long"),
    "a logical type lost": (alter("at", type="long"), "Thing.at: the type changed from instant to long"),
    "a field made nullable": (
        alter("id", type=["null", "string"], default=None),
        "Thing.id: the type changed from string to nullable",
    ),
    "another type in a branch": (alter("note", type=["null", "bytes"]), "Thing.note: the type changed"),
    "an array's items": (alter("parts", type={"type": "array", "items": "int"}), r"Thing.parts\[\]: the type changed"),
    "a part of a part": (
        lambda schema: field(schema, "parts")["type"]["items"]["fields"][0].update(type="int"),
        "Part.size: the type changed",
    ),
    "a record renamed": (lambda schema: schema.update(name="Object"), "the type Thing was renamed to Object"),
    "an enum renamed": (alter_lane(name="Street"), "the type Lane was renamed to Street"),
    "an enum's default changed": (alter_lane(default="a"), "Thing.lane: the default symbol changed"),
    "a field renamed": (alter("id", name="key"), "Thing.key: was added without a default"),
}
UNFIT: list[tuple[Change, str]] = [
    (alter("id", doc=""), "Thing.id: has no doc"),
    (lambda schema: schema.pop("doc"), "Thing: has no doc"),
    (alter_lane(doc=""), "Lane: has no doc"),
    (lambda schema: field(schema, "lane")["type"].pop("default"), "Lane: has no default symbol"),
    (alter("id", aliases=["key"]), "Thing.id: has aliases"),
    (lambda schema: schema.update(aliases=["Object"]), "Thing: has aliases"),
    (alter("count", default=0), 'Thing.count: a nullable field has "default": null'),
    (alter("note", default="x"), 'Thing.note: a nullable field has "default": null'),
    (lambda schema: field(schema, "note").pop("default"), 'Thing.note: a nullable field has "default": null'),
    (alter("note", type=["string", "null"], default=""), "this type is not supported"),
    (alter("note", type=["null", "string", "int"]), "this type is not supported"),
    (alter("tags", type={"type": "map", "values": "bytes"}), "this type is not supported"),
    (alter("parts", type={"type": "array", "items": "Thing"}), "contains itself: Thing"),
    (alter("parts", type=PART | {"name": "Empty", "fields": list[object]()}), "Empty: has no fields"),
    (alter("count", type="float"), "this type is not supported"),
    (alter("count", type={"type": "fixed"}), "this type is not supported"),
    (alter("id", type="strnig"), "this type is not supported"),
    (lambda schema: schema.update(namespace="com"), "the namespace is not io.tidewheel"),
]


@pytest.mark.parametrize("name", ALLOWED)
def test_allowed_change_is_compatible_both_ways(name: str) -> None:
    new = changed(ALLOWED[name])
    assert between(BASE, new) == []
    assert between(new, BASE) == []


@pytest.mark.parametrize("name", REFUSED)
def test_forbidden_change_is_reported_with_its_field(name: str) -> None:
    change, words = REFUSED[name]
    found = between(BASE, changed(change))
    assert any(re.search(words, problem) for problem in found), found
    assert between(changed(change), BASE), "and backwards"


@pytest.mark.parametrize(("change", "words"), UNFIT)
def test_schema_that_bounds_nothing_or_cannot_be_read_later_is_refused(change: Change, words: str) -> None:
    [found] = between(changed(change))
    assert words in found


things = st.fixed_dictionaries(
    {
        "id": st.text(),
        "count": st.integers(-(2**31), 2**31 - 1),
        "at": st.integers(-(2**55), 2**55),
        "lane": st.sampled_from(["unknown", "a"]),
        "tags": st.dictionaries(st.text(), st.text(), max_size=3),
        "parts": st.lists(st.fixed_dictionaries({"size": st.integers(-(2**63), 2**63 - 1)}), max_size=3),
        "note": st.none() | st.text(),
    }
)


@pytest.mark.parametrize("name", ALLOWED)
@examples(25)
@given(thing=things)
def test_fastavro_reads_allowed_changes_both_ways(name: str, thing: dict[str, object]) -> None:
    old, new = parse_schema(copy.deepcopy(BASE)), parse_schema(changed(ALLOWED[name]))
    symbols = field(changed(ALLOWED[name]), "lane")["type"]["symbols"]
    for writer, reader in ((old, new), (new, old)):
        written = thing | {"lane": thing["lane"] if writer is old or thing["lane"] in symbols else "unknown"}
        target = BytesIO()
        _write(target, writer, written)
        target.seek(0)
        read = cast(dict[str, object], _read(target, writer, reader))
        assert read["id"] == thing["id"]
        assert read["parts"] == thing["parts"]
        assert read["lane"] in ("unknown", thing["lane"])


def test_current_schemas_are_compatible_with_all_releases() -> None:
    assert check() == []


def test_every_pair_of_versions_is_compared() -> None:
    found = between(BASE, changed(remove("note")), changed(alter("note", type=["null", "int"])))
    assert len(found) == 1
    assert found[0].startswith("thing: Thing.note: the type changed from string to int")
    assert found[0].endswith("(between 1 and 3)")


def test_removing_a_released_schema_is_refused() -> None:
    [problem] = problems({"1": {"thing": json.dumps(BASE)}, "2": {}})
    assert problem == "thing: was released in 1 and is missing in 2; keep it"
