"""Tenants: `/api/v1/tenants`. By the code of the command line."""

from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from http import HTTPStatus
from typing import Annotated

from fastapi import APIRouter
from pydantic import BeforeValidator
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from tidewheel.api_keys import Scope
from tidewheel.control.api import examples
from tidewheel.control.api.answers import answer, location
from tidewheel.control.api.bodies import read_body
from tidewheel.control.api.callers import Admin, Caller, Operator, Reader, ensure_all_tenants
from tidewheel.control.api.json_schemas import body_of
from tidewheel.control.api.openapi import add_route
from tidewheel.control.api.queries import Cursors, PageQuery, TenantQuery, read_query
from tidewheel.control.api.workers import Workers
from tidewheel.control.client.connection import Connection
from tidewheel.control.client.tenants import GRACE, MAX_GRACE, Tenants
from tidewheel.control.reads.tenants import KeptState, TenantPeriod, TenantSummary, TenantUsage, list_tenants
from tidewheel.errors import UnknownTenant, refuse
from tidewheel.jobs.validation import StrictModel
from tidewheel.jobs.values import Reason, Tenant, is_tenant, span

_TENANTS = "/api/v1/tenants"
_ONE = f"{_TENANTS}/{{tenant}}"


class LimitsBody(StrictModel):
    """Limits of a tenant: a field that is left out stays as it is, and null lifts the limit.

    Attributes:
        weight: The runs that leave in each of its turns while a queue is held back, 1 to 100; null is 1.
        triggers_per_second: The runs a second that may become due; more are delayed.
        in_flight: The runs that may be active at once; more wait.
        jobs: The number of its jobs; more are refused.
        payload_bytes: The size of a payload; a larger one is refused.
        keys: The API keys in force that the tenant's own keys may create, 20 if null.
        key_rate: The requests a second of all its API keys, in each process; a key of the tenant makes none with more,
            100 if null.
    """

    weight: int | None = None
    triggers_per_second: float | None = None
    in_flight: int | None = None
    jobs: int | None = None
    payload_bytes: int | None = None
    keys: int | None = None
    key_rate: float | None = None


class NewTenant(LimitsBody):
    """A tenant to create.

    Attributes:
        tenant: Its name.
    """

    tenant: Tenant


class PauseBody(StrictModel):
    """Body of a pause.

    Attributes:
        reason: Shown until the tenant is resumed.
    """

    reason: Reason | None = None


class DeletionBody(StrictModel):
    """Body of a deletion.

    Attributes:
        tenant: The name of the tenant once more, as a confirmation.
        grace: The time in which the deletion can be taken back; 0 for none.
    """

    tenant: Tenant
    grace: Annotated[timedelta, BeforeValidator(span(timedelta(0), MAX_GRACE))] = GRACE


class PeriodBody(StrictModel):
    """The period of finished runs of a tenant.

    Attributes:
        days: The days for which they are kept, 1 to 3650; null lifts the period.
        state: The state of the runs, or any.
    """

    days: int | None
    state: KeptState = "any"


@dataclass(frozen=True, slots=True)
class TenantPeriods:
    """The periods of a tenant; `unchanged` if a change found them so already."""

    tenant: str
    periods: tuple[TenantPeriod, ...]
    unchanged: bool


@dataclass(frozen=True, slots=True)
class TenantsPage:
    """Tenants in the order of their names."""

    tenants: tuple[TenantSummary, ...]
    next_cursor: str | None


@dataclass(frozen=True, slots=True)
class ChangedTenant:
    """Result of a change: `unchanged` if the tenant was so already."""

    tenant: TenantSummary
    unchanged: bool


