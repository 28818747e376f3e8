"""Routes without an API key: reports by a task token, schemas by fingerprint, probes.

A task token is in the `Authorization` header, or in the body as in requests by Kafka. Its signature is checked before
any transaction. A request for a schema of another release reads the database, one at a time of each address. However
many probes come, the database is checked once a second at most, on one connection.
"""

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from typing import Annotated, cast
from uuid import uuid4

from fastapi import APIRouter
from pydantic import Field
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from tidewheel.clock import monotonic_seconds
from tidewheel.control.api.answers import as_json_response
from tidewheel.control.api.authorization import PROBES, address_of, bearer
from tidewheel.control.api.openapi import add_route, body_of
from tidewheel.control.api.problems import NotReady
from tidewheel.control.api.request_input import MAX_REPORT_BYTES, read_document
from tidewheel.control.api.workers import Turn, Workers, WorkerState
from tidewheel.errors import Unavailable, refuse
from tidewheel.jobs.requests import RunComplete, RunHeartbeat
from tidewheel.migrations.stored_schemas import find_schema
from tidewheel.postgres.statements import Statements
from tidewheel.process.service import Shutdown
from tidewheel.schemas.codec import all_schemas
from tidewheel.transitions.installation import Installation

_PING = Statements("tidewheel.control")["ping"]
_FINGERPRINT = re.compile(r"[0-9a-f]{16}", re.ASCII | re.IGNORECASE)
_SECONDS = 3.0  # about the timeout of a probe
_KEPT_SECONDS = 1.0  # for which an answer holds


@dataclass(frozen=True, slots=True)
class ReportedRun:
    """A run after a report."""

    run_id: Annotated[str, Field(description="Its id.")]
    run_status: Annotated[str | None, Field(description="Its state; null if the report changed nothing.")]


@dataclass(frozen=True, slots=True)
class TaskTokensApi:
    """Requests of a client that has a task token."""

    workers: Workers
    installation: Installation

    def add_to(self, router: APIRouter) -> None:
        """Add the routes."""
        one = "/api/v1/runs/{run_id:uuid}"
        route = partial(add_route, router, "POST", scope=None, shows="taskToken", answer=ReportedRun,
                        sent={"token": "AZ06HH8A"})  # fmt: skip
        without = ("type", "tenant")
        route(f"{one}:complete", self.complete_run, body=body_of(RunComplete, without=without))
        route(f"{one}:heartbeat", self.heartbeat_run, body=body_of(RunHeartbeat, without=without))

    async def complete_run(self, request: Request) -> Response:
        """End an attempt."""
        # With an id, a repeat after a lost COMMIT returns the first reply, not `stale_token`.
        return await self._apply(request, "run.complete", {"request_id": str(uuid4())})

    async def heartbeat_run(self, request: Request) -> Response:
        """Keep an attempt alive."""
        return await self._apply(request, "run.heartbeat", {})

    async def _apply(self, request: Request, kind: str, defaults: Mapping[str, object]) -> Response:
        body = await read_document(request, MAX_REPORT_BYTES)
        document = {**defaults, **self._document(request, body, kind)}
        request_id = cast("str | None", document.get("request_id"))
        turn = Turn(address_of(request), str(request.path_params["run_id"]))  # a token names no tenant
        reply = await self.workers.do(lambda state: state.connection().request(document, request_id), turn)
        return as_json_response(ReportedRun(str(reply.run_id), reply.run_status))

    def _document(self, request: Request, body: Mapping[str, object], kind: str) -> dict[str, object]:
        token = bearer(request)
        document: dict[str, object] = dict(body)
        if token is not None and document.setdefault("token", token) != token:
            refuse("token", "differs from the token in the header", "send it once")
        named = self.installation.task_tokens.read(str(document.get("token", "")))
        if named is None:
            detail = "send the attempt's task token unchanged, as bearer token or as `token` in the body"
            raise HTTPException(HTTPStatus.UNAUTHORIZED, detail, {"WWW-Authenticate": "Bearer"})
        if document.setdefault("type", kind) != kind:
            refuse("type", f"this route accepts only {kind}", "leave it out")
        if named[0] != request.path_params["run_id"]:
            refuse("token", "does not belong to the run in the URL", "correct the URL")
        return document


@dataclass(frozen=True, slots=True)
class SchemasApi:
    """Calls of consumers; `workers` look up schemas of other releases."""

    workers: Workers
    _known: dict[bytes, str] = field(default_factory=lambda: {each.fingerprint: each.text for each in all_schemas()})

    def add_to(self, router: APIRouter) -> None:
        """Add the route."""
        add_route(router, "GET", "/api/v1/schemas/{fingerprint}", self.get_schema, scope=None, answer={})

    async def get_schema(self, request: Request) -> Response:
        """Return a schema as JSON."""
        text = str(request.path_params["fingerprint"])
        fingerprint = bytes.fromhex(text) if _FINGERPRINT.fullmatch(text) else b""
        found = self._known.get(fingerprint)
        if found is None and fingerprint:
            found = await self.workers.do(lambda state: self._find(state, fingerprint), Turn(address_of(request)))
        if found is None:
            detail = "there is no such schema; write bytes 3 to 10 of the message as 16 hexadecimal digits"
            raise HTTPException(HTTPStatus.NOT_FOUND, detail)
        kept = {"Cache-Control": "public, max-age=31536000, immutable"}  # a fingerprint never means another schema
        return Response(found, headers=kept, media_type="application/json")

    def _find(self, state: WorkerState, fingerprint: bytes) -> str | None:
        with state.session.transaction() as connection:
            return find_schema(connection, fingerprint)


class HealthApi:
    """Calls of probes."""

    def __init__(self, workers: Workers, stop: Shutdown) -> None:
        self._workers, self._stop = workers, stop
        self._check: asyncio.Task[str | None] | None = None
        self._checked_at = 0.0

    def add_to(self, router: APIRouter) -> None:
        """Add the routes."""
        for path, probe in zip(PROBES, (self.get_health, self.get_readiness), strict=True):
            add_route(router, "GET", path, probe, scope=None, answer={"type": "string"}, media="text/plain")

    async def get_health(self, _: Request) -> Response:
        """Answer that the event loop runs."""
        return PlainTextResponse("ok\n")

    async def get_readiness(self, _: Request) -> Response:
        """Answer that the database answers.

        Raises:
            NotReady: The database does not answer, or a stop is requested.
        """
        if self._stop.requested():
            raise NotReady("stop requested")
        now = monotonic_seconds()
        if self._check is None or (self._check.done() and now - self._checked_at >= _KEPT_SECONDS):
            self._check, self._checked_at = asyncio.create_task(self._why_not()), now
        # Shielded: a probe that disconnects must not cancel the check of the others.
        if (why_not := await asyncio.shield(self._check)) is not None:
            raise NotReady(why_not)
        return PlainTextResponse("ready\n")

    async def _why_not(self) -> str | None:
        try:
            async with asyncio.timeout(_SECONDS):
                await self._workers.do(_check_database)
        except TimeoutError:
            return f"the database has not answered within {_SECONDS:g} s"
        except Unavailable:
            return "the database does not answer"
        return None


def _check_database(state: WorkerState) -> None:
    with state.session.transaction() as connection:
        connection.execute(_PING)
