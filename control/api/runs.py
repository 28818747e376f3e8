"""Runs: `/api/v1/runs`. Reads by control/reads, cancel and retry by the requests of intake."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from functools import partial
from http import HTTPStatus
from typing import Annotated, Any, Literal, cast
from uuid import UUID

from fastapi import APIRouter
from pydantic import BeforeValidator, Field
from starlette.requests import Request
from starlette.responses import Response

from tidewheel.api_keys import Scope
from tidewheel.control.api import examples
from tidewheel.control.api.answers import (
    IDEMPOTENCY_KEY,
    LOCATION,
    TRACEPARENT,
    answer,
    call,
    encoded,
    idempotency_key,
    location,
)
from tidewheel.control.api.bodies import read_verb
from tidewheel.control.api.callers import Caller, Operator, Reader
from tidewheel.control.api.json_schemas import IN_ADDRESS, body_of, one_level, schema_of
from tidewheel.control.api.openapi import add_route
from tidewheel.control.api.queries import (
    Cursors,
    LabelFilter,
    PageQuery,
    TenantQuery,
    read_key,
    read_query,
    whole,
)
from tidewheel.control.api.workers import Workers
from tidewheel.control.archive.show import show_run_anywhere
from tidewheel.control.client.connection import Connection
from tidewheel.control.client.logs import read_logs
from tidewheel.control.reads.json_form import one_of
from tidewheel.control.reads.run_detail import PastAttempt, RunDetail
from tidewheel.control.reads.runs import RunFilter, RunSummary, list_runs
from tidewheel.control.reads.stored import read_stored_json
from tidewheel.jobs.requests import RunCancel, RunRetry
from tidewheel.jobs.values import Instant, Key, Queue, format_timestamp
from tidewheel.runs import AttemptOutcome, RunState

_RUNS = "/api/v1/runs"
_ONE = f"{_RUNS}/{{run_id:uuid}}"

Status = Literal[
    "scheduled", "queued", "buffered", "running", "waiting", "retrying", "cancelling", "blocked", "succeeded", "failed",
    "timed_out", "cancelled", "skipped",
]  # fmt: skip


class RunsOfJobQuery(PageQuery):
    """Filter of a list of one job's runs.

    Attributes:
        status: Only runs in this state.
        label: Only runs of jobs that have this label now, as name=value; repeatable. It needs `job` or `since`.
        run_label: Only runs with this label, their job's or a trigger's instead; repeatable. It needs `job` or `since`.
        lane: Only runs of this lane.
        queue: Only runs of this queue.
        cause: Only runs of this cause.
        concurrency_key: Only runs with this key.
        ordering_key: Only open runs with this key.
        since: From this instant on.
        until: Up to this instant.
    """

    status: Status | None = None
    label: LabelFilter = Field(default_factory=dict[str, str])
    run_label: LabelFilter = Field(default_factory=dict[str, str])
    lane: Literal["critical", "standard", "batch"] | None = None
    queue: Queue | None = None
    cause: Literal["timer", "trigger", "backfill", "workflow", "retry"] | None = None
    concurrency_key: Key | None = None
    ordering_key: Key | None = None
    since: Instant | None = None
    until: Instant | None = None


class RunsQuery(RunsOfJobQuery):
    """Filter of a list of runs.

    Attributes:
        job: Only runs of the job with this key.
    """

    job: Key | None = None


class LogsQuery(TenantQuery):
    """Query of the output of a run.

    Attributes:
        attempt: Only this attempt.
    """

    attempt: Annotated[int, Field(ge=0, le=2**31 - 1), BeforeValidator(whole)] | None = None


@dataclass(frozen=True, slots=True)
class RunsPage:
    """Runs whose time has come, the latest first, and then those whose time is ahead.

    `at_least` is true if there may be more than `total`.
    """

    runs: tuple[RunSummary, ...]
    next_cursor: str | None
    total: int
    at_least: bool


@dataclass(frozen=True, slots=True)
class Attempt:
    """An attempt that has ended."""

    attempt: int
    outcome: Annotated[str, one_of(AttemptOutcome)]
    executor_id: UUID | None
    started_at: datetime | None
    finished_at: datetime
    error_type: str | None
    error_message: str | None
    claimed_from: str | None
    trace: str | None
    output_bytes: int | None
    result: object


@dataclass(frozen=True, slots=True)
class Attempts:
    """The last hundred attempts that have ended, the oldest first."""

    attempts: tuple[Attempt, ...]


RUN: Mapping[str, Any] = one_level(
    RunDetail, "summary", "RunWithAttempts", progress={}, checkpoint={}, result={},
    attempts=schema_of(Attempts)["properties"]["attempts"],
)  # fmt: skip
"""The schema of a run with its attempts, deadlines and retry chain."""


@dataclass(frozen=True, slots=True)
class Log:
    """The output of an attempt; `dropped_bytes` before it are no longer stored."""

    attempt: int
    outcome: str | None
    dropped_bytes: int
    output: str


@dataclass(frozen=True, slots=True)
class Logs:
    """The output of a run's attempts, the oldest first."""

    logs: tuple[Log, ...]


