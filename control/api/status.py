"""The state of the fleet: `/api/v1/status`, read by control/reads."""

from dataclasses import dataclass

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from tidewheel.api_keys import Scope
from tidewheel.control.api import examples
from tidewheel.control.api.answers import answer
from tidewheel.control.api.callers import Admin, ensure_all_tenants
from tidewheel.control.api.openapi import add_route
from tidewheel.control.api.queries import TenantQuery, read_query
from tidewheel.control.api.workers import Workers
from tidewheel.control.client.connection import Connection
from tidewheel.control.reads.status import FleetStatus, read_status


@dataclass(frozen=True, slots=True)
class StatusApi:
    """The call about the fleet."""

    reads: Workers
    shards: int

    def add_to(self, router: APIRouter) -> None:
        """Add the route."""
        add_route(
            router, "GET", "/api/v1/status", self.get_status, scope=Scope.ADMIN, query=TenantQuery, answer=FleetStatus,
            example=examples.STATUS,
        )  # fmt: skip

    async def get_status(self, request: Request, caller: Admin) -> Response:
        """Return services with their heartbeats, what is due and not done, and what is wrong."""
        read_query(request, TenantQuery)
        ensure_all_tenants(caller)

        def read(connection: Connection) -> FleetStatus:
            with connection.snapshot(all_tenants=True) as reading:
                return read_status(reading, self.shards)

        return await answer(self.reads, caller, read)
