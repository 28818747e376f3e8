"""Routes of operations: path, query, body and answers of each, from its signature.

A parameter in the path is one of the path. Those of a GET are its query; those of a POST are its body. `after` becomes
an opaque cursor. Callers, turns, strict bodies and problem documents are those of every route: `control/api`.
"""

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field, make_dataclass
from functools import cache, partial
from http import HTTPStatus
from typing import Annotated, Any, cast, get_args, get_origin

from fastapi import APIRouter, Security
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from tidewheel.control.api.answers import IDEMPOTENCY_KEY, LOCATION, accepted, answer, call, idempotency_key
from tidewheel.control.api.authorization import Caller, caller, ensure_all_tenants
from tidewheel.control.api.openapi import add_route, body_of, schema_of
from tidewheel.control.api.request_input import (
    ELSEWHERE,
    Cursors,
    PageQuery,
    read_body,
    read_key,
    read_number,
    read_query,
)
from tidewheel.control.api.workers import Workers
from tidewheel.control.client.connection import Connection
from tidewheel.doors.address import after_of, next_cursor, query_of, singular, title
from tidewheel.jobs.strict_json import Json
from tidewheel.jobs.validation import StrictModel
from tidewheel.nouns.operation import Noun, Operation, Page, Parameter, as_document, field_values, model_of, operations


@dataclass(frozen=True, slots=True)
class Route:
    """The documentation of a route, and what it answers in a form of its own."""

    sent: Json = None  # the body that the document shows
    _: KW_ONLY
    values: Mapping[str, Json] = field(default_factory=dict[str, Json])  # of fields of its example
    schema: Mapping[str, Any] | None = None
    shape: Callable[..., object] | None = None  # of a change, it gets the ids of the path and `unchanged`
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    prepare: Callable[[Caller, dict[str, Any]], None] = lambda caller, arguments: None  # refuses, or completes them
    status: HTTPStatus = HTTPStatus.OK
    gives: Mapping[str, str] = field(default_factory=dict[str, str])  # headers of its answer


def add_routes(router: APIRouter, noun: type[Noun], routes: Mapping[str, Route]) -> None:
    """Add the routes of operations of a noun; `routes` has the documentation of each.

    The application that has them keeps the workers of its reads and writes in its state.
    """
    for name, route in routes.items():
        made = _endpoint_of(noun, operations(noun)[name]).route(route)  # type: ignore[arg-type] # a class has a hash
        router.routes.append(made)


