"""Examples for the OpenAPI document, and the deletion, whose body repeats the name."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from tidewheel.api_keys import Scope
from tidewheel.control.api.answers import answer, location
from tidewheel.control.api.authorization import Admin, Caller, ensure_all_tenants
from tidewheel.control.api.openapi import add_route, body_of
from tidewheel.control.api.request_input import TenantQuery, read_body, read_query
from tidewheel.control.api.workers import Workers
from tidewheel.doors.rest import Route
from tidewheel.errors import refuse
from tidewheel.jobs.strict_json import Json
from tidewheel.jobs.validation import StrictModel
from tidewheel.jobs.values import Tenant
from tidewheel.nouns.tenants.operations import GRACE, ROOT, Grace, Tenants
from tidewheel.nouns.tenants.reads import ChangedTenant, ensure_seen

_TENANT: dict[str, Json] = {
    "tenant": "acme", "created_at": "2026-10-01T09:00:00Z", "weight": 1, "triggers_per_second": 100.0,
    "in_flight": 500, "jobs": 1000, "payload_bytes": 65536, "keys": None, "key_rate": None,
    "paused_at": None, "delete_at": None, "roles": ["acme_app"], "deletion": None,
}  # fmt: skip
_DELETED: Json = {"unchanged": False, "tenant": {**_TENANT, "delete_at": "2026-11-20T09:00:00Z"}}
_CHANGED: Json = {"unchanged": False, "tenant": _TENANT}
_PERIODS: Json = {
    "unchanged": False, "tenant": "acme", "periods": [{"state": "succeeded", "days": 7, "kept_since": "2026-11-12"}],
}  # fmt: skip
_FEW: Json = {"count": 7, "at_least": False}
_USAGE: Json = {
    "tenant": _TENANT, "open_runs": _FEW, "in_flight": _FEW, "waiting": {"count": 0, "at_least": False},
    "finished_runs": {"count": 10_000, "at_least": True}, "jobs": _FEW,
}  # fmt: skip


def _one(example: Json, sent: Json = None) -> Route:
    return Route(example, sent=sent, prepare=_ensure_seen)


def _ensure_seen(caller: Caller, arguments: dict[str, Any]) -> None:
    ensure_seen(arguments["name"], None if caller.all_tenants else caller.tenant)


TENANTS: Mapping[str, Route] = {
    "create": Route(_CHANGED, sent={"tenant": "acme", "in_flight": 500}, status=HTTPStatus.CREATED),
    "list": Route({"tenants": [_TENANT], "next_cursor": None}),
    "get": _one(_TENANT),
    "limit": _one(_CHANGED, {"jobs": 1000}),
    "pause": _one(_CHANGED, {"reason": "audit"}),
    "resume": _one(_CHANGED),
    "undelete": _one(_CHANGED),
    "usage": _one(_USAGE),
    "retention": _one(_PERIODS),
    "keep": _one(_PERIODS, {"days": 7, "state": "succeeded"}),
}


class DeletionBody(StrictModel):
    """Body of a deletion."""

    tenant: Annotated[Tenant, Field(description="The name of the tenant once more, as a confirmation.")]
    grace: Annotated[Grace, Field(description="The time in which the deletion can be taken back; 0 for none.")] = GRACE


def add_deletion(router: APIRouter, writes: Workers) -> None:
    """Add the route of a deletion."""

    async def delete_tenant(request: Request, caller: Admin) -> Response:
        """Delete a tenant with all that it has, a day later, for a caller with the rights of all of them."""
        ensure_all_tenants(caller)
        read_query(request, TenantQuery)
        name = ensure_seen(request.path_params["tenant"], None)
        body = await read_body(request, DeletionBody)
        if body.tenant != name:
            refuse("tenant", f"{body.tenant!r} is not the tenant of the address", f"write {name!r} to delete it")
        where = location(caller, f"{ROOT}/{name}")
        return await answer(
            writes, caller, lambda connection: Tenants(connection).delete(name, grace=body.grace),
            status=HTTPStatus.ACCEPTED, headers=where,
        )  # fmt: skip

    add_route(
        router, "DELETE", f"{ROOT}/{{tenant}}", delete_tenant, scope=Scope.ADMIN, query=TenantQuery,
        status=HTTPStatus.ACCEPTED, answer=ChangedTenant, example=_DELETED, body=body_of(DeletionBody),
        sent={"tenant": "acme"},
    )  # fmt: skip
