"""Authorize requests by API keys: the tenant, the scopes and the rates of a caller.

The guard refuses forged tokens and keys before the body is read and before any transaction. Then `caller` is the one
dependency that decides. Strangers, which have shown no token, share a small allowance of memory for their bodies, and
are served at a limited rate, an address after the other.
"""

import hmac
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Annotated, Protocol
from urllib.parse import urlsplit

from fastapi import Security
from fastapi.security import SecurityScopes
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tidewheel.api_keys import PREFIX, ApiKey, read_key
from tidewheel.api_keys import Scope as Right
from tidewheel.audit import ACTOR_HEADER, ALL_TENANTS, Actor, ActorKind, Door, person
from tidewheel.control.api.key_check import KeyCheck, KeyUse, ShownKey, StoredKey
from tidewheel.control.api.problems import PAGE, on_http, on_unavailable, problem, unauthorized
from tidewheel.control.api.request_input import Body, BodyMemory, Sharer, TenantQuery, in_time, read_query
from tidewheel.control.api.workers import Turnstile
from tidewheel.errors import Unavailable, UndecodableMessage
from tidewheel.jobs.strict_json import read_object
from tidewheel.jobs.values import is_traceparent
from tidewheel.nouns.api_keys.sign_ins import SignIn
from tidewheel.redaction import protect
from tidewheel.settings.services import ApiSettings
from tidewheel.settings.verification import is_loopback
from tidewheel.task_tokens import TaskTokens

PROBES = ("/healthz", "/readyz")
TRUSTED = "tidewheel.trusted"  # in a request's scope: it may use the calls of executors
HEAD = "tidewheel.head"  # in a request's scope: only the head of its answer is sent
SAFE = frozenset({"GET", "HEAD"})
KEY = "tidewheel.key"  # in a request's scope: the API key that it has shown
SIGN_IN = "tidewheel.sign_in"  # in a request's scope: the sign-in that its key was taken from
KNOWN = "tidewheel.known"  # in a request's scope: the key of that sign-in, as it was last read
SPEND = "tidewheel.spend"  # in a request's scope: takes further requests from the rates of that key and of its tenant
IS_OPEN = "tidewheel.is_open"  # in a request's scope: checks that key again, for answers that take long

# Paths without the configured token: probes, schemas, and runs, which need an attempt's task token.
_RUNS = re.compile(r"/api/v1/runs/[^/]+:(complete|heartbeat)")
_OPEN = re.compile("|".join((*PROBES, r"/api/v1/schemas/[^/]+")))
_EXECUTORS = re.compile(r"/api/v1/executors(/.*)?")
_DOCUMENT = "/api/v1/openapi.json"  # for executors too

# One event loop serves all callers. 200 strangers that repeat their request at once took a beat from 5 to 300 ms.
_TURN_SECONDS = 0.005  # between two requests of strangers
_BURST_SECONDS = 0.25  # for which turns are saved
_MOST_WAITING = 100  # half a second: a request waits on, and counts as one in progress, when its stranger has hung up
_SHORT_BODY_BYTES = 16 * 1024  # strangers have 500 connections at most, so these are 8 MiB
_NEEDS_NONE = (
    "this API runs without TIDEWHEEL_API_TOKEN and needs no Authorization; leave the header out,"
    " or send an API key from `tidewheel admin api-key create`"
)
_LACKS_EXECUTE = "the key lacks the scope execute; run `tidewheel admin api-key create NAME --scope execute`"
_MANY_STRANGERS = "too many requests without a token are waiting; repeat the request in a moment"

_BEARER = {"WWW-Authenticate": "Bearer"}


