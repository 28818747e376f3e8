"""The OpenAPI 3.1 document: each route with its scope, its schemas and an example.

The schemas are those of the models that read bodies and queries, and of the records that reads return. An operation has
the name of its endpoint, as `listJobs` of `list_jobs`: a generated client has a method of this name.
"""

import json
import re
from collections.abc import Callable, Coroutine, Mapping, Sequence
from http import HTTPStatus
from importlib.metadata import version
from typing import Any, Literal

from fastapi import APIRouter, Depends, FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from tidewheel.api_keys import Scope
from tidewheel.control.api.json_schemas import PROBLEM, hoist, in_query, schema_of
from tidewheel.control.api.queries import ensure_known_conditions
from tidewheel.errors import FieldError
from tidewheel.jobs.strict_json import Json

Endpoint = Callable[..., Coroutine[Any, Any, Response]]

_IN_PATH = re.compile(r"\{(\w+)\}")
_PATH_SCHEMAS: Mapping[str, dict[str, object]] = {
    "key": {"type": "string", "minLength": 1, "maxLength": 255},
    "key_id": {"type": "string", "pattern": "^[0-9a-z]{10}$"},
    "tenant": {"type": "string", "pattern": "^[a-z0-9][a-z0-9._-]{0,62}$"},
    "run_id": {"type": "string", "format": "uuid"},
    "executor_id": {"type": "string", "format": "uuid"},
    "work_id": {"type": "string", "format": "uuid"},
    "backfill_id": {"type": "string", "format": "uuid"},
    "batch_id": {"type": "string", "format": "uuid"},
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


def add_route(
    router: APIRouter,
    method: str,
    path: str,
    endpoint: Endpoint,
    *,
    scope: Scope | None,
    shows: Literal["executorToken", "taskToken"] | None = None,
    answer: type[Any] | Mapping[str, Any],
    example: Json,
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
    parameters = [_in_path(name) for name in _IN_PATH.findall(re.sub(r":\w+\}", "}", path))]
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
    described = {media: {"schema": schema, "example": example}}
    success: dict[str, Any] = {"description": status.phrase}
    if status is not HTTPStatus.NO_CONTENT:
        success["content"] = described
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
        for route in app.routes:
            if isinstance(route, APIRoute) and route.openapi_extra:
                _restore_examples(made["paths"][route.path_format], route)
        app.openapi_schema = made
    return app.openapi_schema


def _restore_examples(operations: dict[str, Any], route: APIRoute) -> None:
    """Put the examples in again: FastAPI has removed every null from them."""
    for method in route.methods or ():
        operation = operations[method.lower()]
        answers = [(operation["responses"][str(code)], source) for code, source in route.responses.items()]
        body = (operation.get("requestBody", {}), (route.openapi_extra or {}).get("requestBody", {}))
        for described, source in (*answers, body):
            for media, content in source.get("content", {}).items():
                if "example" in content:
                    described["content"][media]["example"] = content["example"]


def _in_path(name: str) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": _PATH_SCHEMAS[name]}


def _group(path: str) -> str:
    """Return the noun of a path, such as `jobs` of `/api/v1/jobs/{key}:pause`."""
    return re.split("[/:]", path.removeprefix("/api/v1").removeprefix("/"))[0].removesuffix(".json")