@dataclass(frozen=True, slots=True)
class CancelledRun:
    """A run whose cancel is requested, with the state it was in."""

    run_id: UUID
    run_status: Annotated[str, one_of(RunState)]


@dataclass(frozen=True, slots=True)
class RetriedRun:
    """The new run of a retry, or the run whose next attempt is due now.

    Of the latter, `run_status` is the state it was in, and `unchanged` is true if the attempt was due or has started.
    """

    run_id: UUID
    run_status: Annotated[str, one_of(RunState)] | None
    unchanged: bool


@dataclass(frozen=True, slots=True)
class RunsApi:
    """Calls about runs."""

    reads: Workers
    writes: Workers
    archive: str | None

    def add_to(self, router: APIRouter) -> None:
        """Add the routes."""
        read = partial(add_route, router, "GET", scope=Scope.READ)
        listed = partial(read, answer=RunsPage, example=examples.RUNS)
        listed(_RUNS, self.list_runs, query=RunsQuery)
        listed("/api/v1/jobs/{key}/runs", self.list_job_runs, query=RunsOfJobQuery)
        read(_ONE, self.get_run, query=TenantQuery, answer=RUN, example=examples.RUN)
        read(f"{_ONE}/attempts", self.list_run_attempts, query=TenantQuery, answer=Attempts, example=examples.ATTEMPTS)
        read(f"{_ONE}/logs", self.get_run_logs, query=LogsQuery, answer=Logs, example=examples.LOGS)
        verb = partial(add_route, router, "POST", scope=Scope.OPERATE, query=TenantQuery, headers=IDEMPOTENCY_KEY)
        verb(f"{_ONE}:cancel", self.cancel_run, answer=CancelledRun, example=examples.CANCELLED,
             body=body_of(RunCancel, without=IN_ADDRESS), sent={"reason": "no longer needed"})  # fmt: skip
        verb(f"{_ONE}:retry", self.retry_run, headers=IDEMPOTENCY_KEY | TRACEPARENT, status=HTTPStatus.CREATED,
             also=HTTPStatus.OK, sets=LOCATION, answer=RetriedRun,
             example={"run_id": examples.RUN_ID, "run_status": None, "unchanged": False},
             body=body_of(RunRetry, without=IN_ADDRESS), sent={"delay": "10s"})  # fmt: skip

    async def list_runs(self, request: Request, caller: Reader) -> Response:
        """List runs: those whose time has come, the latest first, and then those whose time is ahead."""
        query = read_query(request, RunsQuery)
        return await self._list(request, caller, query, query.job)

    async def list_job_runs(self, request: Request, caller: Reader) -> Response:
        """List the runs of a job, in the order of `listRuns` by their instants."""
        return await self._list(request, caller, read_query(request, RunsOfJobQuery), read_key(request))

    async def get_run(self, request: Request, caller: Reader) -> Response:
        """Return one run, with its attempts, deadlines and retry chain, from the archive where it is set."""
        read_query(request, TenantQuery)
        run_id = _run_id(request)
        return await answer(self.reads, caller, lambda each: with_attempts(self._show(each, caller, run_id)))

    async def list_run_attempts(self, request: Request, caller: Reader) -> Response:
        """Return the attempts of a run that have ended."""
        read_query(request, TenantQuery)
        run_id = _run_id(request)
        return await answer(
            self.reads, caller, lambda each: Attempts(_attempts(run_id, self._show(each, caller, run_id).attempts))
        )

    async def get_run_logs(self, request: Request, caller: Reader) -> Response:
        """Return the stored output of a run's attempts, 64 KiB of each."""
        query, run_id = read_query(request, LogsQuery), _run_id(request)

        def read(connection: Connection) -> Logs:
            pieces = read_logs(connection, run_id, query.attempt)
            return Logs(
                tuple(
                    Log(each.attempt, each.outcome, each.dropped_bytes, each.output.decode(errors="replace"))
                    for each in pieces
                )
            )

        return await answer(self.reads, caller, read)

    async def cancel_run(self, request: Request, caller: Operator) -> Response:
        """Cancel a run in any state; the answer has the state it was in."""
        run_id, request_id = _run_id(request), idempotency_key(request)
        sent = await read_verb(request, "run.cancel", run_id=str(run_id))

        def change(connection: Connection) -> CancelledRun:
            return CancelledRun(run_id, connection.request(sent, request_id).run_status or "")

        return await answer(self.writes, caller, change)

    async def retry_run(self, request: Request, caller: Operator) -> Response:
        """Create a new run of one that has ended, or make the next `attempt` of a retrying run due now.

        The new run has the payload of the old one and its job's current version: 201. Without a new run: 200.
        """
        run_id, request_id = _run_id(request), idempotency_key(request)
        sent = await read_verb(request, "run.retry", run_id=str(run_id))
        reply = await call(self.writes, caller, lambda each: each.request(sent, request_id))
        where = location(caller, f"{_RUNS}/{reply.run_id}")
        status = HTTPStatus.CREATED if reply.run_status is None else HTTPStatus.OK
        document = {"run_id": reply.run_id, "run_status": reply.run_status, "unchanged": reply.unchanged}
        return Response(encoded(document), status, where, media_type="application/json")

    def _show(self, connection: Connection, caller: Caller, run_id: UUID) -> RunDetail:
        return show_run_anywhere(connection.snapshot, self.archive, caller.tenant, run_id)

    async def _list(self, request: Request, caller: Caller, query: RunsOfJobQuery, key: str | None) -> Response:
        cursors = Cursors.of(request, query, caller.tenant)
        place = cursors.read(Instant, Instant, UUID)
        after = None if place is None else "/".join((*map(format_timestamp, place[:2]), str(place[2])))
        filters = RunFilter(
            query.status, key, query.label or None, query.run_label or None, query.lane, query.queue, query.cause,
            query.concurrency_key, query.ordering_key, query.since, query.until,
        )  # fmt: skip

        def read(connection: Connection) -> RunsPage:
            with connection.snapshot() as reading:
                page = list_runs(reading, caller.tenant, filters, after=after, limit=query.limit)
            cursor = cursors.write(*(page.next_cursor.split("/") if page.next_cursor else [None]))
            return RunsPage(page.runs, cursor, page.total, page.at_least)

        return await answer(self.reads, caller, read)


def _run_id(request: Request) -> UUID:
    return cast("UUID", request.path_params["run_id"])


def with_attempts(found: RunDetail) -> dict[str, Any]:
    """Return the document of a run: its summary and details on one level, stored JSON as JSON."""
    document: dict[str, Any] = {each.name: getattr(found.summary, each.name) for each in fields(found.summary)}
    document |= {each.name: getattr(found, each.name) for each in fields(found) if each.name != "summary"}
    document |= {
        name: read_stored_json(name, document[name], f"run {found.summary.run_id}")
        for name in ("progress", "checkpoint", "result")
    }
    return {**document, "attempts": _attempts(found.summary.run_id, found.attempts)}


def _attempts(run_id: UUID, found: Sequence[PastAttempt]) -> tuple[Attempt, ...]:
    attempts: list[Attempt] = []
    for each in found:
        values: dict[str, Any] = {**asdict(each), "result": read_stored_json("result", each.result, f"run {run_id}")}
        del values["output"]
        attempts.append(Attempt(**values))
    return tuple(attempts)
