"""Authorize callers: a token for executors, the attempt's task token for runs, API keys for the rest.

A forged token is refused here, before the body is read and before any transaction. Strangers, which have shown no
token, share a small allowance of memory for their bodies, and are served at a limited rate.
"""

import asyncio
import hmac
import re
from functools import partial
from http import HTTPStatus

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tidewheel.api_keys import PREFIX, ApiKey, read_key
from tidewheel.control.api.key_check import BODY_BYTES, KeyCheck, KeyUse, ShownKey
from tidewheel.control.api.problems import PAGE, Overloaded, on_unavailable, problem, unauthorized
from tidewheel.control.console.door import KNOWN, SIGN_IN, Door
from tidewheel.control.console.sign_in import SignIn
from tidewheel.errors import Unavailable
from tidewheel.redaction import protect
from tidewheel.settings.api import ApiSettings, is_loopback
from tidewheel.task_tokens import TaskTokens

PROBES = ("/healthz", "/readyz")
TRUSTED = "tidewheel.trusted"  # in a request's scope: it may use the calls of executors
HEAD = "tidewheel.head"  # in a request's scope: only the head of its answer is sent
SAFE = frozenset({"GET", "HEAD"})
KEY = "tidewheel.key"  # in a request's scope: the API key that it has shown
IS_OPEN = "tidewheel.is_open"  # in a request's scope: checks that key again, for answers that take long

# Paths without the configured token: probes, schemas, and runs, which need an attempt's task token.
_RUNS = re.compile(r"/api/v1/runs/[^/]+:(complete|heartbeat)")
_OPEN = re.compile("|".join((*PROBES, r"/api/v1/schemas/[^/]+")))
_EXECUTORS = re.compile(r"/api/v1/executors(/.*)?")
_DOCUMENT = "/api/v1/openapi.json"  # for executors too

# Bodies in memory at once, in bytes. A parsed document takes up to twenty times as much as its text.
ALLOWANCES = {"executors": 8 << 20, "keys": 8 << 20, "reports": 4 << 20, "strangers": 4 << 20}

# One event loop serves all callers. 200 strangers that repeat their request at once took a beat from 5 to 300 ms.
_TURN_SECONDS = 0.005  # between two requests of strangers
_BURST_SECONDS = 0.25  # for which turns are saved
_LONGEST_QUEUE_SECONDS = 0.5  # a request waits on, and counts as one in progress, when its stranger has hung up
_NEEDS_NONE = (
    "this API runs without TIDEWHEEL_API_TOKEN and needs no Authorization; leave the header out,"
    " or send an API key of `tidewheel key create`"
)
_MANY_STRANGERS = "too many requests without a token are waiting; repeat the request in a moment"