def bearer(request: Request) -> str | None:
    """Return the bearer token of a request's `Authorization` header; None if it has none."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" and token else None


def address_of(request: Request) -> str:
    """Return the address of a client, behind a trusted proxy the one that it names."""
    return request.client.host if request.client else ""


class Pages(Protocol):
    """The console, as the guard calls it."""

    def path_of(self, raw: str) -> str:
        """Return the path of a request without the base path."""
        ...

    def is_page(self, request: Request) -> bool:
        """Return True for a request of the console."""
        ...

    def is_static(self, path: str) -> bool:
        """Return True for the address of a static file."""
        ...

    def is_to_sign_in(self, path: str) -> bool:
        """Return True for an address that needs no sign-in."""
        ...

    def caller(self, request: Request) -> str | SignIn | Response:
        """Return the caller's allowance, its sign-in, or the way to the sign-in page."""
        ...

    def shown(self, request: Request, answer: Response) -> Response:
        """Return a problem document as a page, where a page was requested."""
        ...


class Guard:
    """Middleware that authorizes a request before its body is read, and limits the memory of bodies.

    Without a configured token the API listens on this machine only. A request that names another host is refused: a
    page in a browser of this machine could have made that name resolve to it (DNS rebinding).
    """

    def __init__(self, app: ASGIApp, settings: ApiSettings, tokens: TaskTokens, keys: KeyCheck, console: Pages) -> None:
        self._app, self._tokens, self._keys, self._console = app, tokens, keys, console
        protect(settings.api_token.get_secret_value() if settings.api_token else None)
        self._token = None if settings.api_token is None else settings.api_token.get_secret_value().encode()
        self._bodies = BodyMemory()
        self._turns, self._turns_to_sign_in = _turnstile(), _turnstile()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        # Authorization and routes both see the path as it was sent: an encoded slash is a part of a key.
        scope["path"] = self._console.path_of(scope["raw_path"].decode("latin-1"))
        scope[PAGE] = self._console.is_page(Request(scope))
        who = _ambiguous(Request(scope)) or self._misdirected(Request(scope)) or self._caller(Request(scope))
        if who == "strangers" and _RUNS.fullmatch(scope["path"]):
            who, receive = await self._with_body(Request(scope, receive))
        # A full queue fails no probe: its answer costs as little as the refusal.
        if self._needs_turn(who, scope) and not await self._passes(Request(scope)) and scope["path"] not in PROBES:
            who = problem(HTTPStatus.SERVICE_UNAVAILABLE, "overloaded", _MANY_STRANGERS, headers={"Retry-After": "1"})
        use = await self._begin(who, Request(scope)) if isinstance(who, ApiKey | SignIn) else None
        if isinstance(use, KeyUse) and _is_of_executors(Request(scope)) and Right.EXECUTE not in use.stored.rights:
            use.in_progress -= 1
            use = problem(HTTPStatus.FORBIDDEN, "forbidden", _LACKS_EXECUTE)
        if isinstance(who, SignIn):
            known = scope[KNOWN] = self._keys.known(who)
            scope[SIGN_IN] = who if known is None else who.named(known.sign_ins)
        if isinstance(use, Response):
            who = use
        if isinstance(who, Response):
            await self._console.shown(Request(scope), who)(scope, receive, send)
        elif isinstance(who, ApiKey | SignIn) and isinstance(use, KeyUse):
            scope[KEY], scope[IS_OPEN] = use.stored, partial(self._keys.is_open, who)
            scope[SPEND] = partial(self._keys.spend, use)
            try:
                await self._serve(Sharer("keys", use.stored.tenant, use.stored.key_id), scope, receive, send)
            finally:
                use.in_progress -= 1
        elif isinstance(who, str):
            scope[TRUSTED] = who == "executors"
            sharer = scope["path"] if who == "executors" else address_of(Request(scope))  # their paths name them
            await self._serve(Sharer(who, sharer), scope, receive, send)

    async def _begin(self, key: ShownKey, request: Request) -> KeyUse | Response:
        try:
            return await self._keys.begin(key)
        except Unavailable as error:
            return await on_unavailable(request, error)

    async def _serve(self, sharer: Sharer, scope: Scope, receive: Receive, send: Send) -> None:
        body = Body(self._bodies, sharer, receive)
        try:
            await self._app(_as_get(scope), body.receive, send)
        finally:
            body.free()

    def _needs_turn(self, who: str | ApiKey | SignIn | Response, scope: Scope) -> bool:
        """Return True for a stranger; not for a static file, which costs as little as a refusal."""
        if isinstance(who, ApiKey | SignIn):
            return self._keys.known(who) is None
        return (who == "strangers" or isinstance(who, Response)) and not self._console.is_static(scope["path"])

    async def _passes(self, request: Request) -> bool:
        """Wait for a stranger's turn; return False if too many wait already."""
        turns = self._turns_to_sign_in if self._console.is_to_sign_in(request.scope["path"]) else self._turns
        return await turns.passes(address_of(request))

    async def _with_body(self, request: Request) -> tuple[str | Response, Receive]:
        """Return the allowance of a report whose body may have the token, and what receives that body again.

        Only a short one is read before its turn.
        """
        length = request.headers.get("content-length", "")
        if not 0 < int(length or 0) <= _SHORT_BODY_BYTES:  # the server refuses any but digits
            return "strangers", request.receive
        try:
            async with in_time():
                body = await request.body()
        except HTTPException as error:
            return await on_http(request, error), request.receive
        try:
            shown = self._tokens.read(str(read_object(body).get("token", "")))
        except UndecodableMessage:
            shown = None
        rest: list[Message] = [{"type": "http.request", "body": body}]

        async def again() -> Message:
            return rest.pop() if rest else await request.receive()

        return "strangers" if shown is None else "reports", again

    def _misdirected(self, request: Request) -> Response | None:
        """Return the refusal of a request for another host than this machine; None where the API has a token."""
        if self._token is not None or is_loopback(host := _host(request)):
            return None
        detail = f"the API serves only this machine, not {host}; set TIDEWHEEL_API_TOKEN"
        return problem(HTTPStatus.MISDIRECTED_REQUEST, "misdirected", detail)

    def _caller(self, request: Request) -> str | ApiKey | SignIn | Response:
        if request.scope[PAGE]:
            return self._console.caller(request)
        path, given = request.scope["path"], bearer(request)
        if _RUNS.fullmatch(path):
            if given is not None and self._tokens.read(given) is None:
                return unauthorized("the bearer token is not a task token of this installation; send it unchanged")
            return "strangers" if given is None else "reports"  # the body may have the token
        if _OPEN.fullmatch(path):
            return "strangers"
        if given is not None and given.startswith(PREFIX):
            return read_key(given) or unauthorized("the API key is mistyped or incomplete; copy the whole key")
        return self._with_token(request, given, for_executors=_is_of_executors(request))

    def _with_token(self, request: Request, given: str | None, *, for_executors: bool) -> str | Response:
        if self._token is None:
            # A wrong one would be found out only where keys are needed.
            return unauthorized(_NEEDS_NONE) if request.headers.get("authorization") else "executors"
        if given is None or not hmac.compare_digest(given.encode(), self._token):
            shown = "an API key with the scope execute" if for_executors else "an API key"
            return unauthorized(f"send Authorization: Bearer with {shown}")
        if not for_executors and request.scope["path"] != _DOCUMENT:
            detail = "TIDEWHEEL_API_TOKEN is valid only for executors; send a key from `tidewheel admin api-key create`"
            return problem(HTTPStatus.FORBIDDEN, "forbidden", detail)
        return "executors"


