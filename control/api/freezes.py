"""Freezes: `/api/v1/freezes`. The list by control/reads, changes by the requests of intake."""

from dataclasses import dataclass
from functools import partial

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from tidewheel.api_keys import Scope
from tidewheel.control.api import examples
from tidewheel.control.api.answers import IDEMPOTENCY_KEY, answer, idempotency_key
from tidewheel.control.api.bodies import read_verb
from tidewheel.control.api.callers import Caller, Operator, Reader, ensure_all_tenants
from tidewheel.control.api.json_schemas import IN_ADDRESS, body_of
from tidewheel.control.api.openapi import add_route
from tidewheel.control.api.queries import TenantQuery, read_query
from tidewheel.control.api.workers import Workers
from tidewheel.control.client.connection import Connection
from tidewheel.control.reads.freezes import FreezeSummary, list_freezes
from tidewheel.jobs.requests import Freeze, Thaw

_FREEZES = "/api/v1/freezes"


@dataclass(frozen=True, slots=True)
class FreezeList:
    """The standing freezes of a tenant and of the fleet, the oldest first."""

    freezes: tuple[FreezeSummary, ...]


@dataclass(frozen=True, slots=True)
class ChangedFreeze:
    """Result of a freeze or a thaw: `unchanged` if the scope was frozen, or thawed, already."""

    unchanged: bool


@dataclass(frozen=True, slots=True)
class FreezesApi:
    """Calls about freezes.

    Args:
        reads: The threads of reads.
        writes: The threads of changes.
    """

    reads: Workers
    writes: Workers

    def add_to(self, router: APIRouter) -> None:
        """Add the routes."""
        route = partial(add_route, router, query=TenantQuery)
        route("GET", _FREEZES, self.list_freezes, scope=Scope.READ, answer=FreezeList, example=examples.FREEZES)
        change = partial(
            route, "POST", scope=Scope.OPERATE, answer=ChangedFreeze, example={"unchanged": False},
            headers=IDEMPOTENCY_KEY,
        )  # fmt: skip
        change(_FREEZES, self.freeze, body=body_of(Freeze, without=IN_ADDRESS, title="NewFreeze"), sent=examples.FREEZE)
        change(f"{_FREEZES}:thaw", self.thaw, body=body_of(Thaw, without=IN_ADDRESS), sent={"queue": "reports"})

    async def list_freezes(self, request: Request, caller: Reader) -> Response:
        """List the standing freezes, with what waits under each."""
        read_query(request, TenantQuery)

        def read(connection: Connection) -> FreezeList:
            with connection.snapshot(all_tenants=caller.all_tenants) as reading:
                return FreezeList(tuple(list_freezes(reading, caller.tenant, counts_all=caller.all_tenants)))

        return await answer(self.reads, caller, read)

    async def freeze(self, request: Request, caller: Operator) -> Response:
        """Start no run of a scope until its thaw; what runs goes on."""
        return await self._change(request, caller, "freeze")

    async def thaw(self, request: Request, caller: Operator) -> Response:
        """End the freeze of exactly this scope; `on_resume` decides what came due meanwhile."""
        return await self._change(request, caller, "thaw")

    async def _change(self, request: Request, caller: Caller, kind: str) -> Response:
        sent, request_id = await read_verb(request, kind), idempotency_key(request)
        if sent.get("scope") == "fleet":
            ensure_all_tenants(caller)
        return await answer(self.writes, caller, lambda each: ChangedFreeze(each.request(sent, request_id).unchanged))
