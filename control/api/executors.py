"""Executors in other languages: `/api/v1/executors`.

docs/wire-contract.md defines the order of their calls.
"""

from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from http import HTTPStatus
from typing import cast
from uuid import UUID

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from tidewheel.api_keys import Scope
from tidewheel.control.api import examples
from tidewheel.control.api.bodies import read_body
from tidewheel.control.api.models import MAX_SWEEP, ClaimRequest, Heartbeat, OutcomesRequest, Registration
from tidewheel.control.api.openapi import add_route, body_of
from tidewheel.control.api.workers import Workers, WorkerState
from tidewheel.executor.message_check import MessageCheck
from tidewheel.executor.remote_executors import RemoteClaim, RemoteClaimResult
from tidewheel.jobs.strict_json import Json
from tidewheel.jobs.values import MAX_ELEMENTS
from tidewheel.message_signatures import MessageKeys
from tidewheel.runs import Lane
from tidewheel.schemas.codec import encode
from tidewheel.settings.api import ApiSettings
from tidewheel.task_tokens import task_token
from tidewheel.transitions.claim import Started
from tidewheel.transitions.installation import Installation

_OBJECT: Mapping[str, object] = {"type": "object"}
_KEYS_SECONDS = 1.0  # between two look-ups of the keys of run messages


@dataclass(frozen=True, slots=True)
class ExecutorsApi:
    """Calls of executors.

    Args:
        workers: The threads of the database work.
        installation: For topics and task tokens.
        settings: For intervals.
        keys: The keys of run messages.
        check: Checks the signatures of claimed messages by these keys.
    """

    workers: Workers
    installation: Installation
    settings: ApiSettings
    keys: MessageKeys
    check: MessageCheck

    def add_to(self, router: APIRouter) -> None:
        """Add the routes."""
        one = "/api/v1/executors/{executor_id:uuid}"
        heartbeat = body_of(Heartbeat)

        route = partial(add_route, router, "POST", scope=Scope.OPERATE, answer=_OBJECT)
        route("/api/v1/executors", self.register, status=HTTPStatus.CREATED, example=examples.REGISTERED,
              body=body_of(Registration), sent=examples.REGISTRATION)  # fmt: skip
        route(f"{one}:heartbeat", self.heartbeat, body=heartbeat, sent={}, example={"signals": []})
        route(f"{one}:claim", self.claim, body=body_of(ClaimRequest), sent={"claim_id": 1, "sweep": 10},
              example=examples.STARTED)  # fmt: skip
        finished: dict[str, Json] = {"run_id": examples.RUN_ID, "attempt": 1}
        route(f"{one}:finish", self.finish, body=body_of(OutcomesRequest),
              sent={"outcomes": [{**finished, "status": "succeeded", "result": {"rows": 7}}]},
              example={"outcomes": [{**finished, "answer": "recorded"}]})  # fmt: skip
        route(f"{one}:leave", self.leave, status=HTTPStatus.NO_CONTENT, body=heartbeat, sent={}, example=None)

    async def register(self, request: Request) -> Response:
        """Register an executor."""
        body = await read_body(request, Registration)
        executor_id = await self.workers.do(
            lambda state: state.executors.register(
                body.name, body.queues, body.handlers, body.slots, lease=self.settings.lease
            )
        )
        answer = {
            "executor_id": str(executor_id),
            "heartbeat_seconds": self.settings.api_heartbeat.total_seconds(),
            "lease_seconds": self.settings.lease.total_seconds(),
            "sweep_seconds": self.settings.sweep.total_seconds(),
            "topics": self._topics(body),
            "max_runs": MAX_ELEMENTS,
            "max_sweep": MAX_SWEEP,
            "max_outcomes": MAX_ELEMENTS,
        }
        return JSONResponse(answer, HTTPStatus.CREATED)

    async def heartbeat(self, request: Request) -> Response:
        """Renew a lease; return the attempts to stop."""
        body, executor_id = await read_body(request, Heartbeat), _executor_id(request)
        stops = await self.workers.do(lambda state: state.executors.heartbeat(executor_id, stopping=body.stopping))
        signals = [{"run_id": str(each.run_id), "attempt": each.attempt, "kind": each.kind} for each in stops]
        return JSONResponse({"signals": signals})

    async def claim(self, request: Request) -> Response:
        """Claim runs."""
        body, executor_id = await read_body(request, ClaimRequest), _executor_id(request)
        claimed = await self.workers.do(lambda state: self._claim(state, executor_id, body))
        return JSONResponse({"started": [self._started(each, claimed) for each in claimed.started]})

    async def finish(self, request: Request) -> Response:
        """Record the outcomes of attempts."""
        body, executor_id = await read_body(request, OutcomesRequest), _executor_id(request)
        answers = await self.workers.do(lambda state: state.executors.finish(executor_id, body.outcomes))
        outcomes = [
            {"run_id": str(run_id), "attempt": attempt, "answer": answer}
            for (run_id, attempt), answer in answers.items()
        ]
        return JSONResponse({"outcomes": outcomes})

    async def leave(self, request: Request) -> Response:
        """Unregister an executor."""
        await read_body(request, Heartbeat)
        executor_id = _executor_id(request)
        await self.workers.do(lambda state: state.executors.leave(executor_id))
        return Response(status_code=HTTPStatus.NO_CONTENT)

    def _claim(self, state: WorkerState, executor_id: UUID, body: ClaimRequest) -> RemoteClaimResult:
        """Claim the runs whose messages a relay has signed. The others come by a sweep."""
        if body.runs:
            self.keys.refresh_aged(state.session, _KEYS_SECONDS)
        claims = [run.claim() for run in body.runs if run.is_accepted(self.check)]
        return state.executors.claim(RemoteClaim(executor_id, body.claim_id, claims, body.sweep, self.settings.sweep))

    def _topics(self, body: Registration) -> list[dict[str, str]]:
        names = [self.installation.topics.runs(queue, lane) for queue in body.queues for lane in Lane]
        return [{"topic": name, "group": f"{name}.executors"} for name in names]

    def _started(self, started: Started, claimed: RemoteClaimResult) -> dict[str, object]:
        remaining = None if started.schedule_to_close_at is None else started.schedule_to_close_at - started.started_at
        request = claimed.requests.get(started.run_id)
        return {
            "run_id": str(started.run_id),
            "attempt": started.attempt,
            "failed_attempts": started.failed_attempts,
            "lost_attempts": started.lost_attempts,
            "started_at": started.started_at.isoformat().replace("+00:00", "Z"),
            "schedule_to_close_remaining_seconds": (
                None if remaining is None else max(remaining, timedelta(0)).total_seconds()
            ),
            "task_token": task_token(self.installation.task_token_key, started.run_id, started.attempt),
            "request": None if request is None else b64encode(encode(request)).decode(),
        }


def _executor_id(request: Request) -> UUID:
    return cast("UUID", request.path_params["executor_id"])