def _ambiguous(request: Request) -> Response | None:
    """Return the refusal of a request whose end a proxy may see elsewhere. Source: RFC 9112 section 6.1."""
    if not ("content-length" in request.headers and "transfer-encoding" in request.headers):
        return None
    detail = "Content-Length and Transfer-Encoding cannot be combined; send one of the two"
    return problem(HTTPStatus.BAD_REQUEST, "bad_request", detail, headers={"Connection": "close"})


def _turnstile() -> Turnstile:
    return Turnstile(apart_seconds=_TURN_SECONDS, saved_seconds=_BURST_SECONDS, most=_MOST_WAITING)


def _as_get(scope: Scope) -> Scope:
    """Return the scope of a GET in place of a HEAD, whose answer uvicorn sends without its content."""
    return {**scope, "method": "GET", HEAD: True} if scope["method"] == "HEAD" else scope


def _is_of_executors(request: Request) -> bool:
    return _EXECUTORS.fullmatch(request.scope["path"]) is not None and request.method not in SAFE


def _host(request: Request) -> str:
    try:
        return request.url.hostname or ""
    except ValueError:  # such as an unclosed bracket
        return ""


@dataclass(frozen=True, slots=True)
class Caller:
    """The sender of a request; with `all_tenants` it may name any tenant, and the whole installation."""

    tenant: str
    scopes: frozenset[Right]
    actor: Actor
    all_tenants: bool
    traceparent: str | None

    @property
    def sees_fleet(self) -> bool:
        """True if it may see the state of the fleet."""
        return self.all_tenants and Right.ADMIN in self.scopes


