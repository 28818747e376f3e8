"""The overview: the present of a tenant, the state of the installation, and what a text names.

The checks of doctor run on request; each process keeps its last diagnosis.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Annotated, Literal
from uuid import UUID

from fastapi import APIRouter
from pydantic import AfterValidator, BeforeValidator, Field
from starlette.requests import Request
from starlette.responses import Response

from tidewheel.activity import Stage
from tidewheel.api_keys import Scope
from tidewheel.control.api.answers import answer, answer_read, as_json_response, call, fleet_of
from tidewheel.control.api.authorization import Admin, Caller, Reader, ensure_all_tenants
from tidewheel.control.api.openapi import add_route
from tidewheel.control.api.request_input import (
    Cursors,
    Flag,
    LimitQuery,
    PageQuery,
    TenantQuery,
    read_body,
    read_query,
    whole,
)
from tidewheel.control.api.workers import Workers
from tidewheel.control.ask import Answer, ask
from tidewheel.control.client.connection import Connection
from tidewheel.control.doctor.doctor import Diagnosis, Doctor
from tidewheel.control.reads.fleet import (
    ExecutorSummary,
    FleetStatus,
    ShardOwner,
    list_executors,
    list_shards,
    read_status,
)
from tidewheel.control.reads.now import Now, read_now_of
from tidewheel.control.reads.workload import (
    ActivityFigures,
    Backlog,
    SlowRun,
    UpcomingJobs,
    read_activity,
    read_open_runs,
    read_upcoming,
    slowest_runs,
)
from tidewheel.errors import refuse
from tidewheel.jobs.validation import StrictModel
from tidewheel.jobs.values import MAX_TEXT, Instant, Queue, one_line
from tidewheel.postgres.database_clock import read_now
from tidewheel.postgres.session import Conn

MAX_BINS = 1000
_HOUR = timedelta(hours=1)

_DOCTOR = "/api/v1/doctor"
_WAIT_SECONDS = 60.0  # for the end of the checks; then the answer has the diagnosis before


class ActivityQuery(TenantQuery):
    """Query of the figures of ended runs.

    Attributes:
        since: The start of the first bin; an hour ago by default.
        until: The end of the last bin; now by default.
        step: The length of a bin in seconds. Figures older than 2 hours have minutes, those older than 2 days hours.
        stages: True adds the lateness by stage.
        queue: Only runs of this queue.
        lane: Only runs of this lane.
    """

    since: Instant | None = None
    until: Instant | None = None
    step: Annotated[int, Field(ge=5, le=86_400), BeforeValidator(whole)] = 60
    stages: Flag = False
    queue: Queue | None = None
    lane: Literal["critical", "standard", "batch"] | None = None


class UpcomingQuery(TenantQuery):
    """Query of the timers that come due."""

    until: Annotated[Instant | None, Field(description="The end of the last bin; an hour ahead by default.")] = None
    step: Annotated[
        int, Field(ge=1, le=86_400), BeforeValidator(whole), Field(description="The length of a bin in seconds.")
    ] = 60


class SlowestQuery(LimitQuery):
    """Query of the slowest runs."""

    since: Annotated[
        Instant | None, Field(description="Only runs that ended at this instant or later; a day ago by default.")
    ] = None
    until: Annotated[Instant | None, Field(description="Only runs that ended before this instant; now by default.")] = (
        None
    )


@dataclass(frozen=True, slots=True)
class BacklogPage:
    """Due runs that have not started, by queue and lane, oldest first."""

    backlog: tuple[Backlog, ...]


@dataclass(frozen=True, slots=True)
class SlowestRuns:
    """The slowest runs, slowest first."""

    runs: tuple[SlowRun, ...]


@dataclass(frozen=True, slots=True)
class ExecutorsPage:
    """Executors in the order of their ids."""

    executors: tuple[ExecutorSummary, ...]
    next_cursor: str | None


@dataclass(frozen=True, slots=True)
class Shards:
    """Every shard with its owner."""

    shards: tuple[ShardOwner, ...]


class AskQuery(TenantQuery):
    """A text.

    Attributes:
        q: A run id, also as `01a1f866…44d1`, a dead letter such as `#4711`, a key, or a part of one.
    """

    q: Annotated[str, AfterValidator(one_line(MAX_TEXT))]


@dataclass(frozen=True, slots=True)
class OverviewApi:
    """Calls about the present of a tenant, and about the whole installation for callers of all tenants."""

    reads: Workers
    doctor: Doctor
    shards: int

    def add_to(self, router: APIRouter) -> None:
        """Add the routes."""
        read = partial(add_route, router, "GET", scope=Scope.READ)
        read("/api/v1/now", self.get_now, query=TenantQuery, answer=Now, example={"kind": "failing_job"})
        read("/api/v1/activity", self.get_activity, query=ActivityQuery, answer=ActivityFigures)
        read("/api/v1/upcoming", self.get_upcoming, query=UpcomingQuery, answer=UpcomingJobs)
        read("/api/v1/backlog", self.get_backlog, query=TenantQuery, answer=BacklogPage)
        read("/api/v1/runs/slowest", self.list_slowest_runs, query=SlowestQuery, answer=SlowestRuns)
        read("/api/v1/ask", self.ask, query=AskQuery, answer=Answer, example={"kind": "job", "target": "nightly"})
        read("/api/v1/executors", self.list_executors, query=PageQuery, answer=ExecutorsPage)
        read("/api/v1/shards", self.list_shards, query=TenantQuery, answer=Shards)
        operate = partial(add_route, router, scope=Scope.ADMIN, query=TenantQuery)
        operate("GET", "/api/v1/status", self.get_status, answer=FleetStatus)
        diagnose = partial(operate, answer=Diagnosis)
        diagnose("GET", _DOCTOR, self.get_diagnosis)
        diagnose("POST", f"{_DOCTOR}:run", self.run_doctor)

    async def get_now(self, request: Request, caller: Reader) -> Response:
        """Return what needs attention, what is due, what is running, and what ended in the last hour.

        A caller with the scope admin for all tenants also gets the findings about the installation.
        """
        read_query(request, TenantQuery)
        return await answer(self.reads, caller, lambda connection: now_of(connection, caller, self.shards))

    async def get_activity(self, request: Request, caller: Reader) -> Response:
        """Return ended runs by bin and state, with their lateness by stage."""
        query = read_query(request, ActivityQuery)

        def read(reading: Conn, now: datetime) -> ActivityFigures:
            until = query.until or now
            edges = edges_of(query.since or until - _HOUR, until, timedelta(seconds=query.step))
            stages = tuple(Stage) if query.stages else ()
            return read_activity(reading, caller.tenant, edges, stages, queue=query.queue, lane=query.lane)

        return await self._answer(caller, read)

    async def get_upcoming(self, request: Request, caller: Reader) -> Response:
        """Return the jobs whose timers come due, by bin."""
        query = read_query(request, UpcomingQuery)

        def read(reading: Conn, now: datetime) -> UpcomingJobs:
            edges = edges_of(now, query.until or now + _HOUR, timedelta(seconds=query.step))
            return read_upcoming(reading, caller.tenant, self.shards, edges)

        return await self._answer(caller, read)

    async def get_backlog(self, request: Request, caller: Reader) -> Response:
        """Return due runs that have not started, by queue and lane, and why the oldest of each waits."""
        read_query(request, TenantQuery)
        return await self._answer(
            caller, lambda reading, _: BacklogPage(read_open_runs(reading, caller.tenant).backlogs)
        )

    async def list_slowest_runs(self, request: Request, caller: Reader) -> Response:
        """List the runs with the longest last attempts, slowest first.

        The list is a sample: the three slowest runs of every 5 seconds, after 2 hours of every minute, after 2 days of
        every hour.
        """
        query = read_query(request, SlowestQuery)

        def read(reading: Conn, now: datetime) -> SlowestRuns:
            until = query.until or now + _HOUR
            since = query.since or now - 24 * _HOUR
            return SlowestRuns(slowest_runs(reading, caller.tenant, since, until, query.limit))

        return await self._answer(caller, read)

    async def ask(self, request: Request, caller: Reader) -> Response:
        """Find a run, a dead letter or a job by id or key, or by a part of one."""
        query = read_query(request, AskQuery)
        return await answer_read(self.reads, caller, lambda reading: ask(reading, caller.tenant, query.q))

    async def list_executors(self, request: Request, caller: Reader) -> Response:
        """List executors with their handlers; requires the rights of all tenants."""
        ensure_all_tenants(caller, Scope.READ)
        query = read_query(request, PageQuery)
        cursors = Cursors.of(request, query, caller.tenant)
        [after] = cursors.read(UUID) or [None]

        def read(reading: Conn) -> ExecutorsPage:
            found = list_executors(reading, after=after, limit=query.limit + 1)
            page = found[: query.limit]
            return ExecutorsPage(tuple(page), cursors.write(page[-1].executor_id) if len(found) > len(page) else None)

        return await answer_read(self.reads, caller, read, all_tenants=True)

    async def list_shards(self, request: Request, caller: Reader) -> Response:
        """Return each shard with its scheduler; requires the rights of all tenants."""
        ensure_all_tenants(caller, Scope.READ)
        read_query(request, TenantQuery)
        return await answer_read(
            self.reads, caller, lambda reading: Shards(tuple(list_shards(reading, self.shards))), all_tenants=True
        )

    async def get_diagnosis(self, request: Request, caller: Admin) -> Response:
        """Return the last diagnosis of this process; requires the rights of all tenants."""
        ensure_all_tenants(caller)
        read_query(request, TenantQuery)
        return await answer(self.reads, caller, lambda _: self.doctor.last())

    async def run_doctor(self, request: Request, caller: Admin) -> Response:
        """Run the checks of doctor and wait for them; reuse a diagnosis of the last ten seconds."""
        ensure_all_tenants(caller)
        read_query(request, TenantQuery)
        await read_body(request, StrictModel)

        def read(connection: Connection) -> datetime:
            with connection.snapshot() as reading:
                return read_now(reading)

        return as_json_response(await self.doctor.run(await call(self.reads, caller, read), _WAIT_SECONDS))

    async def get_status(self, request: Request, caller: Admin) -> Response:
        """Return services with their heartbeats, due work and problems."""
        read_query(request, TenantQuery)
        ensure_all_tenants(caller)
        return await answer_read(
            self.reads, caller, lambda reading: read_status(reading, self.shards), all_tenants=True
        )

    async def _answer(self, caller: Caller, read: Callable[[Conn, datetime], object]) -> Response:
        return await answer_read(self.reads, caller, lambda reading: read(reading, read_now(reading)))


def now_of(connection: Connection, caller: Caller, shards: int) -> Now:
    """Return the present of the caller's tenant, with findings about the fleet if the caller may see them."""
    fleet = fleet_of(connection, caller, shards)
    with connection.snapshot() as reading:
        return read_now_of(reading, caller.tenant, shards, fleet, sees_slots=caller.all_tenants)


def edges_of(since: datetime, until: datetime, step: timedelta) -> Sequence[datetime]:
    """Return the edges of bins; the last one may be longer than the span."""
    if until <= since:
        refuse("until", "is not after since", "choose a later time")
    count = -((since - until) // step)
    if count > MAX_BINS:
        refuse("step", f"makes {count:,} bins", f"choose a longer step, for at most {MAX_BINS:,} bins")
    return [since + step * place for place in range(count + 1)]
