"""Problem documents (RFC 9457): `application/problem+json`, with every field that does not fit.

A document has the words of Tidewheel and of the caller, never those of an exception from below: these name hosts, SQL
and tables. They are in the log.
"""

import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from http import HTTPStatus
from typing import Any, Self

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tidewheel import errors
from tidewheel.clock import monotonic_seconds
from tidewheel.errors import (
    FieldError,
    InvalidInput,
    PausedByOperator,
    Refused,
    RequestConflict,
    RunBusy,
    StaleToken,
    TenantDeleted,
    Unavailable,
    VersionConflict,
)
from tidewheel.intake.locks import RowLocked
from tidewheel.jobs.validation import shown

PAGE = "tidewheel.page"  # in a request's scope: it is one for the console, and errors are pages

_UNKNOWN = {each.code for each in vars(errors).values() if str(getattr(each, "code", "")).startswith("unknown_")}
STATUSES: Mapping[str, HTTPStatus] = {
    **dict.fromkeys(_UNKNOWN, HTTPStatus.NOT_FOUND),
    InvalidInput.code: HTTPStatus.UNPROCESSABLE_ENTITY,
    PausedByOperator.code: HTTPStatus.FORBIDDEN,
    StaleToken.code: HTTPStatus.CONFLICT,
    TenantDeleted.code: HTTPStatus.CONFLICT,
    VersionConflict.code: HTTPStatus.CONFLICT,
    RequestConflict.code: HTTPStatus.CONFLICT,
    RunBusy.code: HTTPStatus.CONFLICT,
}
# Source: RFC 9110. Releases of Python differ in the names of these two, which are also codes.
_TITLES = {HTTPStatus(413): "Content Too Large", HTTPStatus(422): "Unprocessable Content"}
_PRECONDITIONS = ("if-match", "if-none-match")
_ADDRESSES = "ids are UUIDs, and /api/v1/openapi.json lists all routes"
_AGAIN_SECONDS = 1
_AWAY = "the service is unavailable; retry the request, which may have taken effect"
_LOG = logging.getLogger("tidewheel.api")
_LOG_SECONDS = 5.0  # between two lines about requests that were not served: clients repeat them


class Overloaded(Unavailable):
    """The process has more concurrent requests than it can work on."""


class Busy(Unavailable):
    """Another transaction holds a row that the request needs."""

    @classmethod
    def of(cls, cause: Unavailable) -> Self:
        """Return the error for a lock that a statement has met."""
        named = isinstance(cause, RowLocked)
        return cls(str(cause) if named else "another transaction locks a row that this request needs; retry")


class NotReady(Unavailable):
    """The process accepts no work now, for a reason that every caller may read."""


class UnreadableBody(Exception):
    """A request's body is no JSON object."""


def problem(
    status: HTTPStatus,
    code: str,
    detail: str,
    errors: Sequence[FieldError] = (),
    headers: Mapping[str, str] | None = None,
) -> Response:
    """Return a problem document; `code`, for programs, is also the last part of `type`."""
    content: dict[str, object] = {
        "type": f"urn:tidewheel:problem:{code}",
        "title": _TITLES.get(status, status.phrase),
        "status": status.value,
        "code": code,
        "detail": detail,
    }
    if errors:
        content["errors"] = [{"path": e.path, "problem": e.problem, "remedy": e.remedy} for e in errors]
    return JSONResponse(content, status.value, headers, media_type="application/problem+json")


def unauthorized(detail: str) -> Response:
    """Return the answer to a request without the right to be read."""
    return problem(HTTPStatus.UNAUTHORIZED, "unauthorized", detail, headers={"WWW-Authenticate": "Bearer"})


