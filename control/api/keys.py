"""Keys: `/api/v1/keys`. By the code of the command line."""

from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from http import HTTPStatus
from typing import Annotated, Literal

from fastapi import APIRouter
from pydantic import BeforeValidator, Field
from starlette.requests import Request
from starlette.responses import Response

from tidewheel.api_keys import Scope
from tidewheel.control.api import examples
from tidewheel.control.api.answers import answer
from tidewheel.control.api.bodies import read_body
from tidewheel.control.api.callers import Admin, Caller, ensure_all_tenants, ensure_shows_key
from tidewheel.control.api.json_schemas import body_of
from tidewheel.control.api.openapi import add_route
from tidewheel.control.api.queries import Cursors, Flag, PageQuery, TenantQuery, Text, read_query
from tidewheel.control.api.workers import Workers
from tidewheel.control.client.api_keys import DEFAULT_LIFETIME, MAX_LIFETIME, MAX_RATE, ApiKeys, NewApiKey
from tidewheel.control.client.connection import Connection
from tidewheel.control.reads.api_keys import ApiKeySummary, list_api_keys
from tidewheel.errors import UnknownApiKey
from tidewheel.jobs.validation import StrictModel
from tidewheel.jobs.values import MAX_ELEMENTS, Instant, Key, Queue, span

_KEYS = "/api/v1/keys"


class KeysQuery(PageQuery):
    """Filter of a list of keys.

    Attributes:
        all_tenants: True for the keys of every tenant.
    """

    all_tenants: Flag = False


class KeyBody(StrictModel):
    """Body of a new key.

    Attributes:
        name: Shown in lists and in the audit log.
        scopes: Its rights; admin has all of them but execute, which is for executors in other languages.
        lifetime: The time after which it expires, by default a year; null for a key that never does.
        rate: Its requests a second; by default the setting of the API.
        all_tenants: True for a key of all tenants.
        queues: With the scope execute the queues of its executors; by default all.
    """

    name: Key
    scopes: Annotated[list[Literal["read", "write", "operate", "admin", "execute"]], Field(min_length=1, max_length=5)]
    lifetime: Annotated[timedelta, BeforeValidator(span(timedelta(seconds=1), MAX_LIFETIME))] | None = DEFAULT_LIFETIME
    rate: Annotated[float, Field(gt=0, le=MAX_RATE)] | None = None
    all_tenants: bool = False
    queues: Annotated[tuple[Queue, ...], Field(max_length=MAX_ELEMENTS)] = ()


@dataclass(frozen=True, slots=True)
class KeysPage:
    """Keys, the newest first."""

    keys: tuple[ApiKeySummary, ...]
    next_cursor: str | None


@dataclass(frozen=True, slots=True)
class RevokedKey:
    """Result of a revocation: `unchanged` if the key was revoked before."""

    unchanged: bool


@dataclass(frozen=True, slots=True)
class KeysApi:
    """Calls about keys."""

    reads: Workers
    writes: Workers

    def add_to(self, router: APIRouter) -> None:
        """Add the routes."""
        route = partial(add_route, router, scope=Scope.ADMIN)
        route("GET", _KEYS, self.list_keys, query=KeysQuery, answer=KeysPage, example=examples.KEYS)
        route("POST", _KEYS, self.create_key, query=TenantQuery, status=HTTPStatus.CREATED, answer=NewApiKey,
              example=examples.NEW_KEY, body=body_of(KeyBody),
              sent={"name": "ci", "scopes": ["write"], "lifetime": "90d"})  # fmt: skip
        route("POST", f"{_KEYS}/{{key_id}}:revoke", self.revoke_key, query=TenantQuery, answer=RevokedKey,
              example={"unchanged": False})  # fmt: skip

    async def list_keys(self, request: Request, caller: Admin) -> Response:
        """List keys, the newest first, each with its last use."""
        query = read_query(request, KeysQuery)
        tenant = _tenant(caller, all_tenants=query.all_tenants)
        cursors = Cursors.of(request, query, caller.tenant)
        place = cursors.read(Instant, Text)
        after = None if place is None else (place[0], place[1])

        def read(connection: Connection) -> KeysPage:
            with connection.snapshot(all_tenants=tenant is None) as reading:
                page = list_api_keys(reading, tenant, after=after, limit=query.limit)
            return KeysPage(tuple(page.keys), cursors.write(*page.next or [None]))

        return await answer(self.reads, caller, read)

    async def create_key(self, request: Request, caller: Admin) -> Response:
        """Create a key; the answer alone has its secret."""
        ensure_shows_key(caller)
        read_query(request, TenantQuery)
        body = await read_body(request, KeyBody)
        if body.all_tenants:
            ensure_all_tenants(caller)

        def change(connection: Connection) -> NewApiKey:
            return ApiKeys(connection).create(
                body.name,
                body.scopes,
                all_tenants=body.all_tenants,
                lifetime=body.lifetime,
                rate=body.rate,
                queues=body.queues,
            )

        return await answer(
            self.writes, caller, change, status=HTTPStatus.CREATED, headers={"Cache-Control": "no-store"}
        )

    async def revoke_key(self, request: Request, caller: Admin) -> Response:
        """Revoke a key; it opens nothing from the next second on."""
        read_query(request, TenantQuery)
        await read_body(request, StrictModel)
        key_id = str(request.path_params["key_id"])
        if not (key_id.isascii() and key_id.isalnum()):
            raise UnknownApiKey(key_id[:40])

        def change(connection: Connection) -> RevokedKey:
            return RevokedKey(unchanged=not ApiKeys(connection).revoke(key_id, all_tenants=caller.all_tenants))

        return await answer(self.writes, caller, change)


def _tenant(caller: Caller, *, all_tenants: bool) -> str | None:
    if all_tenants:
        ensure_all_tenants(caller)
    return None if all_tenants else caller.tenant
