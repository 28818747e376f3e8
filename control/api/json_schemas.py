"""JSON schemas of the OpenAPI document: of bodies, queries and answers, each a component with a name.

A generated client has a type for each component. So a schema has the name of its model, and no other schema has it.
"""

import inspect
import json
import re
from collections.abc import Hashable, Mapping, Sequence
from functools import cache
from typing import Any, Literal, cast

from pydantic import BaseModel, TypeAdapter
from pydantic.json_schema import JsonSchemaMode, JsonSchemaValue
from pydantic_core import core_schema

from tidewheel.jobs.strict_json import as_list, as_object
from tidewheel.jobs.validation import Forms, allow_short_forms

# Fields of a request of intake that the address, the query or a header gives.
IN_ADDRESS = ("type", "tenant", "request_id", "traceparent", "key", "run_id", "if_version")

PROBLEM: dict[str, Any] = {
    "type": "object",
    "title": "Problem",
    "description": "A refusal (RFC 9457).",
    "required": ["type", "title", "status", "code", "detail"],
    "properties": {
        "type": {"type": "string", "description": "`urn:tidewheel:problem:` and the code."},
        "title": {"type": "string", "description": "The phrase of the status."},
        "status": {"type": "integer", "description": "The status."},
        "code": {"type": "string", "description": "The kind of the refusal, such as `invalid` or `unknown_job`."},
        "detail": {"type": "string", "description": "The cause, and the remedy."},
        "errors": {
            "type": "array",
            "description": "The fields that do not fit.",
            "items": {"$ref": "#/components/schemas/FieldError"},
        },
    },
}

_REFERENCE = "#/components/schemas/{model}"
_FIELDS = re.compile(r"\n\n(?:Args|Attributes):\n")
_FIELD = re.compile(r"^    (\w+): (.+(?:\n {5,}.+)*)", re.MULTILINE)
_BASE64: dict[str, Any] = {"type": ["string", "null"], "contentEncoding": "base64"}


class _Described(Forms):
    """Schemas with the descriptions that docstrings have, for clients that are generated."""

    def model_schema(self, schema: core_schema.ModelSchema) -> JsonSchemaValue:
        return _describe(super().model_schema(schema), schema["cls"])

    def dataclass_schema(self, schema: core_schema.DataclassSchema) -> JsonSchemaValue:
        return _describe(super().dataclass_schema(schema), schema["cls"])

    def field_is_required(self, field: Any, total: bool) -> bool:  # noqa: ANN401, FBT001 - as in the base
        return self.mode == "serialization" or super().field_is_required(field, total)

    def field_title_should_be_set(self, schema: Any) -> bool:  # noqa: ANN401 - the base has a union of many
        del schema
        return False


def schema_of(kind: type[Any], mode: JsonSchemaMode = "serialization") -> dict[str, Any]:
    """Return the JSON schema of a type; its `$defs` become components of the document."""
    schema: dict[str, Any] = json.loads(_schema_text(cast("Hashable", kind), mode))
    return schema


def body_of(
    model: type[BaseModel],
    *,
    without: Sequence[str] = (),
    title: str | None = None,
    typed: Mapping[str, dict[str, Any]] | None = None,
) -> dict[str, Any]:
    """Return the schema of a body, except the fields that the address and the headers give.

    Its defaults are in words. Some clients send every default that a schema has. A job would then have the defaults
    of the client's release, and submitting it by another door would change it.

    Args:
        title: The name of the schema; by default that of the model.
    """
    schema = schema_of(model, "validation")
    schema["title"] = title or model.__name__
    for name in without:
        schema["properties"].pop(name, None)
        if name in schema.get("required", []):
            schema["required"].remove(name)
    for name, part in (typed or {}).items():
        schema["properties"][name] = {"description": schema["properties"][name]["description"], **part}
    for owner in (schema, *schema.get("$defs", {}).values()):
        properties = owner.get("properties", {})
        for name, part in properties.items():
            properties[name] = _BASE64 if name.endswith("_base64") else _in_words(part)
    allow_short_forms(schema)
    return schema