def is_open_of(request: Request) -> Callable[[], Awaitable[bool]]:
    """Return the check that the key of a request is still open; without a key it always is."""
    found: Callable[[], Awaitable[bool]] = request.scope.get(IS_OPEN, _always)
    return found


async def _always() -> bool:
    return True


async def caller(request: Request, needed: SecurityScopes) -> Caller:
    """Return the caller, who has the scopes that the route needs."""
    key: StoredKey | None = request.scope.get(KEY)
    if key is None and not request.scope.get(TRUSTED):
        raise HTTPException(HTTPStatus.UNAUTHORIZED, "send Authorization: Bearer with an API key", _BEARER)
    _refuse_other_sites(request)
    found = _local(request) if key is None else _keyed(request, key)
    if missing := [scope for scope in needed.scopes if scope not in found.scopes]:
        raise _lacks(missing[0])
    return found


Reader = Annotated[Caller, Security(caller, scopes=[Right.READ])]
Writer = Annotated[Caller, Security(caller, scopes=[Right.WRITE])]
Operator = Annotated[Caller, Security(caller, scopes=[Right.OPERATE])]
Admin = Annotated[Caller, Security(caller, scopes=[Right.ADMIN])]


def ensure_all_tenants(found: Caller, needed: Right = Right.ADMIN) -> None:
    """Refuse a call about the whole installation to a caller without its rights."""
    if needed not in found.scopes:
        raise _lacks(needed)
    if not found.all_tenants:
        raise HTTPException(HTTPStatus.FORBIDDEN, f"the key belongs to tenant {found.tenant}; use a key of all tenants")


def ensure_shows_key(found: Caller) -> None:
    """Refuse a new key to a caller without one: it would open the API for ever, also once that needs keys."""
    if found.actor.kind is ActorKind.LOCAL:
        detail = "only a caller with a key can create keys; run `tidewheel admin api-key create` for the first one"
        raise HTTPException(HTTPStatus.FORBIDDEN, detail)


def _lacks(scope: str) -> HTTPException:
    return HTTPException(HTTPStatus.FORBIDDEN, f"the caller lacks the scope {scope}; use a key that has it")


def _local(request: Request) -> Caller:
    address = request.client.host if request.client else "unknown"
    actor = Actor(Door.REST, ActorKind.LOCAL, address, person(request.headers.get(ACTOR_HEADER)))
    return Caller(
        _tenant(request) or "default", frozenset(Right), actor, all_tenants=True, traceparent=_traceparent(request)
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
    return read_query(request, TenantQuery, names={"tenant"}).tenant if "tenant" in request.query_params else None


def _refuse_other_sites(request: Request) -> None:
    """Refuse a change that a page of another site sends: a POST without a body needs no preflight request."""
    origin = request.headers.get("origin")
    if request.method in SAFE or origin is None:
        return
    if urlsplit(origin).netloc != request.headers.get("host", ""):
        raise HTTPException(HTTPStatus.FORBIDDEN, "requests from pages of other sites are refused")
