"""Write `generated/`, `json/` and request.avsc of `schemas/`: `python -m tools.schemas.generate`.

The files lie in the tree, so that people and type checkers can read them; a test compares them with what this module
would write. Edit the .avsc files and the models of requests, never these. A field of a job or a target that only its
model has is added to request.avsc, as the last one of its record.

JSON Schema documents of requests, replies, completions, events and dead letters. Those of records follow from the .avsc
files, as `json_form` writes them; that of requests from their models. A field that may be null is not required, since
an earlier release may not have it. A reader ignores fields of later releases.
"""

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from textwrap import indent
from typing import Any, TypeAlias

from pydantic import TypeAdapter

from tidewheel.jobs.requests import Request
from tidewheel.jobs.spec import JobSpec
from tidewheel.jobs.strict_json import as_list, as_object
from tidewheel.jobs.targets import TARGETS
from tidewheel.jobs.validation import Forms, StrictModel, allow_short_forms
from tidewheel.schemas import avro
from tidewheel.schemas.avro import (
    Array,
    Enum,
    Field,
    Nullable,
    Primitive,
    Record,
    Strings,
    Type,
    current,
    json_schema_uri,
    shape,
)
from tools.schemas.modules import records_module, wire_module

FOLDER = Path(avro.__file__).parent

_RECORDS = ("run_completed", "lifecycle_event", "dead_letter", "reply")
_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_DOTTED = "RequestType"

_PRIMITIVES: Mapping[str, dict[str, object]] = {
    "string": {"type": "string"},
    "int": {"type": "integer", "minimum": -(2**31), "maximum": 2**31 - 1},
    "long": {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1},
    "double": {"type": "number"},
    "boolean": {"type": "boolean"},
    "instant": {"type": "string", "format": "date-time"},
}
_NULL = {"type": "null"}
_SUBMITTED: Mapping[str, Sequence[type[StrictModel]]] = {
    "JobSubmission": (JobSpec,), "TargetSubmission": tuple(each.model for each in TARGETS.values()),
}  # fmt: skip
"""The records of request.avsc whose fields are those of models."""
_AVRO: Mapping[str, object] = {
    "string": "string", "integer": "long", "number": "double", "boolean": "boolean",
    "array": {"type": "array", "items": "string"}, "object": {"type": "map", "values": "string"},
    "date-time": {"type": "long", "logicalType": "timestamp-micros"},
}  # fmt: skip
_Schema: TypeAlias = dict[str, Any]


def main() -> None:
    """Write the files that differ."""
    for name, text in generated_files().items():
        path = FOLDER / name
        if not path.exists() or path.read_text("utf-8") != text:
            path.write_text(text, "utf-8")
            sys.stdout.write(f"wrote {name}\n")


def generated_files() -> dict[str, str]:
    """Return the text of each generated file, and of request.avsc, by its path in `schemas`."""
    modules = {"records.py": _joined(records_module()), "wire.py": _joined(wire_module())}
    return {f"generated/{name}": text for name, text in modules.items()} | {
        **{f"json/{stem}.json": text for stem, text in json_schemas().items()},
        "request.avsc": completed(current()["request"]),
    }


def completed(text: str) -> str:
    """Return the text of request.avsc with every field of jobs and targets."""
    parts = _requests()["$defs"]
    for record, models in _SUBMITTED.items():
        [(before, pad)] = re.findall(rf'(^( +)"name": "{record}",.*?)\n\2\]', text, re.MULTILINE | re.DOTALL)
        known = {*re.findall(rf'^{pad}  (?:\{{|  )"name": "(\w+)"', before, re.MULTILINE), "payload_base64"}
        new = [
            _avro_field(name, parts[model.__name__], field.alias or name)
            for model in models
            for name, field in model.model_fields.items()
            if name not in known
        ]
        text = text.replace(before, ",\n".join((before, *(indent(each, f"{pad}  ") for each in new))))
    return text


def _avro_field(name: str, model: _Schema, property_: str) -> str:
    form = model["properties"][property_]
    doc = form.get("description") or model["description"]
    while "anyOf" in form:  # of several forms the first
        form = form["anyOf"][0]
    type_ = ["null", _AVRO[form.get("format") or form["type"]]]
    return json.dumps({"name": name, "type": type_, "default": None, "doc": doc}, indent=2)


