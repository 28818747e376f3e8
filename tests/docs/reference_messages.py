"""The pages of the message schemas, from the `.avsc` files."""

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from tests.docs.tables import table

SCHEMAS = Path(__file__).parents[2] / "schemas"
REQUESTS = ("request", "reply")
# In the order of a job's life; the last one is inside others.
PUBLISHED = ("run_request", "run_completed", "lifecycle_event", "dead_letter", "job_definition")
_HEAD = """\
# {title}

<!-- Generated from `schemas/*.avsc` by `python -m tests.docs.reference`.
A test compares the two. Edit the schemas. -->

{first} [Topics](topics.md) shows real ones, in Avro and in JSON. A reader of an
older release ignores fields that it does not know. An enum's value that it does not know is `unknown`.
"""


def messages_page() -> str:
    """Return every field of what Tidewheel publishes."""
    first = "Runs, completions, events and dead letters. Clients send [requests and get replies](messages-requests.md)."
    return _page("Message schemas", first, PUBLISHED)


def requests_page() -> str:
    """Return every field of requests and replies."""
    first = "What clients send and get. Tidewheel publishes [the other messages](messages.md)."
    return _page("Message schemas: requests and replies", first, REQUESTS)


def _page(title: str, first: str, files: Iterable[str]) -> str:
    parts = [_HEAD.format(title=title, first=first)]
    for name in files:
        schema = json.loads((SCHEMAS / f"{name}.avsc").read_text(encoding="utf-8"))
        parts += [f"## {schema['name']}", "", f"[`{name}.avsc`](../schemas/{name}.avsc). {schema['doc']}", ""]
        for record in _records(schema):
            if record is not schema:
                parts += [f"### {schema['name']}: {record['name']}", "", str(record.get("doc", "")), ""]
            parts += [table(("Field", "Type", "Default", "Meaning"), map(_row, record["fields"])), ""]
    return "\n".join(parts)


def _records(schema: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield a record, then those inside it."""
    yield schema
    for field in schema["fields"]:
        for each in _parts(field["type"]):
            if each.get("type") == "record":
                yield from _records(each)


def _parts(kind: Any) -> Iterator[Mapping[str, Any]]:  # noqa: ANN401 - an Avro type is text, a list or an object
    match kind:
        case list():
            for each in cast("list[Any]", kind):
                yield from _parts(each)
        case {"type": "array", "items": inner} | {"type": "map", "values": inner}:
            yield from _parts(inner)
        case {}:
            yield kind
        case _:
            return


def _row(field: Mapping[str, Any]) -> tuple[str, ...]:
    default = f"`{json.dumps(field['default'])}`" if "default" in field else "required"
    return f"`{field['name']}`", _written(field["type"]), default, str(field.get("doc", ""))


def _written(kind: Any) -> str:  # noqa: ANN401, PLR0911 - as above; a row for each kind of type
    match kind:
        case str():
            return f"`{kind.rpartition('.')[2]}`"
        case list():
            return " or ".join(map(_written, cast("list[Any]", kind)))
        case {"type": "array", "items": items}:
            return f"list of {_written(items)}"
        case {"type": "map", "values": values}:
            return f"map to {_written(values)}"
        case {"type": "enum", "symbols": symbols}:
            return ", ".join(f"`{symbol}`" for symbol in symbols)
        case {"type": "record", "name": name}:
            return f"`{name}`"
        case {"logicalType": logical, "type": inner}:
            return f"`{inner}` ({logical})"
        case {"type": inner}:
            return _written(inner)
        case _:
            raise AssertionError(kind)
