"""The caller of a route: its tenant and its scopes.

`caller` is the one dependency that decides. The guard has refused forged tokens before the body is read.
"""

from dataclasses import dataclass
from enum import StrEnum
from http import HTTPStatus
from typing import Annotated
from urllib.parse import urlsplit

from fastapi import Security
from fastapi.security import SecurityScopes
from starlette.exceptions import HTTPException
from starlette.requests import Request

from tidewheel.control.api.bearer import TRUSTED
from tidewheel.control.api.queries import TenantQuery, read_query

_SAFE = frozenset({"GET", "HEAD"})


class Scope(StrEnum):
    """A right that a route needs."""

    READ = "read"
    """Lists and details."""
    WRITE = "write"
    """Jobs: create, change, delete, trigger."""
    OPERATE = "operate"
    """Runs and dead letters: cancel, retry, redrive, backfill, pause."""
    ADMIN = "admin"
    """Tenants and the whole installation."""


@dataclass(frozen=True, slots=True)
class Caller:
    """The sender of a request.

    Args:
        tenant: The tenant of everything that the request reads and writes.
        scopes: Its rights.
    """

    tenant: str
    scopes: frozenset[Scope]


async def caller(request: Request, needed: SecurityScopes) -> Caller:
    """Return the caller, who has the scopes that the route needs.

    Raises:
        HTTPException: The caller has shown no token, lacks a scope, or is a page of another site in a browser.
    """
    if not request.scope.get(TRUSTED):
        detail = "send Authorization: Bearer and the token that TIDEWHEEL_API_TOKEN names"
        raise HTTPException(HTTPStatus.UNAUTHORIZED, detail, {"WWW-Authenticate": "Bearer"})
    _refuse_other_sites(request)
    tenant = read_query(request, TenantQuery, names={"tenant"}).tenant
    found = Caller(tenant, frozenset(Scope))
    if missing := [scope for scope in needed.scopes if scope not in found.scopes]:
        raise HTTPException(HTTPStatus.FORBIDDEN, f"the caller lacks the scope {missing[0]}")
    return found


Reader = Annotated[Caller, Security(caller, scopes=[Scope.READ])]
Writer = Annotated[Caller, Security(caller, scopes=[Scope.WRITE])]
Operator = Annotated[Caller, Security(caller, scopes=[Scope.OPERATE])]
Admin = Annotated[Caller, Security(caller, scopes=[Scope.ADMIN])]


def _refuse_other_sites(request: Request) -> None:
    """Refuse a change that a page of another site sends: a POST without a body needs no preflight request."""
    origin = request.headers.get("origin")
    if request.method in _SAFE or origin is None:
        return
    if urlsplit(origin).netloc != request.headers.get("host", ""):
        raise HTTPException(HTTPStatus.FORBIDDEN, "a page of another site may not change anything here")
