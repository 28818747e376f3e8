"""The state of the installation: `/api/v1/executors`, `shards`, `status` and `doctor`.

The checks of doctor run on request; each process keeps its last diagnosis.
"""

from dataclasses import dataclass
from datetime import datetime
from functools import partial
from uuid import UUID

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from tidewheel.api_keys import Scope
from tidewheel.control.api import examples
from tidewheel.control.api.answers import answer, call, encoded
from tidewheel.control.api.bodies import read_body
from tidewheel.control.api.callers import Admin, Reader, ensure_all_tenants
from tidewheel.control.api.openapi import add_route
from tidewheel.control.api.queries import Cursors, PageQuery, TenantQuery, read_query
from tidewheel.control.api.workers import Workers
from tidewheel.control.client.connection import Connection
from tidewheel.control.doctor.doctor import Diagnosis, Doctor
from tidewheel.control.reads.fleet import (
    ExecutorSummary,
    ShardOwner,
    list_executors,
    list_shards,
)
from tidewheel.control.reads.status import FleetStatus, read_status
from tidewheel.jobs.validation import StrictModel
from tidewheel.postgres.database_clock import read_now

_DOCTOR = "/api/v1/doctor"
_WAIT_SECONDS = 60.0  # for the end of the checks; then the answer has the diagnosis before


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
    """Calls about the whole installation, for callers with the rights of all tenants."""

    reads: Workers
    doctor: Doctor
    shards: int

    def add_to(self, router: APIRouter) -> None:
        """Add the routes."""
        read = partial(add_route, router, "GET")
        read("/api/v1/executors", self.list_executors, scope=Scope.READ, query=PageQuery, answer=ExecutorsPage,
             example=examples.EXECUTORS)  # fmt: skip
        read("/api/v1/shards", self.list_shards, scope=Scope.READ, query=TenantQuery, answer=Shards,
             example=examples.SHARDS)  # fmt: skip
        read("/api/v1/status", self.get_status, scope=Scope.ADMIN, query=TenantQuery, answer=FleetStatus,
             example=examples.STATUS)  # fmt: skip
        route = partial(
            add_route, router, scope=Scope.ADMIN, query=TenantQuery, answer=Diagnosis, example=examples.DIAGNOSIS
        )
        route("GET", _DOCTOR, self.get_diagnosis)
        route("POST", f"{_DOCTOR}:run", self.run_doctor)

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
                return Shards(tuple(list_shards(reading, self.shards)))

        return await answer(self.reads, caller, read)

    async def get_diagnosis(self, request: Request, caller: Admin) -> Response:
        """Return the last diagnosis of this process, for a caller with the rights of all tenants."""
        ensure_all_tenants(caller)
        read_query(request, TenantQuery)
        return await answer(self.reads, caller, lambda _: self.doctor.last())

    async def run_doctor(self, request: Request, caller: Admin) -> Response:
        """Run the checks of doctor and wait for them; a diagnosis of the last ten seconds is not repeated."""
        ensure_all_tenants(caller)
        read_query(request, TenantQuery)
        await read_body(request, StrictModel)

        def read(connection: Connection) -> datetime:
            with connection.snapshot() as reading:
                return read_now(reading)

        found = await self.doctor.run(await call(self.reads, caller, read), _WAIT_SECONDS)
        return Response(encoded(found), media_type="application/json")

    async def get_status(self, request: Request, caller: Admin) -> Response:
        """Return services with their heartbeats, what is due and not done, and what is wrong."""
        read_query(request, TenantQuery)
        ensure_all_tenants(caller)

        def read(connection: Connection) -> FleetStatus:
            with connection.snapshot(all_tenants=True) as reading:
                return read_status(reading, self.shards)

        return await answer(self.reads, caller, read)
