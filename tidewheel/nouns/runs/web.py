"""Runs on the web: REST's routes by hand, and the confirm page of a retry by filter."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from http import HTTPStatus
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from tidewheel.api_keys import Scope
from tidewheel.control.api.answers import (
    IDEMPOTENCY_KEY,
    LOCATION,
    TRACEPARENT,
    as_json_response,
    call,
    idempotency_key,
    location,
)
from tidewheel.control.api.authorization import Operator
from tidewheel.control.api.openapi import IN_ADDRESS, add_route, body_of, schema_of
from tidewheel.control.api.request_input import TenantQuery, read_verb
from tidewheel.control.api.workers import Workers
from tidewheel.control.reads.json_form import one_of
from tidewheel.control.reads.stored import read_stored_json
from tidewheel.doors.console import Confirm
from tidewheel.doors.rest import Route, Routes
from tidewheel.jobs.requests import RunCancel, RunRetry
from tidewheel.nouns.operation import field_values, operations
from tidewheel.nouns.runs.model import Attempt, RunDetail, RunSummary
from tidewheel.nouns.runs.operations import Runs
from tidewheel.nouns.runs.reads import RunList
from tidewheel.runs import RunState

_RUNS = "/api/v1/runs"
_ONE = f"{_RUNS}/{{run_id:uuid}}"


@dataclass(frozen=True, slots=True)
class Attempts:
    """The last hundred attempts that have ended, oldest first."""

    attempts: tuple[Attempt, ...]


@dataclass(frozen=True, slots=True)
class CancelledRun:
    """A run with a requested cancel, and its previous state."""

    run_id: UUID
    run_status: Annotated[str, one_of(RunState)]


@dataclass(frozen=True, slots=True)
class RetriedRun:
    """The new run of a retry, or the run whose next attempt is due now.

    For the latter, `run_status` is its previous state, and `unchanged` is true if the attempt was already due or has
    started.
    """

    run_id: UUID
    run_status: Annotated[str, one_of(RunState)] | None
    unchanged: bool


def with_attempts(found: RunDetail) -> dict[str, Any]:
    """Return the document of a run: stored JSON as JSON, and attempts without their output."""
    stored = {
        name: read_stored_json(name, getattr(found, name), f"run {found.run_id}")
        for name in ("progress", "checkpoint", "result")
    }
    return {**field_values(found), **stored, "attempts": _attempts(found)}


def _attempts(run: RunDetail) -> list[dict[str, object]]:
    names = [each.name for each in fields(Attempt)]
    return [
        {name: getattr(each, name) for name in names}
        | {"result": read_stored_json("result", each.result, f"run {run.run_id}")}
        for each in run.attempts
    ]


def _run(_: UUID, run: RunDetail) -> dict[str, Any]:
    return with_attempts(run)


def _attempts_of(_: UUID, run: RunDetail) -> dict[str, object]:
    return {"attempts": _attempts(run)}


def _schema_of_run() -> dict[str, Any]:
    schema, attempts = schema_of(RunDetail), schema_of(Attempts)
    definitions = {**schema.pop("$defs"), **attempts["$defs"]}
    del definitions["PastAttempt"]
    schema["properties"]["attempts"] |= attempts["properties"]["attempts"]
    definitions["RunWithAttempts"] = {**schema, "title": "RunWithAttempts"}
    return {"$ref": "#/components/schemas/RunWithAttempts", "$defs": definitions}


RUN: Mapping[str, Any] = _schema_of_run()
"""The schema of a run with its attempts, deadlines and retry chain."""

_OF_JOB = replace(operations(RunList)["list"], route="GET /api/v1/jobs/{key}/runs", name="list_job_runs")
RUN_LISTS: Routes = {
    _OF_JOB: Route(words="List the runs of a job, sorted by instant as in `listRuns`."),
}
_ATTEMPTS = replace(operations(Runs)["detail"], route=f"GET {_ONE}/attempts", name="list_run_attempts")
RUNS: Routes = {
    "detail": Route(schema=RUN, shape=_run),
    _ATTEMPTS: Route(
        schema=schema_of(Attempts), shape=_attempts_of,
        words="Return the attempts of a run that have ended.",
    ),
    "cancel": Route(
        shape=CancelledRun, body=RunCancel,
        words="Cancel a run in any state; the response contains its previous state.",
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class RunsApi:
    """The route of runs by hand: a retry, with a new run or without."""

    writes: Workers

    def add_to(self, router: APIRouter) -> None:
        """Add the route."""
        add_route(
            router, "POST", f"{_ONE}:retry", self.retry_run, scope=Scope.OPERATE, query=TenantQuery,
            headers=IDEMPOTENCY_KEY | TRACEPARENT, status=HTTPStatus.CREATED, also=HTTPStatus.OK, sets=LOCATION,
            answer=RetriedRun, body=body_of(RunRetry, without=IN_ADDRESS), sent={"delay": "10s"},
        )  # fmt: skip

    async def retry_run(self, request: Request, caller: Operator) -> Response:
        """Retry an ended run with a new run, or make the next `attempt` of a retrying run due now.

        The new run has the payload of the old one and its job's current version: 201. Without a new run: 200.
        """
        run_id, request_id = str(request.path_params["run_id"]), idempotency_key(request)
        sent = await read_verb(request, "run.retry", run_id=run_id)
        reply = await call(self.writes, caller, lambda each: each.request(sent, request_id))
        where = location(caller, f"{_RUNS}/{reply.run_id}")
        status = HTTPStatus.CREATED if reply.run_status is None else HTTPStatus.OK
        document = {"run_id": reply.run_id, "run_status": reply.run_status, "unchanged": reply.unchanged}
        return as_json_response(document, status, where)


def _lines(found: Sequence[RunSummary]) -> Sequence[str]:
    return [f"{each.run_id}  {each.key}  {each.error_type or each.status}" for each in found]


CONFIRMED = (Confirm(
    noun=Runs, verb="retry_failed", things="failed run", back="runs", not_back=("error_type",),
    one=("run", "run_id"),
    sentence=lambda first: "Each becomes a new run with its own payload, unless it has been retried already.",
    lines=_lines, values={"rate": "50"}, labels={"versions": "Version of the new runs"},
),)  # fmt: skip