class _Endpoint:
    """The route of one operation."""

    def __init__(self, noun: type[Noun], declared: Operation) -> None:
        self._noun, self._declared = noun, declared
        self._method, _, self._path = declared.route.partition(" ")
        self._begun = HTTPStatus.CREATED if declared.starts == self._path else HTTPStatus.ACCEPTED
        others = [each for each in declared.parameters if f"{{{each.spoken}" not in self._path]
        self._in_path = [each for each in declared.parameters if each not in others]
        self.query, self._asked = query_of(declared, [] if self._method != "GET" else others)
        self._sent = [each for each in others if each.name != "request_id"] if self._method != "GET" else []
        self._is_idempotent = len(self._sent) < len(others) and self._method != "GET"
        named = [(each.spoken, each) for each in self._sent]
        self.body = model_of(f"{title(declared.name)}Body", named, StrictModel, declared.summary)
        in_path = {each.spoken: "leave it out; the URL already names it" for each in self._in_path}
        self.body.elsewhere = {**ELSEWHERE, **in_path, **getattr(declared.function, "elsewhere", {})}
        self._made: BaseRoute | None = None

    def route(self, route: Route) -> BaseRoute:
        """Return the route with its documentation, which is made once."""
        if self._made is None:
            router = APIRouter()
            self._add_to(router, route)
            [self._made] = router.routes
        return self._made

    def _add_to(self, router: APIRouter, route: Route) -> None:
        declared = self._declared

        async def endpoint(request: Request, found: Caller) -> Response:
            state = request.app.state
            return await self._answer(request, found, route, state.reads if self._method == "GET" else state.writes)

        endpoint.__name__, endpoint.__doc__ = declared.name, declared.words
        endpoint.__annotations__["found"] = Annotated[Caller, Security(caller, scopes=[declared.scope])]
        documented: dict[str, Any] = {"status": route.status}
        documented |= {"body": body_of(self.body), "sent": route.sent} if self._sent else {}
        if self._is_idempotent:
            documented["headers"] = IDEMPOTENCY_KEY | dict(route.headers)
        if declared.starts is not None:
            documented |= {"also" if self._begun is HTTPStatus.ACCEPTED else "status": self._begun, "sets": LOCATION}
        add_route(
            router, self._method, self._path, endpoint, scope=declared.scope, query=self.query,
            answer=route.schema or _schema_of(declared, route.shape), example=route.values, **documented,
        )  # fmt: skip

    async def _answer(self, request: Request, found: Caller, route: Route, workers: Workers) -> Response:
        query = read_query(request, self.query)
        arguments = {each.name: _path_value(request, each) for each in self._in_path}
        arguments |= {name: getattr(query, spoken) for name, spoken in self._asked.items()}
        if self._method != "GET":
            body = await read_body(request, self.body)
            sent = [each for each in self._sent if not each.filters or each.spoken in body.model_fields_set]
            arguments |= {each.name: getattr(body, each.spoken) for each in sent}
        if self._is_idempotent:
            arguments["request_id"] = idempotency_key(request)
        route.prepare(found, arguments)
        if (needed := self._declared.authorize(arguments)) is not None:
            ensure_all_tenants(found, needed)
        cursors = Cursors.of(request, query, found.tenant) if isinstance(query, PageQuery) else None
        if cursors is not None:
            arguments["after"] = after_of(cursors, self._declared)
        work = partial(self._run, arguments, cursors, route)
        if self._declared.starts is None:
            return await answer(workers, found, work, status=route.status, headers=route.gives)
        started = await call(workers, found, work)
        name = f"{singular(self._declared.starts.rpartition('/')[2])}_id"
        return accepted(found, started, self._declared.starts, name, self._begun)

    def _run(self, given: Mapping[str, Any], cursors: Cursors | None, route: Route, connection: Connection) -> object:
        found = self._declared.call(self._noun, connection, given)
        if (shape := route.shape) is not None:
            ids = [given[each.name] for each in self._in_path]
            return shape(*ids, not found) if self._declared.result is bool else shape(found)
        document: Any = as_document(found, self._declared)
        if cursors is None:
            return document
        page = cast("dict[str, object]", document) if isinstance(document, dict) else field_values(document)
        return {**page, "next_cursor": next_cursor(cursors, page["next_cursor"])}


_endpoint_of = cache(_Endpoint)  # a model and a route cost milliseconds to make, and several applications need each


def _path_value(request: Request, each: Parameter) -> object:
    if each.spoken == "key":
        return read_key(request)
    value = request.path_params[each.spoken]
    return (read_number(value) or 0) if each.accepts(int) else value  # 0: no row has it


def _schema_of(declared: Operation, shape: object) -> dict[str, Any]:
    """Return the schema of an answer: of a list in a field, of a page with an opaque cursor."""
    record = shape if isinstance(shape, type) else declared.result
    if get_origin(record) in {list, Page}:
        record = _list_of(declared)
    schema = schema_of(cast("type[BaseModel]", record))
    if "next_cursor" in schema.get("properties", {}):
        schema["properties"]["next_cursor"] = {"anyOf": [{"type": "string"}, {"type": "null"}]}
    return schema


@cache
def _list_of(declared: Operation) -> type[Any]:
    """Return a record that has the list of an answer in a field."""
    [name] = cast("dict[str, object]", as_document([], declared))
    words = declared.summary.removeprefix("List ")
    of: Any = get_args(declared.result)[0]
    cursor = [("next_cursor", object)] if get_origin(declared.result) is Page else []
    noun = title(singular(declared.name.removeprefix("list_").removeprefix("get_")))
    record = make_dataclass(f"{noun}List", [(name, list[of]), *cursor])
    record.__doc__ = words[0].upper() + words[1:]
    return record
