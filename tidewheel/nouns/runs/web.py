"""Runs on the web: REST's routes by hand, and the confirm page of a retry by filter."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import partial
from http import HTTPStatus
from typing import Annotated, Any, cast
from uuid import UUID

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from tidewheel.api_keys import Scope
from tidewheel.control.api.answers import (
    IDEMPOTENCY_KEY,
    LOCATION,
    TRACEPARENT,
    answer,
    as_json_response,
    call,
    idempotency_key,
    location,
)
from tidewheel.control.api.authorization import Caller, Operator, Reader
from tidewheel.control.api.openapi import IN_ADDRESS, add_route, body_of, schema_of
from tidewheel.control.api.request_input import Cursors, PageQuery, TenantQuery, read_key, read_query, read_verb
from tidewheel.control.api.workers import Workers
from tidewheel.control.client.connection import Connection
from tidewheel.control.reads.json_form import one_of
from tidewheel.control.reads.stored import read_stored_json
from tidewheel.doors.address import after_of, next_cursor, query_of
from tidewheel.doors.console import Confirm
from tidewheel.doors.rest import Route
from tidewheel.jobs.requests import RunCancel, RunRetry
from tidewheel.nouns.operation import field_values, operations
from tidewheel.nouns.runs.model import Attempt, RunDetail, RunPage, RunSummary
from tidewheel.nouns.runs.operations import Runs
from tidewheel.nouns.runs.reads import RunList
from tidewheel.runs import RunState
from tidewheel.schemas.generated.records import Reply

_RUNS = "/api/v1/runs"
_ONE = f"{_RUNS}/{{run_id:uuid}}"
_LIST = operations(RunList)["list"]
_OF_JOB, _NAMES = query_of(_LIST, [each for each in _LIST.parameters if each.name != "key"])


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


def _schema_of_run() -> dict[str, Any]:
    schema, attempts = schema_of(RunDetail), schema_of(Attempts)
    definitions = {**schema.pop("$defs"), **attempts["$defs"]}
    del definitions["PastAttempt"]
    schema["properties"]["attempts"] |= attempts["properties"]["attempts"]
    definitions["RunWithAttempts"] = {**schema, "title": "RunWithAttempts"}
    return {"$ref": "#/components/schemas/RunWithAttempts", "$defs": definitions}


RUN: Mapping[str, Any] = _schema_of_run()
"""The schema of a run with its attempts, deadlines and retry chain."""

RUNS: Mapping[str, Route] = {
    "detail": Route(schema=RUN, shape=with_attempts),
    "retry_failed": Route({"job": "nightly", "since": "2026-11-20T01:00:00Z", "rate": 10}),
    "cancel_matching": Route({"key": "nightly", "reason": "wrong data"}),
    "cancellations": Route(),
    "cancellation": Route(),
    "logs": Route(),
}


@dataclass(frozen=True, slots=True)
class RunsApi:
    """Routes of runs that are written by hand."""

    reads: Workers
    writes: Workers

    def add_to(self, router: APIRouter) -> None:
        """Add the routes."""
        read = partial(add_route, router, "GET", scope=Scope.READ)
        read("/api/v1/jobs/{key}/runs", self.list_job_runs, query=_OF_JOB, answer=RunPage)
        read(f"{_ONE}/attempts", self.list_run_attempts, query=TenantQuery, answer=Attempts)
        verb = partial(add_route, router, "POST", scope=Scope.OPERATE, query=TenantQuery, headers=IDEMPOTENCY_KEY)
        verb(f"{_ONE}:cancel", self.cancel_run, answer=CancelledRun,
             body=body_of(RunCancel, without=IN_ADDRESS), sent={"reason": "no longer needed"})  # fmt: skip
        verb(f"{_ONE}:retry", self.retry_run, headers=IDEMPOTENCY_KEY | TRACEPARENT, status=HTTPStatus.CREATED,
             also=HTTPStatus.OK, sets=LOCATION, answer=RetriedRun,
             body=body_of(RunRetry, without=IN_ADDRESS), sent={"delay": "10s"})  # fmt: skip

    async def list_job_runs(self, request: Request, caller: Reader) -> Response:
        """List the runs of a job, sorted by instant as in `listRuns`."""
        query, key = cast("PageQuery", read_query(request, _OF_JOB)), read_key(request)
        cursors = Cursors.of(request, query, caller.tenant)
        filters = {name: getattr(query, spoken) for name, spoken in _NAMES.items()}
        after = after_of(cursors, _LIST)

        def read(connection: Connection) -> RunPage:
            page = RunList(connection).list(key=key, after=after, **filters)
            return RunPage(page.runs, next_cursor(cursors, page.next_cursor), page.total, page.at_least)

        return await answer(self.reads, caller, read)

    async def list_run_attempts(self, request: Request, caller: Reader) -> Response:
        """Return the attempts of a run that have ended."""
        read_query(request, TenantQuery)
        run_id = _run_id(request)
        return await answer(self.reads, caller, lambda each: {"attempts": _attempts(Runs(each).detail(run_id))})

    async def cancel_run(self, request: Request, caller: Operator) -> Response:
        """Cancel a run in any state; the response contains its previous state."""
        reply = await self._request(request, caller, "run.cancel")
        return as_json_response(CancelledRun(_run_id(request), reply.run_status or ""))

    async def retry_run(self, request: Request, caller: Operator) -> Response:
        """Retry an ended run with a new run, or make the next `attempt` of a retrying run due now.

        The new run has the payload of the old one and its job's current version: 201. Without a new run: 200.
        """
        reply = await self._request(request, caller, "run.retry")
        where = location(caller, f"{_RUNS}/{reply.run_id}")
        status = HTTPStatus.CREATED if reply.run_status is None else HTTPStatus.OK
        document = {"run_id": reply.run_id, "run_status": reply.run_status, "unchanged": reply.unchanged}
        return as_json_response(document, status, where)

    async def _request(self, request: Request, caller: Caller, kind: str) -> Reply:
        sent, request_id = await read_verb(request, kind, run_id=str(_run_id(request))), idempotency_key(request)
        return await call(self.writes, caller, lambda each: each.request(sent, request_id))


def _run_id(request: Request) -> UUID:
    return cast("UUID", request.path_params["run_id"])


def _line(each: RunSummary) -> str:
    return f"{each.run_id}  {each.key}  {each.error_type or each.status}"


RETRY = Confirm(
    noun=Runs, verb="retry_failed", things="failed run", back="runs", not_back=("error_type",),
    one=("run", "run_id"),
    sentence="Each becomes a new run with its own payload, unless it has been retried already.",
    line=_line, done="retried", values={"rate": "50"},
    labels={"rate": "How many per second at most", "versions": "Version of the new runs"},
)  # fmt: skip
