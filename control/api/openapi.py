"""The OpenAPI 3.1 document: each route with its scope, its schemas and an example.

The schemas are those of the models that read bodies and queries, and of the records that reads return.
"""

import re
from collections.abc import Callable, Coroutine, Mapping, Sequence
from http import HTTPStatus
from importlib.metadata import version
from inspect import cleandoc
from typing import Any, Literal

from fastapi import APIRouter, FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from pydantic import BaseModel, TypeAdapter
from pydantic.json_schema import JsonSchemaMode
from starlette.responses import JSONResponse, Response

from tidewheel.api_keys import Scope
from tidewheel.jobs.schema_forms import Forms, allow_short_forms
from tidewheel.jobs.strict_json import Json, as_list, as_object

Endpoint = Callable[..., Coroutine[Any, Any, Response]]

# Fields of a request of intake that the address, the query or a header gives.
IN_ADDRESS = ("type", "tenant", "request_id", "traceparent", "key", "run_id", "if_version")

_REFERENCE = "#/components/schemas/{model}"
_ATTRIBUTE = re.compile(r"^    (\w+): (.+)$", re.MULTILINE)
_IN_PATH = re.compile(r"\{(\w+)\}")
_PATH_SCHEMAS: Mapping[str, dict[str, object]] = {
    "key": {"type": "string", "minLength": 1, "maxLength": 255},
    "key_id": {"type": "string", "pattern": "^[0-9a-z]{10}$"},
    "run_id": {"type": "string", "format": "uuid"},
    "executor_id": {"type": "string", "format": "uuid"},
    "redrive_id": {"type": "string", "format": "uuid"},
    "number": {"type": "integer", "minimum": 1, "maximum": 2**63 - 1},
    "fingerprint": {"type": "string", "pattern": "^[0-9a-fA-F]{16}$"},
}
_PROBLEM: dict[str, object] = {
    "type": "object",
    "required": ["type", "title", "status", "code", "detail"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "code": {"type": "string"},
        "detail": {"type": "string"},
        "errors": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["path", "problem", "remedy"],
                "properties": {name: {"type": "string"} for name in ("path", "problem", "remedy")},
            },
        },
    },
}
_REFUSAL = {
    "description": "A problem document (RFC 9457)",
    "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
}


def schema_of(kind: type[Any], mode: JsonSchemaMode = "serialization") -> dict[str, Any]:
    """Return the JSON schema of a type; its `$defs` become components of the document."""
    adapter: TypeAdapter[Any] = TypeAdapter(kind)
    return adapter.json_schema(mode=mode, ref_template=_REFERENCE, schema_generator=Forms)


