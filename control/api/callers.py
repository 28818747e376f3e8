"""The caller of a route: its tenant, its scopes, and its name for the audit log.

`caller` is the one dependency that decides. The guard has refused forged tokens and keys before the body is read.
"""

from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated
from urllib.parse import urlsplit

from fastapi import Security
from fastapi.security import SecurityScopes
from starlette.exceptions import HTTPException
from starlette.requests import Request

from tidewheel.api_keys import Scope
from tidewheel.audit import ACTOR_HEADER, ALL_TENANTS, Actor, ActorKind, Door, person
from tidewheel.control.api.bearer import KEY, SAFE, TRUSTED
from tidewheel.control.api.key_check import StoredKey
from tidewheel.control.api.queries import TenantQuery, read_query
from tidewheel.jobs.values import is_traceparent


@dataclass(frozen=True, slots=True)
class Caller:
    """The sender of a request; with `all_tenants` it may name any tenant, and the whole installation."""

    tenant: str
    scopes: frozenset[Scope]
    actor: Actor
    all_tenants: bool
    traceparent: str | None


async def caller(request: Request, needed: SecurityScopes) -> Caller:
    """Return the caller, who has the scopes that the route needs.

    Raises:
        HTTPException: The caller has shown no key, lacks a scope, names a tenant of others, or is a page of another
            site in a browser.
    """
    key: StoredKey | None = request.scope.get(KEY)
    if key is None and not request.scope.get(TRUSTED):
        raise HTTPException(HTTPStatus.UNAUTHORIZED, "send Authorization: Bearer and an API key", _BEARER)
    _refuse_other_sites(request)
    found = _local(request) if key is None else _keyed(request, key)
    if missing := [scope for scope in needed.scopes if scope not in found.scopes]:
        raise _lacks(missing[0])
    return found


Reader = Annotated[Caller, Security(caller, scopes=[Scope.READ])]
Writer = Annotated[Caller, Security(caller, scopes=[Scope.WRITE])]
Operator = Annotated[Caller, Security(caller, scopes=[Scope.OPERATE])]
Admin = Annotated[Caller, Security(caller, scopes=[Scope.ADMIN])]

_BEARER = {"WWW-Authenticate": "Bearer"}


def ensure_all_tenants(found: Caller, needed: Scope = Scope.ADMIN) -> None:
    """Refuse a call about the whole installation to a caller without its rights."""
    if needed not in found.scopes:
        raise _lacks(needed)
    if not found.all_tenants:
        raise HTTPException(HTTPStatus.FORBIDDEN, f"the key belongs to tenant {found.tenant}; use one of all tenants")


def ensure_shows_key(found: Caller) -> None:
    """Refuse a new key to a caller without one: it would open the API for ever, also once that needs keys."""
    if found.actor.kind is ActorKind.LOCAL:
        detail = (
            "a caller without a key makes none: run `tidewheel admin api-key create` on the installation's database"
        )
        raise HTTPException(HTTPStatus.FORBIDDEN, detail)


def _lacks(scope: str) -> HTTPException:
    return HTTPException(HTTPStatus.FORBIDDEN, f"the caller lacks the scope {scope}; use a key that has it")


def _local(request: Request) -> Caller:
    """Return a caller on the machine of an API without a token."""
    address = request.client.host if request.client else "unknown"
    actor = Actor(Door.REST, ActorKind.LOCAL, address, person(request.headers.get(ACTOR_HEADER)))
    return Caller(
        _tenant(request) or "default", frozenset(Scope), actor, all_tenants=True, traceparent=_traceparent(request)
    )


def _keyed(request: Request, key: StoredKey) -> Caller:
    everywhere = key.tenant == ALL_TENANTS
    tenant = _tenant(request) or ("default" if everywhere else key.tenant)
    if not everywhere and tenant != key.tenant:
        # The same answer whether the tenant exists or not.
        raise HTTPException(HTTPStatus.NOT_FOUND, f"there is no tenant {tenant!r}")
    named = person(request.headers.get(ACTOR_HEADER))
    actor = Actor(Door.REST, ActorKind.KEY, key.name, named, key.key_id, None if everywhere else key.tenant)
    return Caller(tenant, key.rights, actor, all_tenants=everywhere, traceparent=_traceparent(request))


def _traceparent(request: Request) -> str | None:
    given = request.headers.get("traceparent")
    return given if is_traceparent(given) else None


def _tenant(request: Request) -> str | None:
    """Return the tenant that the query names."""
    return read_query(request, TenantQuery, names={"tenant"}).tenant if "tenant" in request.query_params else None


def _refuse_other_sites(request: Request) -> None:
    """Refuse a change that a page of another site sends: a POST without a body needs no preflight request."""
    origin = request.headers.get("origin")
    if request.method in SAFE or origin is None:
        return
    if urlsplit(origin).netloc != request.headers.get("host", ""):
        raise HTTPException(HTTPStatus.FORBIDDEN, "a page of another site may not change anything here")
