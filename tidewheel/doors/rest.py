"""Routes of operations: path, query, body and answers of each, from its signature.

A parameter in the path is one of the path. Those of a GET are its query; those of a POST are its body, but for those
that headers have. `after` and `before` become an opaque cursor. Callers, turns, strict bodies and problem documents are
those of every route: `control/api`.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, make_dataclass
from functools import cache, partial
from http import HTTPStatus
from typing import Annotated, Any, TypeAlias, cast, get_args, get_origin

from fastapi import APIRouter, Security
from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from tidewheel.control.api.answers import (
    ENTITY_TAG,
    IDEMPOTENCY_KEY,
    IF_MATCH,
    IF_NONE_MATCH,
    LOCATION,
    READ_FROM,
    accepted,
    answer,
    call,
    expected_version,
    idempotency_key,
)
from tidewheel.control.api.authorization import Caller, caller, ensure_all_tenants
from tidewheel.control.api.openapi import IN_ADDRESS, add_route, body_of, schema_of
from tidewheel.control.api.request_input import (
    ELSEWHERE,
    Cursors,
    PageQuery,
    TenantQuery,
    read_body,
    read_key,
    read_number,
    read_query,
)
from tidewheel.control.api.workers import Workers
from tidewheel.control.client.connection import Connection
from tidewheel.doors.address import after_of, next_cursor, place_of, query_with, singular, title
from tidewheel.jobs.validation import StrictModel
from tidewheel.nouns.operation import Noun, Operation, Page, Parameter, as_document, field_values, model_of, operations

_HEADERS: Mapping[str, tuple[Mapping[str, str], Callable[[Request], object]]] = {
    "request_id": (IDEMPOTENCY_KEY, idempotency_key),
    "if_version": (IF_MATCH | IF_NONE_MATCH, expected_version),
}
"""Parameters of a change that headers carry, each with its documentation and its reader."""


@dataclass(frozen=True, slots=True, eq=False)
class Route:
    """The documentation of a route, and what it answers in a form of its own."""

    schema: Mapping[str, Any] | None = None
    shape: Callable[..., object] | None = None  # in place of the operation's `answer`
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    prepare: Callable[[Caller, dict[str, Any]], None] = lambda caller, arguments: None  # refuses, or completes them
    status: HTTPStatus = HTTPStatus.OK
    gives: Mapping[str, str] = field(default_factory=dict[str, str])  # headers of its answer
    version: Callable[[Any], int] | None = None  # of its answer, which is its entity tag
    words: str | None = None  # in place of those of the operation
    body: type[StrictModel] | None = None  # the request whose fields its body has
    query: type[TenantQuery] | None = None  # in place of the derived one; its `filter` has arguments


Routes: TypeAlias = Mapping[str | Operation, Route | None]
"""What routes of a noun have beside their operations; a second address is a declaration, and None is no route."""
_PLAIN = Route()


def add_routes(router: APIRouter, noun: type[Noun], routes: Routes) -> None:
    """Add the routes of a noun.

    The application that has them keeps the workers of its reads, lists and writes in its state.
    """
    for declared, route in routes_of(noun, routes).items():
        router.routes.append(_made(noun, declared, route))  # type: ignore[arg-type] # a class has a hash


def routes_of(noun: type[Noun], routes: Routes) -> Mapping[Operation, Route]:
    """Return a route for each operation of a noun, and for each further address."""
    named = operations(noun)
    every: dict[Operation, Route | None] = dict.fromkeys(named.values(), _PLAIN)
    every |= {named[each] if isinstance(each, str) else each: route for each, route in routes.items()}
    return {declared: route for declared, route in every.items() if route is not None}


@cache  # a model and a route cost milliseconds to make, and several applications need each
def _made(noun: type[Noun], declared: Operation, route: Route) -> BaseRoute:
    router = APIRouter()
    _Endpoint(noun, declared, route).add_to(router)
    [made] = router.routes
    return made


class _Endpoint:
    """The route of one operation."""

    def __init__(self, noun: type[Noun], declared: Operation, route: Route) -> None:
        self._noun, self._declared, self._route = noun, declared, route
        self._shape = route.shape or declared.answer
        self._method, _, self._path = declared.route.partition(" ")
        self._is_one = self._path.endswith("}")  # it reads one thing by its key or its id
        self._begun = HTTPStatus.CREATED if declared.starts == self._path else HTTPStatus.ACCEPTED
        by_name = {name: each for each in declared.parameters for name in (each.name, each.spoken)}
        self._in_path = {name: by_name[name] for name in re.findall(r"{(\w+)", self._path)}
        others = [each for each in declared.parameters if each not in self._in_path.values()]
        changes = self._method != "GET"
        self._query, self._asked = query_with(TenantQuery, declared, [] if changes else others)
        if route.query is not None:
            self._query, self._asked = route.query, {"limit": "limit"}
        self._in_head = [name for name in _HEADERS if changes and any(each.name == name for each in others)]
        self._sent = [each for each in others if changes and each.name not in _HEADERS]
        named = [(each.spoken, each) for each in self._sent]
        self._body = model_of(f"{title(declared.name)}Body", named, StrictModel, declared.summary)
        in_path = dict.fromkeys(self._in_path, "leave it out; the URL already names it")
        self._body.elsewhere = {**ELSEWHERE, **in_path, **getattr(route.body or declared.function, "elsewhere", {})}

    def add_to(self, router: APIRouter) -> None:
        """Add it with its documentation."""
        declared, route = self._declared, self._route

        async def endpoint(request: Request, found: Caller) -> Response:
            state = request.app.state
            workers = state.writes if self._method != "GET" else state.reads if self._is_one else state.lists
            return await self._answer(request, found, workers)

        endpoint.__name__, endpoint.__doc__ = declared.name, route.words or declared.words
        endpoint.__annotations__["found"] = Annotated[Caller, Security(caller, scopes=[declared.scope])]
        sets = ENTITY_TAG if route.version else {} if self._method != "GET" or self._is_one else READ_FROM
        documented: dict[str, Any] = {"status": route.status, "sets": sets}
        if self._sent:
            body = body_of(route.body, without=IN_ADDRESS) if route.body else body_of(self._body)
            documented |= {"body": body, "sent": declared.sent}
        if declared.starts is not None:
            documented |= {"also" if self._begun is HTTPStatus.ACCEPTED else "status": self._begun, "sets": LOCATION}
        headers = {name: text for each in self._in_head for name, text in _HEADERS[each][0].items()}
        add_route(
            router, self._method, self._path, endpoint, scope=declared.scope, query=self._query,
            answer=route.schema or _schema_of(declared, self._shape), headers=headers | dict(route.headers),
            **documented,
        )  # fmt: skip

    async def _answer(self, request: Request, found: Caller, workers: Workers) -> Response:
        query, route = read_query(request, self._query), self._route
        arguments = {each.name: _path_value(request, name, each) for name, each in self._in_path.items()}
        arguments |= {name: getattr(query, spoken) for name, spoken in self._asked.items()}
        arguments |= getattr(query, "filter", {})
        if self._method != "GET":
            body = await read_body(request, self._body)
            sent = [each for each in self._sent if not each.filters or each.spoken in body.model_fields_set]
            arguments |= {each.name: getattr(body, each.spoken) for each in sent}
        arguments |= {name: _HEADERS[name][1](request) for name in self._in_head}
        route.prepare(found, arguments)
        if (needed := self._declared.authorize(arguments)) is not None:
            ensure_all_tenants(found, needed)
        cursors = Cursors.of(request, query, found.tenant) if isinstance(query, PageQuery) else None
        if cursors is not None and cursors.given is not None:
            arguments[place_of(self._declared).name] = after_of(cursors, self._declared)
        work = partial(self._run, arguments, cursors)
        if self._declared.starts is None:
            return await answer(workers, found, work, status=route.status, headers=route.gives, version=route.version)
        started = await call(workers, found, work)
        name = f"{singular(self._declared.starts.rpartition('/')[2])}_id"
        return accepted(found, started, self._declared.starts, name, self._begun)

    def _run(self, given: Mapping[str, Any], cursors: Cursors | None, connection: Connection) -> object:
        found = self._declared.call(self._noun, connection, given)
        if self._shape is not None:
            ids = [given[each.name] for each in self._in_path.values()]
            return self._shape(*ids, not found if self._declared.result is bool else found)
        document: Any = as_document(found, self._declared)
        if cursors is None:
            return document
        page = cast("dict[str, object]", document) if isinstance(document, dict) else field_values(document)
        return {**page, "next_cursor": next_cursor(cursors, page["next_cursor"])}


def _path_value(request: Request, name: str, each: Parameter) -> object:
    if name == "key":
        return read_key(request)
    value = request.path_params[name]
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