def _joined(lines: Iterator[str]) -> str:
    text = "\n".join(lines) + "\n"
    for line in text.splitlines():
        if len(line) > 120:
            msg = f"a generated line is longer than 120 characters; shorten the field's name or its doc: {line}"
            raise ValueError(msg)
    return text


def json_schemas() -> dict[str, str]:
    """Return the text of each document by the stem of its file."""
    made = {stem: _document(stem) for stem in _RECORDS} | {"request": _requests()}
    return {stem: json.dumps(schema, indent=2, ensure_ascii=False) + "\n" for stem, schema in made.items()}


def _head(stem: str, title: str) -> _Schema:
    return {"$schema": _DIALECT, "$id": json_schema_uri(stem), "title": title}


def _document(stem: str) -> _Schema:
    types = shape(stem)
    [root] = [record for record in types.records.values() if record.root]
    parts = {name: _record(part) for name, part in types.records.items() if part is not root}
    parts |= {name: _enum(enum) for name, enum in types.enums.items()}
    return {**_head(stem, root.name), **_record(root), "$defs": dict(sorted(parts.items()))}


def _record(record: Record) -> _Schema:
    made: _Schema = {
        "description": record.doc,
        "type": "object",
        "properties": dict(pair for field in record.fields for pair in _properties(field)),
    }
    both = [{"required": [field.name, f"{field.name}_base64"]} for field in record.fields if _is_bytes(field.type)]
    if required := [f.name for f in record.fields if not isinstance(f.type, Nullable) and not _is_bytes(f.type)]:
        made["required"] = required
    return made | ({"not": {"anyOf": both}} if both else {})


def _enum(enum: Enum) -> _Schema:
    dotted = enum.name == _DOTTED
    symbols = [symbol.replace("_", ".") if dotted else symbol for symbol in enum.symbols]
    return {"description": enum.doc, "type": "string", "enum": symbols}


def _properties(field: Field) -> Iterator[tuple[str, _Schema]]:
    if _is_bytes(field.type):
        yield field.name, {"description": f"{field.doc} Bytes that are compact JSON text, as that JSON value."}
        base64 = {"type": "string", "contentEncoding": "base64"}
        yield f"{field.name}_base64", {"description": f"{field.doc} Other bytes.", **base64}
    else:
        yield field.name, {"description": field.doc, **_value(field.type)}


def _is_bytes(type_: Type) -> bool:
    return type_ in (Primitive("bytes"), Nullable(Primitive("bytes")))


def _value(type_: Type) -> _Schema:
    match type_:
        case Primitive(kind):
            return dict(_PRIMITIVES[kind])
        case Strings():
            return {"type": "object", "additionalProperties": {"type": "string"}}
        case Array(items):
            return {"type": "array", "items": _value(items)}
        case Enum(name=name) | Record(name=name):
            return {"$ref": f"#/$defs/{name}"}
        case Nullable(inner):
            return {"anyOf": [_value(inner), _NULL]}


def _requests() -> _Schema:
    adapter: TypeAdapter[Any] = TypeAdapter(Request)
    schema = adapter.json_schema(mode="validation", schema_generator=Forms)
    allow_short_forms(schema)
    for part in schema["$defs"].values():
        _tidy(part)
    options, parts = schema["oneOf"], schema["$defs"]
    about = "A request. The value of a message of the `requests` topic, as JSON."
    return {**_head("request", "Request"), "description": about, "oneOf": options, "$defs": parts}


def _tidy(model: _Schema) -> None:
    """Drop titles, and defaults in the form that a model keeps; give attributes their texts."""
    about, _, attributes = str(model.get("description", "")).partition("\n\nAttributes:\n")
    if about:
        model["description"] = about.replace("\n", " ")
    texts = dict(re.findall(r"^    (\w+): (.+(?:\n {8}.+)*)$", attributes, re.MULTILINE))
    for name, field in model.get("properties", {}).items():
        field.pop("title", None)
        default = field.get("default")
        if (
            as_object(default) is not None
            or as_list(default)
            or (field.get("type") == "string" and type(default) is float)
        ):
            del field["default"]
        if name in texts:
            field["description"] = re.sub(r"\s+", " ", texts[name])


if __name__ == "__main__":
    main()
