"""External completions and heartbeats: `/api/v1/runs/{run_id}:complete` and `:heartbeat`.

The task token is the only authorization: in the `Authorization` header, or in the body as in requests by Kafka. Its
signature is checked before any transaction.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import cast
from uuid import uuid4

from fastapi import APIRouter
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from tidewheel.control.api import examples
from tidewheel.control.api.answers import encoded
from tidewheel.control.api.bearer import address_of, bearer
from tidewheel.control.api.bodies import MAX_REPORT_BYTES, read_document
from tidewheel.control.api.json_schemas import body_of
from tidewheel.control.api.openapi import add_route
from tidewheel.control.api.workers import Turn, Workers
from tidewheel.errors import FieldError, InvalidInput
from tidewheel.jobs.requests import RunComplete, RunHeartbeat
from tidewheel.jobs.strict_json import Json
from tidewheel.transitions.installation import Installation


@dataclass(frozen=True, slots=True)
class ReportedRun:
    """A run after a report.

    Args:
        run_id: Its id.
        run_status: Its state; null if the report changed nothing.
    """

    run_id: str
    run_status: str | None


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
        done: dict[str, Json] = {"run_id": examples.RUN_ID, "run_status": "waiting"}
        without = ("type", "tenant")
        route(f"{one}:complete", self.complete_run, body=body_of(RunComplete, without=without), example=done)
        route(f"{one}:heartbeat", self.heartbeat_run, body=body_of(RunHeartbeat, without=without), example=done)

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
        return Response(encoded(ReportedRun(str(reply.run_id), reply.run_status)), media_type="application/json")

    def _document(self, request: Request, body: Mapping[str, object], kind: str) -> dict[str, object]:
        token = bearer(request)
        document: dict[str, object] = dict(body)
        if token is not None and document.setdefault("token", token) != token:
            raise InvalidInput([FieldError("token", "the header has another one", "send it once")])
        named = self.installation.task_tokens.read(str(document.get("token", "")))
        if named is None:
            detail = "send the attempt's task token, unchanged: as bearer token, or as `token` in the body"
            raise HTTPException(HTTPStatus.UNAUTHORIZED, detail, {"WWW-Authenticate": "Bearer"})
        if document.setdefault("type", kind) != kind:
            raise InvalidInput([FieldError("type", f"this address is for {kind}", "leave it out")])
        if named[0] != request.path_params["run_id"]:
            problem = "it belongs to another run than the address names"
            raise InvalidInput([FieldError("token", problem, "correct the address")])
        return document
