"""Executors in other languages: `/api/v1/executors`.

docs/wire-contract.md defines the order of their calls.
"""

import asyncio
from base64 import b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from http import HTTPStatus
from typing import Annotated, TypeVar, cast
from uuid import UUID

from fastapi import APIRouter
from pydantic import Field
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from tidewheel.audit import ALL_TENANTS
from tidewheel.control.api.answers import as_json_response
from tidewheel.control.api.authorization import KEY
from tidewheel.control.api.key_check import StoredKey
from tidewheel.control.api.models import (
    MAX_SWEEP,
    ClaimRequest,
    Heartbeat,
    OutcomesRequest,
    Registration,
    ReportedOutcome,
)
from tidewheel.control.api.openapi import add_route, body_of
from tidewheel.control.api.request_input import read_body
from tidewheel.control.api.workers import Turn, Workers, WorkerState
from tidewheel.executor.message_check import MessageCheck
from tidewheel.executor.remote_executors import (
    REFUSED,
    AttemptReport,
    Fence,
    RemoteClaim,
    RemoteClaimResult,
    StopSignal,
)
from tidewheel.jobs.strict_json import Json
from tidewheel.jobs.values import MAX_ELEMENTS
from tidewheel.message_signatures import MessageKeys
from tidewheel.nouns.api_keys.operations import ALL_QUEUES
from tidewheel.process.service import Shutdown
from tidewheel.runs import Lane
from tidewheel.schemas.codec import encode
from tidewheel.settings.services import ApiSettings
from tidewheel.transitions.claim import Started
from tidewheel.transitions.installation import Installation

T = TypeVar("T")

_LOCKED_SECONDS = 0.05  # until the next try of a row that another transaction has locked
_TRIES = 20
_ANSWERS = {REFUSED: "busy"}  # as the wire contract has them
_REGISTRATION: Json = {"name": "worker-1:7", "handlers": ["nightly-report"], "slots": 4}
_OUTCOME: Json = {
    "run_id": "019d3a1c-7f00-8123-8456-789abcdef012", "attempt": 1, "status": "succeeded", "result": {"rows": 7},
}  # fmt: skip
_KEYS_SECONDS = 1.0  # between two look-ups of the keys of run messages


@dataclass(frozen=True, slots=True)
class RunTopic:
    """A topic of run messages, and the group that its executors share."""

    topic: str
    group: str


@dataclass(frozen=True, slots=True)
class RegisteredExecutor:
    """A registered executor, with the intervals and limits that it keeps."""

    executor_id: Annotated[UUID, Field(description="Its id, which its further calls have in their address.")]
    heartbeat_seconds: Annotated[float, Field(description="The interval of its heartbeats.")]
    lease_seconds: Annotated[
        float, Field(description="The time after its last heartbeat at which its attempts count as lost.")
    ]
    sweep_seconds: Annotated[float, Field(description="The interval of its sweeps.")]
    topics: Annotated[tuple[RunTopic, ...], Field(description="The topics that it consumes.")]
    max_runs: Annotated[int, Field(description="The most runs of one claim.")]
    max_sweep: Annotated[int, Field(description="The most runs of one sweep.")]
    max_outcomes: Annotated[int, Field(description="The most outcomes of one report.")]


@dataclass(frozen=True, slots=True)
class Signals:
    """The attempts that the executor must stop."""

    signals: tuple[StopSignal, ...]


@dataclass(frozen=True, slots=True)
class StartedAttempt:
    """An attempt that the executor owns."""

    run_id: Annotated[UUID, Field(description="Its run.")]
    attempt: Annotated[int, Field(description="Its number.")]
    failed_attempts: Annotated[int, Field(description="The number of earlier attempts that failed.")]
    lost_attempts: Annotated[int, Field(description="The number of earlier attempts that were lost.")]
    started_at: Annotated[datetime, Field(description="The instant of its start.")]
    schedule_to_close_remaining_seconds: Annotated[
        float | None, Field(description="The rest of the run's `schedule_to_close`.")
    ]
    task_token: Annotated[str, Field(description="Authorizes calls about this attempt.")]
    request: Annotated[str | None, Field(description="The run's message in base 64, if the claim did not name it.")]


