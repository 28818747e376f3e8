"""Routes of operations: path, query, body and answers of each, from its signature.

A parameter in the path is one of the path. Those of a GET are its query; those of a POST are its body. `after` becomes
an opaque cursor. Callers, turns, strict bodies and problem documents are those of every route: `control/api`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, make_dataclass
from functools import cache, partial
from http import HTTPStatus
from typing import Annotated, Any, cast, get_origin
from uuid import UUID

from fastapi import APIRouter, Security
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from tidewheel.api_keys import Scope
from tidewheel.control.api.answers import IDEMPOTENCY_KEY, LOCATION, accepted, answer, call, idempotency_key
from tidewheel.control.api.bodies import ELSEWHERE, read_body
from tidewheel.control.api.callers import Caller, caller, ensure_all_tenants
from tidewheel.control.api.json_schemas import body_of, schema_of
from tidewheel.control.api.openapi import add_route
from tidewheel.control.api.queries import Cursors, PageQuery, TenantQuery, read_number, read_query
from tidewheel.control.api.workers import Workers
from tidewheel.control.client.connection import Connection
from tidewheel.doors.address import after_of, query_of, title
from tidewheel.jobs.strict_json import Json
from tidewheel.jobs.validation import StrictModel
from tidewheel.nouns.operation import Noun, Operation, Parameter, as_document, field_values, model_of, operations

_CURSOR: dict[str, Any] = {"anyOf": [{"type": "string"}, {"type": "null"}]}


@dataclass(frozen=True, slots=True)
class Route:
    """The documentation of a route, and what it answers in a form of its own."""

    example: Json
    sent: Json = None
    schema: Mapping[str, Any] | None = None
    shape: Callable[[Any], object] | None = None


def add_routes(
    router: APIRouter, noun: type[Noun], routes: Mapping[str, Route], reads: Workers, writes: Workers
) -> None:
    """Add the routes of a noun's operations; `routes` has the documentation of each."""
    for name, declared in operations(noun).items():
        _Endpoint(noun, declared, routes[name], reads if declared.scope is Scope.READ else writes).add_to(router)


class _Endpoint:
    """The route of one operation."""

    def __init__(self, noun: type[Noun], declared: Operation, route: Route, workers: Workers) -> None:
        self._noun, self._declared, self._route, self._workers = noun, declared, route, workers
        self._method, _, self._path = declared.route.partition(" ")
        self._in_path, self._sent, self._is_idempotent = _given(declared)
        (self.query, self._asked), self.body = _query_of(declared), _body_of(declared)

    def add_to(self, router: APIRouter) -> None:
        """Add the route with its documentation."""
        declared, route = self._declared, self._route

        async def endpoint(request: Request, found: Caller) -> Response:
            return await self._answer(request, found)

        endpoint.__name__, endpoint.__doc__ = declared.name, declared.words
        endpoint.__annotations__["found"] = Annotated[Caller, Security(caller, scopes=[declared.scope])]
        documented: dict[str, Any] = {"body": body_of(self.body), "sent": route.sent} if self._sent else {}
        if self._is_idempotent:
            documented["headers"] = IDEMPOTENCY_KEY
        if declared.starts is not None:
            documented |= {"also": HTTPStatus.ACCEPTED, "sets": LOCATION}
        add_route(
            router, self._method, self._path, endpoint, scope=declared.scope, query=self.query,
            answer=route.schema or _schema_of(declared), example=route.example, **documented,
        )  # fmt: skip

    async def _answer(self, request: Request, found: Caller) -> Response:
        query = read_query(request, self.query)
        arguments = {each.name: _path_value(request, each) for each in self._in_path}
        arguments |= {name: getattr(query, spoken) for name, spoken in self._asked.items()}
        if self._method == "POST":
            body = await read_body(request, self.body)
            arguments |= {each.name: getattr(body, each.spoken) for each in self._sent}
        if self._is_idempotent:
            arguments["request_id"] = idempotency_key(request)
        if (needed := self._declared.authorize(arguments)) is not None:
            ensure_all_tenants(found, needed)
        cursors = Cursors.of(request, query, found.tenant) if isinstance(query, PageQuery) else None
        if cursors is not None:
            arguments["after"] = after_of(cursors, self._declared)
        work = partial(self._run, arguments, cursors)
        if self._declared.starts is None:
            return await answer(self._workers, found, work)
        started = await call(self._workers, found, work)
        return accepted(found, started, self._declared.starts, id_of(self._declared))

    def _run(self, arguments: Mapping[str, object], cursors: Cursors | None, connection: Connection) -> object:
        found = self._declared.call(self._noun, connection, arguments)
        if self._route.shape is not None:
            return self._route.shape(found)
        if cursors is not None:
            return {**field_values(found), "next_cursor": cursors.write(*found.next_cursor or [None])}
        return as_document(found, self._declared)


def _given(declared: Operation) -> tuple[list[Parameter], list[Parameter], bool]:
    """Return the parameters in the path, those in the body, and true if it takes an Idempotency-Key."""
    others = [each for each in declared.parameters if f"{{{each.name}" not in declared.route]
    in_path = [each for each in declared.parameters if each not in others]
    posted = others if declared.route.startswith("POST ") else []
    sent = [each for each in posted if each.name != "request_id"]
    return in_path, sent, len(sent) < len(posted)


# A model costs milliseconds to make, and a process that makes several applications needs each once.
@cache
def _query_of(declared: Operation) -> tuple[type[TenantQuery], dict[str, str]]:
    others = [each for each in declared.parameters if f"{{{each.name}" not in declared.route]
    return query_of(declared, [] if declared.route.startswith("POST ") else others)


@cache
def _body_of(declared: Operation) -> type[StrictModel]:
    _, sent, _ = _given(declared)
    named = [(each.spoken, each) for each in sent]
    body = model_of(f"{title(declared.name)}Body", named, StrictModel, declared.summary)
    body.elsewhere = {**ELSEWHERE, **getattr(declared.function, "elsewhere", {})}
    return body


def id_of(declared: Operation) -> str:
    """Return the name of the id in the result of an operation that starts work, such as `redrive_id`."""
    return f"{(declared.starts or '').rpartition('/')[2].removesuffix('s')}_id"


def _path_value(request: Request, each: Parameter) -> object:
    value = request.path_params[each.name]
    return value if isinstance(value, UUID) else (read_number(str(value)) or 0)  # 0: no row has it


def _schema_of(declared: Operation) -> dict[str, Any]:
    """Return the schema of an answer: of a list in a field, of a page with an opaque cursor."""
    if get_origin(declared.result) is list:
        return schema_of(_list_of(declared))
    schema = schema_of(cast("type[BaseModel]", declared.result))
    if "next_cursor" in schema.get("properties", {}):
        schema["properties"]["next_cursor"] = _CURSOR
    return schema


@cache
def _list_of(declared: Operation) -> type[Any]:
    """Return a record that has the list of an answer in a field."""
    name = declared.route.rpartition("/")[2]
    words = declared.summary.removeprefix("List ")
    record = make_dataclass(f"{title(name.removesuffix('s'))}List", [(name, declared.result)])
    record.__doc__ = words[0].upper() + words[1:]
    return record
