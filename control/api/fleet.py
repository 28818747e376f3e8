"""The fleet: the lists of `/api/v1/executors` and `shards`."""

from dataclasses import dataclass
from functools import partial
from uuid import UUID

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from tidewheel.api_keys import Scope
from tidewheel.control.api import examples
from tidewheel.control.api.answers import answer
from tidewheel.control.api.callers import Reader, ensure_all_tenants
from tidewheel.control.api.openapi import add_route
from tidewheel.control.api.queries import Cursors, PageQuery, TenantQuery, read_query
from tidewheel.control.api.workers import Workers
from tidewheel.control.client.connection import Connection
from tidewheel.control.reads.fleet import (
    ExecutorSummary,
    ShardOwner,
    list_executors,
    list_shards,
)


@dataclass(frozen=True, slots=True)
class ExecutorsPage:
    """Executors in the order of their ids."""

    executors: tuple[ExecutorSummary, ...]
    next_cursor: str | None


@dataclass(frozen=True, slots=True)
class Shards:
    """Every shard with its owner."""

    shards: tuple[ShardOwner, ...]


@dataclass(frozen=True, slots=True)
class FleetApi:
    """Calls about the whole installation."""

    reads: Workers

    def add_to(self, router: APIRouter) -> None:
        """Add the routes."""
        read = partial(add_route, router, "GET")
        read("/api/v1/executors", self.list_executors, scope=Scope.READ, query=PageQuery, answer=ExecutorsPage,
             example=examples.EXECUTORS)  # fmt: skip
        read("/api/v1/shards", self.list_shards, scope=Scope.READ, query=TenantQuery, answer=Shards,
             example=examples.SHARDS)  # fmt: skip

    async def list_executors(self, request: Request, caller: Reader) -> Response:
        """List executors with their handlers, for a caller with the rights of all tenants."""
        ensure_all_tenants(caller, Scope.READ)
        query = read_query(request, PageQuery)
        cursors = Cursors.of(request, query, caller.tenant)
        [after] = cursors.read(UUID) or [None]

        def read(connection: Connection) -> ExecutorsPage:
            with connection.snapshot(all_tenants=True) as reading:
                found = list_executors(reading, after=after, limit=query.limit + 1)
            page = found[: query.limit]
            return ExecutorsPage(tuple(page), cursors.write(page[-1].executor_id) if len(found) > len(page) else None)

        return await answer(self.reads, caller, read)

    async def list_shards(self, request: Request, caller: Reader) -> Response:
        """Return each shard with the scheduler that owns it, for a caller with the rights of all tenants."""
        ensure_all_tenants(caller, Scope.READ)
        read_query(request, TenantQuery)

        def read(connection: Connection) -> Shards:
            with connection.snapshot(all_tenants=True) as reading:
                return Shards(tuple(list_shards(reading, connection.installation.shards)))

        return await answer(self.reads, caller, read)