def patch_of(body: Mapping[str, Any], title: str) -> dict[str, Any]:
    """Return the schema of a merge patch: a field may be null, an object may have some of its fields."""
    properties: dict[str, Any] = {}
    for name, part in body["properties"].items():
        options = part.get("anyOf", [part])
        if "$ref" in str(part) or part.get("type") == "object":
            texts = [each for each in options if each == {"type": "string"}]
            options = [{"type": "object", "additionalProperties": True}, *texts]
        options = [each for each in options if each != {"type": "null"}]
        properties[name] = {"anyOf": [*options, {"type": "null"}]}
        if text := part.get("description"):
            properties[name]["description"] = text
    description = "A JSON merge patch (RFC 7396) of a job: null resets a field."
    return {
        "type": "object", "title": title, "description": description, "properties": properties,
        "additionalProperties": False,
    }  # fmt: skip


def in_query(model: type[BaseModel]) -> list[dict[str, Any]]:
    """Return the parameters of a query."""
    schema = schema_of(model, "validation")
    needed: Literal["required"] = "required"
    return [
        {
            "name": name,
            "in": "query",
            "required": name in schema.get(needed, []),
            "description": part.pop("description", name),
            "schema": _query_schema(part),
        }
        for name, part in schema["properties"].items()
    ]


def hoist(value: object, schemas: dict[str, Any]) -> None:
    """Make components of definitions, and of named schemas of contents; a name must be unique."""
    if (found := as_object(value)) is not None:
        for name, each in (as_object(found.pop("$defs", None)) or {}).items():
            hoist(each, schemas)
            _add(name, each, schemas)
        for part in found.values():
            hoist(part, schemas)
        schema = as_object(found.get("schema")) or {}
        if schema.get("type") == "object" and "title" in schema:
            _add(str(schema["title"]), schema, schemas)
            found["schema"] = {"$ref": _REFERENCE.format(model=schema["title"])}
    for part in as_list(value) or ():
        hoist(part, schemas)


@cache
def _schema_text(kind: Hashable, mode: JsonSchemaMode) -> str:
    """Return a JSON schema as text: many routes have the same model, and callers change what they get."""
    adapter: TypeAdapter[Any] = TypeAdapter(cast("type[Any]", kind))
    return json.dumps(adapter.json_schema(mode=mode, ref_template=_REFERENCE, schema_generator=_Described))


def _add(name: str, schema: object, schemas: dict[str, Any]) -> None:
    if schemas.setdefault(name, schema) != schema:
        message = f"two schemas have the name {name}; give `title` to one of them"
        raise ValueError(message)


def _describe(schema: JsonSchemaValue, kind: type[Any]) -> JsonSchemaValue:
    """Return a schema with the descriptions of fields in the docstrings of its class and its bases."""
    properties = schema.get("properties", {})
    for each in reversed(kind.__mro__):
        text, _, fields = re.sub(_FIELDS, "\f", inspect.getdoc(each) or "", count=1).partition("\f")
        for name, part in _FIELD.findall(fields):
            if name in properties:
                properties[name] = {**properties[name], "description": _words(part)}
        if each is kind:
            schema["description"] = _words(text)
    return schema


def _words(text: str) -> str:
    return re.sub(r"\bNone\b", "null", " ".join(text.split()))


def _in_words(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a field's schema with its default in words."""
    rest = {name: part for name, part in schema.items() if name != "default"}
    default = schema.get("default")
    as_shown = isinstance(default, str) or rest.get("type") != "string"
    if isinstance(default, bool | int | float | str) and default != "" and as_shown:
        shown = str(default).lower() if isinstance(default, bool) else default
        rest["description"] = f"{rest.get('description', '').rstrip('.')}. Default: `{shown}`.".removeprefix(". ")
    return rest


def _query_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a parameter: a query has no null, and labels are texts."""
    if schema.get("type") == "object":
        return {"type": "array", "items": {"type": "string", "pattern": "^[^=]+=.*$"}, "maxItems": 20}
    options = [option for option in schema.get("anyOf", []) if option != {"type": "null"}]
    rest = {name: part for name, part in schema.items() if name not in {"anyOf", "default"}}
    default = {} if schema.get("default") is None else {"default": schema["default"]}
    return {**(options[0] if len(options) == 1 else {"anyOf": options} if options else {}), **rest, **default}
