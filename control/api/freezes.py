"""Freezes: `/api/v1/freezes`. The list by control/reads, changes by the requests of intake."""

from dataclasses import dataclass
from functools import partial
from typing import Literal

from fastapi import APIRouter
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from tidewheel.api_keys import Scope
from tidewheel.control.api import examples
from tidewheel.control.api.answers import IDEMPOTENCY_KEY, answer, idempotency_key
from tidewheel.control.api.bodies import read_verb
from tidewheel.control.api.callers import Caller, Operator, Reader, ensure_all_tenants
from tidewheel.control.api.json_schemas import IN_ADDRESS, body_of
from tidewheel.control.api.openapi import add_route
from tidewheel.control.api.queries import LabelFilter, TenantQuery, Text, read_query
from tidewheel.control.api.workers import Workers
from tidewheel.control.client.connection import Connection
from tidewheel.control.explain.resuming import Resumption, preview_thaw
from tidewheel.control.reads.freezes import FreezeSummary, list_freezes
from tidewheel.jobs.requests import Freeze, Thaw
from tidewheel.jobs.values import Queue

_FREEZES = "/api/v1/freezes"


class ScopeQuery(TenantQuery):
    """Query of a scope; at least one field is required.

    Attributes:
        scope: `fleet`, the runs of all tenants, or `tenant`.
        queue: Of this queue.
        label: Of jobs that have this label, as name=value; repeatable.
        key_prefix: Of jobs whose keys begin so.
    """

    scope: Literal["fleet", "tenant"] | None = None
    queue: Queue | None = None
    label: LabelFilter = Field(default_factory=dict[str, str])
    key_prefix: Text | None = None

    def preview_thaw(self, connection: Connection, caller: Caller) -> Resumption:
        """Return what a thaw of this scope does, to jobs that the caller may see."""
        only = None if caller.all_tenants else caller.tenant
        with connection.snapshot(all_tenants=caller.all_tenants) as reading:
            return preview_thaw(
                reading, None if self.scope == "fleet" else caller.tenant, queue=self.queue, labels=self.label,
                key_prefix=self.key_prefix, only=only,
            )  # fmt: skip


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
    """Calls about freezes."""

    reads: Workers
    writes: Workers

    def add_to(self, router: APIRouter) -> None:
        """Add the routes."""
        route = partial(add_route, router)
        route("GET", _FREEZES, self.list_freezes, scope=Scope.READ, query=TenantQuery, answer=FreezeList,
              example=examples.FREEZES)  # fmt: skip
        route("GET", f"{_FREEZES}/thaw-preview", self.preview_thaw, scope=Scope.READ, query=ScopeQuery,
              answer=Resumption, example=examples.RESUMPTION)  # fmt: skip
        change = partial(
            route, "POST", scope=Scope.OPERATE, query=TenantQuery, answer=ChangedFreeze, example={"unchanged": False},
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

    async def preview_thaw(self, request: Request, caller: Reader) -> Response:
        """Return what a thaw of exactly this scope does with the occurrences that came due meanwhile."""
        query = read_query(request, ScopeQuery)
        return await answer(self.reads, caller, lambda connection: query.preview_thaw(connection, caller))

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
