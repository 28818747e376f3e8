"""The OpenAPI 3.1 document: each route with its scope, its schemas and an example of its body.

The schemas are those of the models that read bodies and queries, and of the records that reads return. An operation has
the name of its endpoint, as `listJobs` of `list_jobs`: a generated client has a method of this name.

A generated client has a type for each component. So a schema has the name of its model, and no other schema has it.
"""

import inspect
import json
import re
from collections.abc import Callable, Coroutine, Hashable, Mapping, Sequence
from functools import cache
from http import HTTPStatus
from importlib.metadata import version
from typing import Any, Literal, cast

from fastapi import APIRouter, Depends, FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel, TypeAdapter
from pydantic.json_schema import JsonSchemaMode, JsonSchemaValue
from pydantic_core import core_schema
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from tidewheel.api_keys import Scope
from tidewheel.control.api.request_input import ensure_known_conditions
from tidewheel.errors import FieldError
from tidewheel.jobs.strict_json import Json, as_list, as_object
from tidewheel.jobs.validation import Forms, allow_short_forms

Endpoint = Callable[..., Coroutine[Any, Any, Response]]

# Fields of a request of intake that the address, the query or a header gives.
IN_ADDRESS = ("type", "tenant", "request_id", "traceparent", "key", "run_id", "if_version")

PROBLEM: dict[str, Any] = {
    "type": "object",
    "title": "Problem",
    "description": "A refusal (RFC 9457).",
    "required": ["type", "title", "status", "code", "detail"],
    "properties": {
        "type": {"type": "string", "description": "`urn:tidewheel:problem:` and the code."},
        "title": {"type": "string", "description": "The status phrase."},
        "status": {"type": "integer", "description": "The status."},
        "code": {"type": "string", "description": "The kind of the refusal, such as `invalid` or `unknown_job`."},
        "detail": {"type": "string", "description": "The cause, and the remedy."},
        "errors": {
            "type": "array",
            "description": "The invalid fields.",
            "items": {"$ref": "#/components/schemas/FieldError"},
        },
    },
}

_REFERENCE = "#/components/schemas/{model}"
_FIELDS = re.compile(r"\n\n(?:Args|Attributes):\n")
_FIELD = re.compile(r"^    (\w+): (.+(?:\n {5,}.+)*)", re.MULTILINE)
_BASE64: dict[str, Any] = {"type": ["string", "null"], "contentEncoding": "base64"}
_IN_PATH = re.compile(r"\{(\w+)\}")
_PATH_SCHEMAS: Mapping[str, dict[str, object]] = {
    "key": {"type": "string", "minLength": 1, "maxLength": 255},
    "key_id": {"type": "string", "pattern": "^[0-9a-z]{10}$"},
    "tenant": {"type": "string", "pattern": "^[a-z0-9][a-z0-9._-]{0,62}$"},
    **{name: {"type": "string", "format": "uuid"} for name in ("run_id", "executor_id", "work_id", "batch_id")},
    "number": {"type": "integer", "minimum": 1, "maximum": 2**63 - 1},
    "fingerprint": {"type": "string", "pattern": "^[0-9a-fA-F]{16}$"},
}
_TOKENS = {
    "apiKey": "An API key. An API without TIDEWHEEL_API_TOKEN listens on loopback, and needs none.",
    "executorToken": "An API key with the scope execute; until release 0.3 also the value of TIDEWHEEL_API_TOKEN.",
    "taskToken": "The task token of an attempt.",
}
_REFUSAL: dict[str, Any] = {
    "description": "A problem document (RFC 9457)",
    "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
}


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
    model: type[BaseModel], *, without: Sequence[str] = (), typed: Mapping[str, dict[str, Any]] | None = None
) -> dict[str, Any]:
    """Return the schema of a body, except the fields that the address and the headers give.

    Its defaults are in words. Some clients send every default that a schema has. A job would then have the defaults
    of the client's release, and submitting it by another door would change it.
    """
    schema = schema_of(model, "validation")
    schema["title"] = model.__name__
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
        raise ValueError(f"two schemas have the name {name}; give `title` to one of them")


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


