"""Authorize callers: the configured token for executors, the attempt's task token for runs."""

import hmac
import re
from http import HTTPStatus

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from tidewheel.control.api.problems import problem
from tidewheel.settings import ApiSettings, is_loopback

# Paths without the configured token: probes, schemas, and runs, which need an attempt's task token.
_OPEN = re.compile(r"/healthz|/readyz|/api/v1/schemas/[^/]+|/api/v1/runs/[^/]+:(complete|heartbeat)")


def bearer(request: Request) -> str | None:
    """Return the bearer token of a request's `Authorization` header; None if it has none."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" and token else None


class Guard:
    """Middleware that authorizes a request before its body is read.

    Without a configured token the API listens on this machine only. A request that names another host is refused: a
    page in a browser of this machine could have made that name resolve to it (DNS rebinding).
    """

    def __init__(self, app: ASGIApp, settings: ApiSettings) -> None:
        self._app = app
        self._token = None if settings.api_token is None else settings.api_token.get_secret_value().encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        refusal = self._refusal(Request(scope)) if scope["type"] == "http" else None
        await (refusal or self._app)(scope, receive, send)

    def _refusal(self, request: Request) -> Response | None:
        if self._token is None:
            if not is_loopback(request.url.hostname or ""):
                detail = (
                    f"the API listens for this machine alone, not for {request.url.hostname}; set TIDEWHEEL_API_TOKEN"
                )
                return problem(HTTPStatus.MISDIRECTED_REQUEST, "misdirected", detail)
        elif not _OPEN.fullmatch(request.scope["path"]):
            given = bearer(request)
            if given is None or not hmac.compare_digest(given.encode(), self._token):
                detail = "send Authorization: Bearer and the token that TIDEWHEEL_API_TOKEN names"
                headers = {"WWW-Authenticate": "Bearer"}
                return problem(HTTPStatus.UNAUTHORIZED, "unauthorized", detail, headers=headers)
        return None