@dataclass(frozen=True, slots=True)
class TenantsApi:
    """Calls about tenants."""

    reads: Workers
    writes: Workers

    def add_to(self, router: APIRouter) -> None:
        """Add the routes."""
        route = partial(add_route, router)
        route("GET", _TENANTS, self.list_tenants, scope=Scope.ADMIN, query=PageQuery, answer=TenantsPage,
              example=examples.TENANTS)  # fmt: skip
        route("POST", _TENANTS, self.create_tenant, scope=Scope.ADMIN, query=TenantQuery, status=HTTPStatus.CREATED,
              answer=ChangedTenant, example=examples.CHANGED_TENANT, body=body_of(NewTenant),
              sent={"tenant": "acme", "in_flight": 500})  # fmt: skip
        route("GET", _ONE, self.get_tenant, scope=Scope.READ, query=TenantQuery, answer=TenantSummary,
              example=examples.TENANT)  # fmt: skip
        route("PATCH", _ONE, self.limit_tenant, scope=Scope.ADMIN, query=TenantQuery, answer=ChangedTenant,
              example=examples.CHANGED_TENANT, body=body_of(LimitsBody), sent={"jobs": 1000})  # fmt: skip
        route("GET", f"{_ONE}/usage", self.get_tenant_usage, scope=Scope.READ, query=TenantQuery, answer=TenantUsage,
              example=examples.TENANT_USAGE)  # fmt: skip
        periods = partial(route, query=TenantQuery, answer=TenantPeriods, example=examples.TENANT_PERIODS)
        periods("GET", f"{_ONE}/retention", self.get_tenant_retention, scope=Scope.READ)
        periods("PUT", f"{_ONE}/retention", self.put_tenant_retention, scope=Scope.ADMIN, body=body_of(PeriodBody),
                sent={"days": 7, "state": "succeeded"})  # fmt: skip
        route("DELETE", _ONE, self.delete_tenant, scope=Scope.ADMIN, query=TenantQuery, status=HTTPStatus.ACCEPTED,
              answer=ChangedTenant, example=examples.DELETED_TENANT, body=body_of(DeletionBody),
              sent={"tenant": "acme"})  # fmt: skip
        route("POST", f"{_ONE}:undelete", self.undelete_tenant, scope=Scope.ADMIN, query=TenantQuery,
              answer=ChangedTenant, example=examples.CHANGED_TENANT)  # fmt: skip
        change = partial(
            route, "POST", scope=Scope.OPERATE, query=TenantQuery, answer=ChangedTenant, example=examples.CHANGED_TENANT
        )
        change(f"{_ONE}:pause", self.pause_tenant, body=body_of(PauseBody), sent={"reason": "audit"})
        change(f"{_ONE}:resume", self.resume_tenant)

    async def list_tenants(self, request: Request, caller: Admin) -> Response:
        """List tenants, for a caller with the rights of all of them."""
        ensure_all_tenants(caller)
        query = read_query(request, PageQuery)
        cursors = Cursors.of(request, query, caller.tenant)
        [after] = cursors.read(Tenant) or [""]

        def read(connection: Connection) -> TenantsPage:
            with connection.snapshot(all_tenants=True) as reading:
                found = list_tenants(reading, after=after, limit=query.limit + 1)
            page = found[: query.limit]
            return TenantsPage(tuple(page), cursors.write(page[-1].tenant) if len(found) > len(page) else None)

        return await answer(self.reads, caller, read)

    async def create_tenant(self, request: Request, caller: Admin) -> Response:
        """Create a tenant, for a caller with the rights of all of them."""
        ensure_all_tenants(caller)
        read_query(request, TenantQuery)
        body = await read_body(request, NewTenant)
        limits = body.model_dump(exclude={"tenant"}, exclude_unset=True)

        def change(connection: Connection) -> ChangedTenant:
            tenants = Tenants(connection)
            made = tenants.create(body.tenant, **limits)
            return ChangedTenant(tenants.get(body.tenant), not made)

        return await answer(self.writes, caller, change, status=HTTPStatus.CREATED)

    async def get_tenant(self, request: Request, caller: Reader) -> Response:
        """Return a tenant with its limits."""
        read_query(request, TenantQuery)
        name = _named(request, caller)
        return await answer(self.reads, caller, lambda each: Tenants(each).get(name))

    async def limit_tenant(self, request: Request, caller: Admin) -> Response:
        """Change limits of a tenant, for a caller with the rights of all of them."""
        ensure_all_tenants(caller)
        read_query(request, TenantQuery)
        limits = (await read_body(request, LimitsBody)).model_dump(exclude_unset=True)
        name = _named(request, caller)

        def change(connection: Connection) -> ChangedTenant:
            tenants = Tenants(connection)
            changed = tenants.limit(name, **limits)
            return ChangedTenant(tenants.get(name), not changed)

        return await answer(self.writes, caller, change)

    async def delete_tenant(self, request: Request, caller: Admin) -> Response:
        """Delete a tenant with all that it has, a day later, for a caller with the rights of all of them."""
        ensure_all_tenants(caller)
        read_query(request, TenantQuery)
        name = _named(request, caller)
        body = await read_body(request, DeletionBody)
        if body.tenant != name:
            refuse("tenant", f"{body.tenant!r} is not the tenant of the address", f"write {name!r} to delete it")

        def change(connection: Connection) -> ChangedTenant:
            tenants = Tenants(connection)
            accepted = tenants.delete(name, grace=body.grace)
            return ChangedTenant(tenants.get(name), not accepted)

        where = location(caller, f"{_TENANTS}/{name}")
        return await answer(self.writes, caller, change, status=HTTPStatus.ACCEPTED, headers=where)

    async def undelete_tenant(self, request: Request, caller: Admin) -> Response:
        """Take the deletion of a tenant back in its time of grace."""
        ensure_all_tenants(caller)
        read_query(request, TenantQuery)
        await read_body(request, StrictModel)
        name = _named(request, caller)

        def change(connection: Connection) -> ChangedTenant:
            tenants = Tenants(connection)
            kept = tenants.undelete(name)
            return ChangedTenant(tenants.get(name), not kept)

        return await answer(self.writes, caller, change)

    async def get_tenant_usage(self, request: Request, caller: Reader) -> Response:
        """Return what a tenant uses now."""
        read_query(request, TenantQuery)
        name = _named(request, caller)
        return await answer(self.reads, caller, lambda each: Tenants(each).usage(name))

    async def get_tenant_retention(self, request: Request, caller: Reader) -> Response:
        """Return the periods of a tenant that are shorter than those of the installation."""
        read_query(request, TenantQuery)
        name = _named(request, caller)

        def read(connection: Connection) -> TenantPeriods:
            return TenantPeriods(name, tuple(Tenants(connection).retention(name)), unchanged=True)

        return await answer(self.reads, caller, read)

    async def put_tenant_retention(self, request: Request, caller: Admin) -> Response:
        """Set or lift the period of finished runs of a tenant, for a caller with the rights of all of them."""
        ensure_all_tenants(caller)
        read_query(request, TenantQuery)
        body = await read_body(request, PeriodBody)
        name = _named(request, caller)

        def change(connection: Connection) -> TenantPeriods:
            tenants = Tenants(connection)
            changed = tenants.keep(name, body.days, state=body.state)
            return TenantPeriods(name, tuple(tenants.retention(name)), not changed)

        return await answer(self.writes, caller, change)

    async def pause_tenant(self, request: Request, caller: Operator) -> Response:
        """Start no run of a tenant until it is resumed; what runs goes on."""
        read_query(request, TenantQuery)
        reason = (await read_body(request, PauseBody)).reason
        name = _named(request, caller)

        def change(connection: Connection) -> ChangedTenant:
            tenants = Tenants(connection)
            changed = tenants.pause(name, reason=reason)
            return ChangedTenant(tenants.get(name), not changed)

        return await answer(self.writes, caller, change)

    async def resume_tenant(self, request: Request, caller: Operator) -> Response:
        """End the pause of a tenant; `on_resume` of its jobs decides what came due meanwhile."""
        read_query(request, TenantQuery)
        await read_body(request, StrictModel)
        name = _named(request, caller)

        def change(connection: Connection) -> ChangedTenant:
            tenants = Tenants(connection)
            changed = tenants.resume(name)
            return ChangedTenant(tenants.get(name), not changed)

        return await answer(self.writes, caller, change)


def _named(request: Request, caller: Caller) -> str:
    """Return the tenant in the address.

    Raises:
        HTTPException: The key belongs to another tenant; the answer is the same whether this one exists or not.
    """
    name = str(request.path_params["tenant"])
    if not is_tenant(name):
        raise UnknownTenant(name[:64])
    if not caller.all_tenants and name != caller.tenant:
        raise HTTPException(HTTPStatus.NOT_FOUND, f"there is no tenant {name!r}")
    return name