def add_route(
    router: APIRouter,
    method: str,
    path: str,
    endpoint: Endpoint,
    *,
    scope: Scope | None,
    shows: Literal["executorToken", "taskToken"] | None = None,
    answer: type[Any] | Mapping[str, Any],
    status: HTTPStatus = HTTPStatus.OK,
    also: HTTPStatus | None = None,
    query: type[BaseModel] | None = None,
    body: Mapping[str, Any] | None = None,
    sent: Json = None,
    content: Sequence[str] = ("application/json",),
    headers: Mapping[str, str] | None = None,
    sets: Mapping[str, str] | None = None,
    media: str = "application/json",
) -> None:
    """Add a route with its documentation.

    Args:
        scope: The scope that its caller's API key needs; None for calls with other authorization.
        shows: The token that authorizes a call without an API key, if it needs one.
        also: Another status of success, with the same answer.
        headers: The names of further request headers, each with a description.
        sets: The names of headers of its answer, each with a description.
    """
    named = _IN_PATH.findall(re.sub(r":\w+\}", "}", path))
    parameters = [{"name": name, "in": "path", "required": True, "schema": _PATH_SCHEMAS[name]} for name in named]
    if query is not None:
        parameters += in_query(query)
    parameters += [
        {"name": name, "in": "header", "required": False, "description": text, "schema": {"type": "string"}}
        for name, text in (headers or {}).items()
    ]
    schema = schema_of(answer) if isinstance(answer, type) else answer
    extra: dict[str, Any] = {"parameters": parameters}
    if scope is not None:
        extra |= {"x-tidewheel-scope": scope.value, "security": [{"apiKey": []}]}
    elif shows is not None:
        extra["security"] = [{shows: []}]
    if body is not None:
        described = {"schema": body, **({} if sent is None else {"example": sent})}
        extra["requestBody"] = {"required": bool(body.get("required")), "content": dict.fromkeys(content, described)}
    success: dict[str, Any] = {"description": status.phrase}
    if status is not HTTPStatus.NO_CONTENT:
        success["content"] = {media: {"schema": schema}}
    if sets:
        text_schema = {"type": "string"}
        success["headers"] = {name: {"description": text, "schema": text_schema} for name, text in sets.items()}
    answers: dict[int | str, dict[str, Any]] = {status.value: success, "4XX": _REFUSAL, "5XX": _REFUSAL}
    if also is not None:
        answers[also.value] = {**success, "description": also.phrase}
    text = type("Text", (Response,), {"media_type": media})

    async def check(request: Request) -> None:
        ensure_known_conditions(request, headers or {})

    changes = scope not in {None, Scope.READ}
    router.add_api_route(
        path,
        endpoint,
        methods=[method],
        status_code=status.value,
        summary=(endpoint.__doc__ or "").partition("\n")[0].rstrip("."),
        operation_id=re.sub(r"_(\w)", lambda found: found[1].upper(), endpoint.__name__),
        tags=[_group(path)],
        dependencies=[Depends(check)] if changes else None,
        response_model=None,
        response_class=JSONResponse if media == "application/json" else text,
        openapi_extra=extra,
        responses=answers,
    )


def openapi(app: FastAPI) -> dict[str, Any]:
    """Return the document of an application."""
    if app.openapi_schema is None:
        made = get_openapi(
            title=app.title, version=version("tidewheel"), openapi_version="3.1.0", routes=app.routes,
            description=app.description,
        )  # fmt: skip
        schemas: dict[str, Any] = {"Problem": PROBLEM, "FieldError": schema_of(FieldError)}
        hoist(made, schemas)
        used = set(re.findall(r"#/components/schemas/(\w+)", json.dumps([made, schemas])))
        made.setdefault("components", {})["schemas"] = {name: schemas[name] for name in sorted(used)}
        made["components"]["securitySchemes"] = {
            name: {"type": "http", "scheme": "bearer", "description": text} for name, text in _TOKENS.items()
        }
        app.openapi_schema = made
    return app.openapi_schema


def _group(path: str) -> str:
    return re.split("[/:]", path.removeprefix("/api/v1").removeprefix("/"))[0].removesuffix(".json")