def one_level(kind: type[Any], part: str, title: str, **others: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of a record with the fields of its part on the same level.

    Args:
        kind: The record.
        part: The name of the part.
        title: The name of the schema.
        **others: The schemas of fields that are sent in another form.
    """
    schema = schema_of(kind)
    definitions, properties = schema["$defs"], schema["properties"]
    inner = definitions.pop(properties.pop(part)["$ref"].rpartition("/")[2])
    properties = {**inner["properties"], **properties, **others}
    definitions[title] = {"type": "object", "title": title, "required": [*properties], "properties": properties}
    return {"$ref": _REFERENCE.format(model=title), "$defs": definitions}


def body_of(model: type[BaseModel], *, without: Sequence[str] = ()) -> dict[str, Any]:
    """Return the schema of a body, except the fields that the address and the headers give."""
    schema = schema_of(model, "validation")
    for name in without:
        schema["properties"].pop(name, None)
        if name in schema.get("required", []):
            schema["required"].remove(name)
    allow_short_forms(schema)
    return schema


def add_route(
    router: APIRouter,
    method: str,
    path: str,
    endpoint: Endpoint,
    *,
    scope: Scope | None,
    answer: type[Any] | Mapping[str, Any],
    example: Json,
    status: HTTPStatus = HTTPStatus.OK,
    creates: bool = False,
    query: type[BaseModel] | None = None,
    body: Mapping[str, Any] | None = None,
    sent: Json = None,
    content: Sequence[str] = ("application/json",),
    headers: Mapping[str, str] | None = None,
    media: str = "application/json",
) -> None:
    """Add a route with its documentation.

    Args:
        router: Gets the route.
        method: Its method.
        path: Its path.
        endpoint: Answers its requests.
        scope: The scope that its caller needs; None for calls with other authorization.
        answer: The type of its answer, or a JSON schema.
        example: An answer.
        status: The status of success.
        creates: True if it may also create something, which is 201 with the same answer.
        query: The model of its query.
        body: The schema of its body.
        sent: A body.
        content: The content types of its body.
        headers: The names of further request headers, each with a description.
        media: The content type of its answer.
    """
    parameters = [_in_path(name) for name in _IN_PATH.findall(re.sub(r":\w+\}", "}", path))]
    if query is not None:
        parameters += _in_query(query)
    parameters += [
        {"name": name, "in": "header", "required": False, "description": text, "schema": {"type": "string"}}
        for name, text in (headers or {}).items()
    ]
    schema = schema_of(answer) if isinstance(answer, type) else answer
    extra: dict[str, Any] = {"parameters": parameters}
    if scope is not None:
        extra |= {"x-tidewheel-scope": scope.value, "security": [{"bearer": []}]}
    if body is not None:
        described = {"schema": body, **({} if sent is None else {"example": sent})}
        extra["requestBody"] = {"required": bool(body.get("required")), "content": dict.fromkeys(content, described)}
    described = {media: {"schema": schema, "example": example}}
    success = {"description": status.phrase, **({} if status is HTTPStatus.NO_CONTENT else {"content": described})}
    answers: dict[int | str, dict[str, Any]] = {status.value: success, "4XX": _REFUSAL, "503": _REFUSAL}
    if creates:
        answers[HTTPStatus.CREATED.value] = {**success, "description": HTTPStatus.CREATED.phrase}
    text = type("Text", (Response,), {"media_type": media})
    router.add_api_route(
        path,
        endpoint,
        methods=[method],
        status_code=status.value,
        summary=(endpoint.__doc__ or "").partition("\n")[0].rstrip("."),
        operation_id=f"{path.split('/')[3 if path.startswith('/api/') else 1].partition(':')[0]}_{endpoint.__name__}",
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
        schemas: dict[str, Any] = {"Problem": _PROBLEM}
        _hoist(made, schemas)
        made.setdefault("components", {})["schemas"] = dict(sorted(schemas.items()))
        made["components"]["securitySchemes"] = {"bearer": {"type": "http", "scheme": "bearer"}}
        for route in app.routes:
            if isinstance(route, APIRoute) and route.openapi_extra:
                _restore_examples(made["paths"][route.path_format], route)
        app.openapi_schema = made
    return app.openapi_schema


def _restore_examples(operations: dict[str, Any], route: APIRoute) -> None:
    """Put the examples in again: FastAPI has removed every null from them."""
    for method in route.methods or ():
        operation = operations[method.lower()]
        for described, source in (
            (operation["responses"].get(str(route.status_code), {}), route.responses.get(route.status_code or 200, {})),
            (operation.get("requestBody", {}), (route.openapi_extra or {}).get("requestBody", {})),
        ):
            for media, content in source.get("content", {}).items():
                if "example" in content:
                    described["content"][media]["example"] = content["example"]


def _hoist(value: object, schemas: dict[str, Any]) -> None:
    """Move the definitions of every schema to the components."""
    if (found := as_object(value)) is not None:
        definitions = as_object(found.pop("$defs", None)) or {}
        for name, schema in definitions.items():
            _hoist(schema, schemas)
            schemas[name] = schema
        for part in found.values():
            _hoist(part, schemas)
    for part in as_list(value) or ():
        _hoist(part, schemas)


def _in_path(name: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": _PATH_SCHEMAS[name]}


def _in_query(model: type[BaseModel]) -> list[dict[str, Any]]:
    needed: Literal["required"] = "required"
    schema = schema_of(model, "validation")
    texts: dict[str, str] = {}
    for each in reversed(model.__mro__):  # a docstring has the attributes that its class adds
        texts |= dict(_ATTRIBUTE.findall(cleandoc(each.__doc__ or "")))
    return [
        {
            "name": name,
            "in": "query",
            "required": name in schema.get(needed, []),
            "description": texts.get(name, name),
            "schema": _query_schema(part),
        }
        for name, part in schema["properties"].items()
    ]


def _query_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a parameter: a query has no null, and labels are texts."""
    if schema.get("type") == "object":
        return {"type": "array", "items": {"type": "string", "pattern": "^[^=]+=.*$"}, "maxItems": 20}
    options = [option for option in schema.get("anyOf", []) if option != {"type": "null"}]
    rest = {name: part for name, part in schema.items() if name not in {"anyOf", "title", "default"}}
    default = {} if schema.get("default") is None else {"default": schema["default"]}
    return {**(options[0] if len(options) == 1 else {"anyOf": options} if options else {}), **rest, **default}
