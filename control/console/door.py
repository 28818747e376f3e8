"""Requests for pages: recognize them, decide who may open them, show errors as pages."""

import json
from collections.abc import Callable, Coroutine
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from tidewheel.api_keys import Scope
from tidewheel.audit import ALL_TENANTS
from tidewheel.control.api.key_check import StoredKey
from tidewheel.control.api.problems import PAGE
from tidewheel.control.console.rendering import KeyShown, Renderer, Visitor
from tidewheel.control.console.sign_in import COOKIE, LIFE, Signer, SignIn, sign_in_of
from tidewheel.control.console.urls import is_page, within
from tidewheel.errors import InvalidInput, TenantDeleted, UnknownTenant
from tidewheel.jobs.values import is_tenant
from tidewheel.settings.api import ApiSettings

SIGN_IN = "tidewheel.sign_in"  # in a request's scope: the sign-in that its key was taken from
KNOWN = "tidewheel.known"  # in a request's scope: the key of that sign-in, as it was last read

TO_SIGN_IN = ("/sign-in", "/sign-out", "/theme")
_STATIC = "/static/"
_NO_TENANT = (UnknownTenant.code, TenantDeleted.code, InvalidInput.code)  # of a page whose tenant no other page has
Handler = Callable[[Request, Any], Coroutine[Any, Any, Response]]


def is_static(path: str) -> bool:
    """Return True for the address of a static file."""
    return path.startswith(_STATIC)


class Door:
    """The console's part of authorization."""

    def __init__(self, settings: ApiSettings) -> None:
        self.needs_key = settings.api_token is not None
        self.signer = Signer(needs_key=self.needs_key)
        self.base = settings.api_base_path or ""
        self.renderer = Renderer(settings, self.signer, needs_key=self.needs_key)

    def path_of(self, raw: str) -> str:
        """Return the path of a request without the base path."""
        return within(self.base, raw)

    def is_page(self, request: Request) -> bool:
        """Return True for a request of the console."""
        return is_page(request.scope["path"], request.headers.get("accept", ""))

    def caller(self, request: Request) -> str | SignIn | Response:
        """Return the caller's allowance, its sign-in, or the way to the sign-in page."""
        path = request.scope["path"]
        if path in TO_SIGN_IN or is_static(path):
            return "strangers"
        if (found := sign_in_of(request)) is not None:
            return found
        if not self.needs_key:
            return "executors"
        return self._to_sign_in(request)

    def set_sign_in(self, request: Request, answer: Response, sign_in: SignIn) -> None:
        """Set the cookie of a sign-in that begins now."""
        self.renderer.set_cookie(request, answer, COOKIE, sign_in.text, seconds=int(LIFE.total_seconds()))

    def shown(self, request: Request, answer: Response) -> Response:
        """Return a problem document as a page, where a page was requested."""
        if not request.scope.get(PAGE) or answer.media_type != "application/problem+json":
            return answer
        problem: dict[str, Any] = json.loads(bytes(answer.body))
        if problem["status"] == HTTPStatus.UNAUTHORIZED:
            return self._to_sign_in(request, ended=True)
        headers = {name: answer.headers[name] for name in ("retry-after", "allow") if name in answer.headers}
        return self.renderer.error(request, problem, headers, self._reader(request, problem["code"]))

    def _reader(self, request: Request, code: str) -> Visitor:
        """Return the reader of an error page, as far as it is known without a read."""
        sign_in: SignIn | None = request.scope.get(SIGN_IN)
        key: StoredKey | None = request.scope.get(KNOWN)
        named = request.query_params.get("tenant", "")
        tenant = named if is_tenant(named) and code not in _NO_TENANT else "default"
        if key is not None:
            many = key.tenant == ALL_TENANTS
            shown, scopes = KeyShown.of(key), frozenset(map(str, key.rights))
            return Visitor(sign_in, shown, tenant if many else key.tenant, many, scopes)
        if sign_in is not None or self.needs_key:
            return Visitor(sign_in)
        return Visitor(tenant=tenant, many=True, scopes=frozenset(map(str, Scope)))

    def as_page(self, handler: Handler) -> Handler:
        """Return an error handler that answers requests of the console by pages."""

        async def handle(request: Request, error: Any) -> Response:  # noqa: ANN401 - as of Starlette
            return self.shown(request, await handler(request, error))

        return handle

    def _to_sign_in(self, request: Request, *, ended: bool = False) -> Response:
        """Return the way to the sign-in page, which leads back to a page that was read."""
        path, query = request.scope["path"], request.scope["query_string"].decode("latin-1")
        back = "" if request.method != "GET" else path + (f"?{query}" if query else "")
        parts = [f"next={quote(back)}"] if back not in {"", "/"} else []
        parts += ["ended=1"] if ended else []
        at = f"{self.base}/sign-in" + (f"?{'&'.join(parts)}" if parts else "")
        answer = RedirectResponse(at, HTTPStatus.SEE_OTHER)
        if ended:
            self.renderer.delete_cookie(request, answer, COOKIE)
        return self.renderer.guarded(answer)