def bearer(request: Request) -> str | None:
    """Return the bearer token of a request's `Authorization` header; None if it has none."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" and token else None


class Guard:
    """Middleware that authorizes a request before its body is read, and limits the memory of bodies.

    Without a configured token the API listens on this machine only. A request that names another host is refused: a
    page in a browser of this machine could have made that name resolve to it (DNS rebinding).
    """

    def __init__(self, app: ASGIApp, settings: ApiSettings, tokens: TaskTokens, keys: KeyCheck, console: Door) -> None:
        self._app, self._tokens, self._keys, self._console = app, tokens, keys, console
        protect(settings.api_token.get_secret_value() if settings.api_token else None)
        self._token = None if settings.api_token is None else settings.api_token.get_secret_value().encode()
        self._held = dict.fromkeys(ALLOWANCES, 0)
        self._next_turn = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        # Authorization and routes both see the path as it was sent: an encoded slash is a part of a key.
        scope["path"] = self._console.path_of(scope["raw_path"].decode("latin-1"))
        scope[PAGE] = self._console.is_page(Request(scope))
        who = self._misdirected(Request(scope)) or self._caller(Request(scope))
        stranger = who == "strangers" or isinstance(who, Response)
        if isinstance(who, ApiKey | SignIn):
            stranger = self._keys.known(who) is None
        # A full queue fails no probe: its answer costs as little as the refusal.
        if stranger and not await self._wait_for_turn() and scope["path"] not in PROBES:
            who = problem(HTTPStatus.SERVICE_UNAVAILABLE, "overloaded", _MANY_STRANGERS, headers={"Retry-After": "1"})
        use = await self._begin(who, Request(scope)) if isinstance(who, ApiKey | SignIn) else None
        if isinstance(who, SignIn):
            known = scope[KNOWN] = self._keys.known(who)
            scope[SIGN_IN] = who if known is None else who.named(known.sign_ins)
        if isinstance(use, Response):
            who = use
        if isinstance(who, Response):
            await self._console.shown(Request(scope), who)(scope, receive, send)
        elif isinstance(who, ApiKey | SignIn) and isinstance(use, KeyUse):
            scope[KEY], scope[IS_OPEN] = use.stored, partial(self._keys.is_open, who)
            try:
                await self._serve("keys", scope, receive, send, use)
            finally:
                use.in_progress -= 1
        elif isinstance(who, str):
            scope[TRUSTED] = who == "executors"
            await self._serve(who, scope, receive, send)

    async def _begin(self, key: ShownKey, request: Request) -> KeyUse | Response:
        try:
            return await self._keys.begin(key)
        except Unavailable as error:
            return await on_unavailable(request, error)

    async def _serve(self, who: str, scope: Scope, receive: Receive, send: Send, use: KeyUse | None = None) -> None:
        taken = 0

        async def receive_within() -> Message:
            nonlocal taken
            message = await receive()
            size = len(message.get("body", b""))
            taken += size
            self._held[who] += size
            if use is not None:
                use.body_bytes += size
            if self._held[who] > ALLOWANCES[who] or (use is not None and use.body_bytes > BODY_BYTES):
                text = "the bodies of other requests take all the memory for them; repeat the request in a moment"
                raise Overloaded(text)
            return message

        try:
            await self._app(_as_get(scope), receive_within, send)
        finally:
            self._held[who] -= taken
            if use is not None:
                use.body_bytes -= taken

    async def _wait_for_turn(self) -> bool:
        """Wait for a stranger's turn; return False at once if too many wait already."""
        now = asyncio.get_running_loop().time()
        turn = max(self._next_turn, now - _BURST_SECONDS)
        if turn > now + _LONGEST_QUEUE_SECONDS:
            return False
        self._next_turn = turn + _TURN_SECONDS
        if turn > now:
            await asyncio.sleep(turn - now)
        return True

    def _misdirected(self, request: Request) -> Response | None:
        """Return the refusal of a request for another host than this machine; None where the API has a token."""
        if self._token is not None or is_loopback(host := _host(request)):
            return None
        detail = f"the API listens for this machine alone, not for {host}; set TIDEWHEEL_API_TOKEN"
        return problem(HTTPStatus.MISDIRECTED_REQUEST, "misdirected", detail)

    def _caller(self, request: Request) -> str | ApiKey | SignIn | Response:
        """Return the caller's allowance, the key that it shows, or the refusal of the request."""
        if request.scope[PAGE]:
            return self._console.caller(request)
        path, given = request.scope["path"], bearer(request)
        if _RUNS.fullmatch(path):
            if given is not None and self._tokens.read(given) is None:
                return unauthorized("the bearer token is not a task token of this installation; send it back unchanged")
            return "strangers" if given is None else "reports"  # the body may have the token
        if _OPEN.fullmatch(path):
            return "strangers"
        for_executors = _EXECUTORS.fullmatch(path) is not None and request.method not in SAFE
        if given is not None and given.startswith(PREFIX):
            return _key(given, for_executors=for_executors)
        return self._with_token(request, given, for_executors=for_executors)

    def _with_token(self, request: Request, given: str | None, *, for_executors: bool) -> str | Response:
        """Return the allowance of executors, or the refusal of the request."""
        if self._token is None:
            # A wrong one would be found out only where keys are needed.
            return unauthorized(_NEEDS_NONE) if request.headers.get("authorization") else "executors"
        if given is None or not hmac.compare_digest(given.encode(), self._token):
            shown = "the token that TIDEWHEEL_API_TOKEN names" if for_executors else "an API key"
            return unauthorized(f"send Authorization: Bearer and {shown}")
        if not for_executors and request.scope["path"] != _DOCUMENT:
            detail = "the token of executors opens their calls alone; send a key of `tidewheel key create`"
            return problem(HTTPStatus.FORBIDDEN, "forbidden", detail)
        return "executors"


def _as_get(scope: Scope) -> Scope:
    """Return the scope of a GET in place of a HEAD, whose answer uvicorn sends without its content."""
    return {**scope, "method": "GET", HEAD: True} if scope["method"] == "HEAD" else scope


def _key(given: str, *, for_executors: bool) -> ApiKey | Response:
    if (key := read_key(given)) is None:
        return unauthorized("the API key has a typing error, or a part of it is missing; copy the whole key")
    if for_executors:
        detail = "an API key does not open the calls of executors; send the token that TIDEWHEEL_API_TOKEN names"
        return problem(HTTPStatus.FORBIDDEN, "forbidden", detail)
    return key


def _host(request: Request) -> str:
    try:
        return request.url.hostname or ""
    except ValueError:  # such as an unclosed bracket
        return ""