@dataclass(frozen=True, slots=True)
class StartedAttempts:
    """The attempts that a claim has started."""

    started: tuple[StartedAttempt, ...]


@dataclass(frozen=True, slots=True)
class RecordedOutcome:
    """The answer to one outcome."""

    run_id: Annotated[UUID, Field(description="Its run.")]
    attempt: Annotated[int, Field(description="Its attempt.")]
    answer: Annotated[str, Field(description="`recorded`, `superseded` or `busy`; repeat the report of a busy one.")]


@dataclass(frozen=True, slots=True)
class RecordedOutcomes:
    """The answers to outcomes."""

    outcomes: tuple[RecordedOutcome, ...]


@dataclass(frozen=True, slots=True)
class ExecutorsApi:
    """Calls of executors."""

    workers: Workers
    installation: Installation
    settings: ApiSettings
    keys: MessageKeys
    check: MessageCheck
    stop: Shutdown

    def add_to(self, router: APIRouter) -> None:
        """Add the routes."""
        one = "/api/v1/executors/{executor_id:uuid}"
        heartbeat = body_of(Heartbeat)

        route = partial(add_route, router, "POST", scope=None, shows="executorToken")
        route("/api/v1/executors", self.register_executor, status=HTTPStatus.CREATED, answer=RegisteredExecutor,
              body=body_of(Registration), sent=_REGISTRATION)  # fmt: skip
        route(f"{one}:heartbeat", self.heartbeat_executor, body=heartbeat, sent={}, answer=Signals)  # fmt: skip
        route(f"{one}:claim", self.claim_runs, body=body_of(ClaimRequest), sent={"claim_id": 1, "sweep": 10},
              answer=StartedAttempts)  # fmt: skip
        route(f"{one}:finish", self.finish_attempts, body=body_of(OutcomesRequest), sent={"outcomes": [_OUTCOME]},
              answer=RecordedOutcomes)  # fmt: skip
        route(f"{one}:leave", self.unregister_executor, status=HTTPStatus.NO_CONTENT, body=heartbeat, sent={},
              answer={})  # fmt: skip

    async def register_executor(self, request: Request) -> Response:
        """Register an executor."""
        body, key = await read_body(request, Registration), _key(request)
        acts_for = _tenant(key)
        if key is not None and key.queues != [ALL_QUEUES] and (others := set(body.queues) - set(key.queues or ())):
            detail = f"the key {key.key_id} is not valid for queue {', '.join(sorted(others))}; use a key that is"
            raise HTTPException(HTTPStatus.FORBIDDEN, detail)
        key_id = None if key is None else key.key_id
        executor_id = await self.workers.do(
            lambda state: state.executors.register(
                body.name, body.queues, body.handlers, body.slots, lease=self.settings.lease, key_id=key_id,
                acts_for=acts_for,
            ),
            _turn(key, "new executors"),
        )  # fmt: skip
        registered = RegisteredExecutor(
            executor_id,
            heartbeat_seconds=self.settings.api_heartbeat.total_seconds(),
            lease_seconds=self.settings.lease.total_seconds(),
            sweep_seconds=self.settings.sweep.total_seconds(),
            topics=self._topics(body) if acts_for is None else (),
            max_runs=MAX_ELEMENTS,
            max_sweep=MAX_SWEEP,
            max_outcomes=MAX_ELEMENTS,
        )
        return as_json_response(registered, HTTPStatus.CREATED)

    async def heartbeat_executor(self, request: Request) -> Response:
        """Renew a lease; return the attempts to stop."""
        body = await read_body(request, Heartbeat)
        stops = await self._do(
            request, lambda state, own, key_id: state.executors.heartbeat(own, stopping=body.stopping, key_id=key_id)
        )
        return as_json_response(Signals(tuple(stops)))

    async def claim_runs(self, request: Request) -> Response:
        """Claim runs."""
        body, tenant = await read_body(request, ClaimRequest), _tenant(_key(request))
        claimed = await self._do(request, lambda state, own, key_id: self._claim(state, own, body, key_id, tenant))
        return as_json_response(StartedAttempts(tuple(self._started(each, claimed) for each in claimed.started)))

    async def finish_attempts(self, request: Request) -> Response:
        """Record the outcomes of attempts."""
        body = await read_body(request, OutcomesRequest)
        answers: dict[Fence, str] = {}
        left: Sequence[ReportedOutcome] = body.outcomes
        for tried in range(_TRIES):
            if tried:
                await asyncio.sleep(_LOCKED_SECONDS)
            answers |= await self._do(request, partial(_finish, left))
            left = [each for each in left if answers[each.fence] == "busy"]
            if not left or self.stop.requested():
                break
        found = (RecordedOutcome(*fence, _ANSWERS.get(answer, answer)) for fence, answer in answers.items())
        return as_json_response(RecordedOutcomes(tuple(found)))

    async def unregister_executor(self, request: Request) -> Response:
        """Unregister an executor."""
        await read_body(request, Heartbeat)
        await self._do(request, lambda state, own, key_id: state.executors.leave(own, key_id=key_id))
        return Response(status_code=HTTPStatus.NO_CONTENT)

    async def _do(self, request: Request, work: Callable[[WorkerState, UUID, str | None], T]) -> T:
        """Do work of the executor in the address, with the id of the key that its call has shown."""
        own, key = cast("UUID", request.path_params["executor_id"]), _key(request)
        key_id = None if key is None else key.key_id
        return await self.workers.do(lambda state: work(state, own, key_id), _turn(key, str(own)))

    def _claim(
        self, state: WorkerState, executor_id: UUID, body: ClaimRequest, key_id: str | None, tenant: str | None
    ) -> RemoteClaimResult:
        """Claim the runs whose messages a relay has signed. The others come by a sweep.

        An executor of one tenant consumes no topic, whose messages are of all: it sweeps runs as soon as they are due.
        """
        if body.runs:
            self.keys.refresh_aged(state.session, _KEYS_SECONDS)
        claims = [run.claim() for run in body.runs if run.is_accepted(self.check)]
        min_age = self.settings.sweep if tenant is None else timedelta(0)
        return state.executors.claim(RemoteClaim(executor_id, body.claim_id, claims, body.sweep, min_age, key_id))

    def _topics(self, body: Registration) -> tuple[RunTopic, ...]:
        names = [self.installation.topics.runs(queue, lane) for queue in body.queues for lane in Lane]
        return tuple(RunTopic(name, f"{name}.executors") for name in names)

    def _started(self, started: Started, claimed: RemoteClaimResult) -> StartedAttempt:
        remaining = None if started.schedule_to_close_at is None else started.schedule_to_close_at - started.started_at
        request = claimed.requests.get(started.run_id)
        return StartedAttempt(
            started.run_id,
            started.attempt,
            started.failed_attempts,
            started.lost_attempts,
            started.started_at,
            None if remaining is None else max(remaining, timedelta(0)).total_seconds(),
            self.installation.task_tokens.sign(started.run_id, started.attempt),
            None if request is None else b64encode(encode(request)).decode(),
        )


def _finish(
    reports: Sequence[AttemptReport], state: WorkerState, executor_id: UUID, key_id: str | None
) -> dict[Fence, str]:
    return state.executors.finish(executor_id, reports, key_id=key_id)


def _key(request: Request) -> StoredKey | None:
    """Return the API key of a call; None if it has shown the token of all."""
    return cast("StoredKey | None", request.scope.get(KEY))


def _turn(key: StoredKey | None, executor: str) -> Turn:
    """Return the turn of a key's tenant; for the token of all, that of an executor."""
    return Turn(executor) if key is None else Turn(key.tenant, key.key_id)


def _tenant(key: StoredKey | None) -> str | None:
    """Return the tenant of a key; None for all of them."""
    return None if key is None or key.tenant == ALL_TENANTS else key.tenant