async def on_refused(request: Request, error: Exception) -> Response:
    """Answer a request whose input is refused."""
    assert isinstance(error, Refused)  # noqa: S101 - registered for it
    status = STATUSES.get(error.code, HTTPStatus.UNPROCESSABLE_ENTITY)
    if error.code == VersionConflict.code and any(name in request.headers for name in _PRECONDITIONS):
        status = HTTPStatus.PRECONDITION_FAILED
    errors = [_in_head(request, error, each) for each in error.errors]
    headers = {"Retry-After": str(_AGAIN_SECONDS)} if error.code == RunBusy.code else None
    return problem(status, error.code, str(Refused(errors)), errors, headers)


def _in_head(request: Request, refused: Refused, error: FieldError) -> FieldError:
    """Return an error of a field of intake's request with the name of the header that has it."""
    if refused.code == RequestConflict.code:
        return replace(error, path="Idempotency-Key")
    if isinstance(refused, VersionConflict):
        name = "If-None-Match" if "if-none-match" in request.headers else "If-Match"
        return FieldError(name, error.problem, "leave it out" if refused.current is None else error.remedy)
    return error


async def on_unreadable(_: Request, error: Exception) -> Response:
    """Answer a request whose body is no JSON object."""
    return problem(HTTPStatus.BAD_REQUEST, "unreadable", str(error), [FieldError("", str(error), "")])


async def on_unavailable(_: Request, error: Exception) -> Response:
    """Answer a request while the database does not answer, or during an overload.

    The request had no effect, or its effect is unknown.
    """
    code = "busy" if isinstance(error, Busy) else "overloaded" if isinstance(error, Overloaded) else "unavailable"
    ours = isinstance(error, Busy | Overloaded | NotReady)
    if not ours:
        _not_served.log(error)
    again = {"Retry-After": str(_AGAIN_SECONDS)}
    return problem(HTTPStatus.SERVICE_UNAVAILABLE, code, str(error) if ours else _AWAY, headers=again)


async def on_http(request: Request, error: Exception) -> Response:
    """Answer a request that Starlette, or a check before the body is read, refuses."""
    assert isinstance(error, HTTPException)  # noqa: S101 - registered for it
    status, detail, headers = HTTPStatus(error.status_code), error.detail, error.headers
    if status is HTTPStatus.METHOD_NOT_ALLOWED:
        allowed = ", ".join(_methods(request))
        detail, headers = f"this route accepts {allowed}, not {request.method}", {"Allow": allowed}
    elif detail == HTTPStatus.NOT_FOUND.phrase:  # of Starlette, which found no route
        hint = "" if request.scope.get(PAGE) else f"; {_ADDRESSES}"
        if request.scope["path"].startswith("/api/v1/jobs/"):
            hint = f'; write a "/" in a key as %2F{hint}'
        detail = f"there is no route {shown(request.scope['path'])}{hint}"
    code = _TITLES.get(status, status.phrase).lower().replace(" ", "_")
    return problem(status, code, detail, headers=headers)


def _methods(request: Request) -> Sequence[str]:
    routes = [each for each in request.app.routes if isinstance(each, Route)]
    found = {method for each in routes if each.path_regex.match(request.scope["path"]) for method in each.methods or ()}
    return sorted(found | {"HEAD"} if "GET" in found else found)


async def on_fault(_: Request, error: Exception) -> Response:
    """Answer a request that an internal error ended; the server logs the error."""
    del error
    return problem(HTTPStatus.INTERNAL_SERVER_ERROR, "internal", "see the log of `tidewheel service api`")


class _NotServed:
    """The log of requests that were not served, a line every five seconds."""

    _next = float("-inf")

    def log(self, error: Exception) -> None:
        if monotonic_seconds() >= self._next:
            self._next = monotonic_seconds() + _LOG_SECONDS
            _LOG.warning("requests are answered with 503: %s", error)


_not_served = _NotServed()


HANDLERS: dict[int | type[Exception], Callable[[Request, Any], Coroutine[Any, Any, Response]]] = {
    Refused: on_refused,
    UnreadableBody: on_unreadable,
    Unavailable: on_unavailable,
    HTTPException: on_http,
    Exception: on_fault,
}
