"""Occurrences of workflows: `/api/v1/workflows`, and the parents of a run.

Reads are those of control/reads, and changes the requests of intake.
"""

from dataclasses import dataclass, fields
from functools import partial
from typing import Any, Literal, cast
from uuid import UUID

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from tidewheel.api_keys import Scope
from tidewheel.control.api import examples
from tidewheel.control.api.answers import IDEMPOTENCY_KEY, answer, idempotency_key
from tidewheel.control.api.bodies import read_verb
from tidewheel.control.api.callers import Caller, Operator, Reader
from tidewheel.control.api.json_schemas import IN_ADDRESS, body_of
from tidewheel.control.api.openapi import add_route
from tidewheel.control.api.queries import Cursors, PageQuery, TenantQuery, Whole, read_query
from tidewheel.control.api.workers import Workers
from tidewheel.control.client.connection import Connection
from tidewheel.control.client.workflows import Workflows
from tidewheel.control.reads.stored import read_stored_json
from tidewheel.control.reads.workflows import Workflow, WorkflowSummary, list_workflows
from tidewheel.jobs.requests import WorkflowCancel, WorkflowPause, WorkflowResume
from tidewheel.jobs.strict_json import Json
from tidewheel.jobs.values import Instant, Key
from tidewheel.transitions.parents import ParentRun, read_parents

_WORKFLOWS = "/api/v1/workflows"
_ONE = f"{_WORKFLOWS}/{{run_id:uuid}}"
_PARENTS = "/api/v1/runs/{run_id:uuid}/parents"


class WorkflowsQuery(PageQuery):
    """Filter of a list of occurrences.

    Attributes:
        job: Only those of the root with this key.
        state: Only those in this state.
    """

    job: Key | None = None
    state: (
        Literal["open", "paused", "cancelling", "timing_out", "succeeded", "failed", "cancelled", "timed_out"] | None
    ) = None


class WorkflowQuery(TenantQuery):
    """Query of one occurrence.

    Attributes:
        generation: As this generation has left it; by default as it is.
    """

    generation: Whole | None = None


@dataclass(frozen=True, slots=True)
class WorkflowList:
    """Occurrences of workflows, the newest first; those of one root by instant."""

    workflows: tuple[WorkflowSummary, ...]
    next_cursor: str | None


@dataclass(frozen=True, slots=True)
class ChangedWorkflow:
    """Result of a change of an occurrence: `unchanged` if it was in that state already, or has ended."""

    root_run_id: UUID
    unchanged: bool


class ParentsQuery(TenantQuery):
    """Query of the parents of a run.

    Attributes:
        job: Only the parent with this key, with its result, whatever the size of all together.
    """

    job: Key | None = None


@dataclass(frozen=True, slots=True)
class ParentOfRun:
    """A parent of a run in its occurrence.

    Args:
        key: The parent's key.
        when: The condition on its end.
        status: The state of its run; null if it has none yet, or if that is no longer stored.
        run_id: Its latest run; null likewise.
        result: Its result; null if it returned none, or if it is left out or expired.
        result_bytes: The size of its result.
        left_out: True if all results together have more than 64 KiB; `job` reads this one.
        expired: True if the run or its result is no longer stored.
    """

    key: str
    when: str
    status: str | None
    run_id: UUID | None
    result: object
    result_bytes: int
    left_out: bool
    expired: bool


@dataclass(frozen=True, slots=True)
class Parents:
    """The parents of a run, by key; none if it belongs to no occurrence."""

    parents: tuple[ParentOfRun, ...]


@dataclass(frozen=True, slots=True)
class WorkflowsApi:
    """Calls about occurrences of workflows."""

    reads: Workers
    writes: Workers

    def add_to(self, router: APIRouter) -> None:
        """Add the routes."""
        read = partial(add_route, router, "GET", scope=Scope.READ)
        read(_WORKFLOWS, self.list_workflows, query=WorkflowsQuery, answer=WorkflowList, example=examples.WORKFLOWS)
        read(_ONE, self.get_workflow, query=WorkflowQuery, answer=Workflow, example=examples.WORKFLOW)
        read(_PARENTS, self.list_parents, query=ParentsQuery, answer=Parents, example=examples.PARENTS)
        change = partial(
            add_route, router, "POST", scope=Scope.OPERATE, query=TenantQuery, headers=IDEMPOTENCY_KEY,
            answer=ChangedWorkflow, example={"root_run_id": examples.RUN_ID, "unchanged": False},
        )  # fmt: skip
        reason: Json = {"reason": "maintenance"}
        change(f"{_ONE}:pause", self.pause_workflow, body=body_of(WorkflowPause, without=IN_ADDRESS), sent=reason)
        change(f"{_ONE}:resume", self.resume_workflow, body=body_of(WorkflowResume, without=IN_ADDRESS), sent={})
        change(f"{_ONE}:cancel", self.cancel_workflow, body=body_of(WorkflowCancel, without=IN_ADDRESS), sent=reason)

    async def list_parents(self, request: Request, caller: Reader) -> Response:
        """Return the parents of a run in its occurrence, with their latest runs and results."""
        query, run_id = read_query(request, ParentsQuery), _run_id(request)

        def read(connection: Connection) -> Parents:
            with connection.snapshot() as reading:
                found = read_parents(reading, run_id, tenant=caller.tenant, key=query.job)
            return Parents(tuple(_parent(each) for each in found))

        return await answer(self.reads, caller, read)

    async def list_workflows(self, request: Request, caller: Reader) -> Response:
        """List occurrences of workflows, the newest first."""
        query = read_query(request, WorkflowsQuery)
        cursors = Cursors.of(request, query, caller.tenant)
        return await answer(self.reads, caller, lambda each: page_of_workflows(each, caller.tenant, query, cursors))

    async def get_workflow(self, request: Request, caller: Reader) -> Response:
        """Return one occurrence with its graph: the root first, each job with the state of its latest run."""
        query, root = read_query(request, WorkflowQuery), _run_id(request)
        return await answer(self.reads, caller, lambda each: Workflows(each).get(root, generation=query.generation))

    async def pause_workflow(self, request: Request, caller: Operator) -> Response:
        """Release no further run of an occurrence until it is resumed."""
        return await self._change(request, caller, "workflow.pause")

    async def resume_workflow(self, request: Request, caller: Operator) -> Response:
        """Go on with a paused occurrence, or run the failed part of an ended one again."""
        return await self._change(request, caller, "workflow.resume")

    async def cancel_workflow(self, request: Request, caller: Operator) -> Response:
        """Cancel the runs of an occurrence, and release no further one."""
        return await self._change(request, caller, "workflow.cancel")

    async def _change(self, request: Request, caller: Caller, kind: str) -> Response:
        root, request_id = _run_id(request), idempotency_key(request)
        sent = await read_verb(request, kind, run_id=str(root))

        def change(connection: Connection) -> ChangedWorkflow:
            return ChangedWorkflow(root, connection.request(sent, request_id).unchanged)

        return await answer(self.writes, caller, change)


def page_of_workflows(connection: Connection, tenant: str, query: WorkflowsQuery, cursors: Cursors) -> WorkflowList:
    """Return a page of occurrences with the cursor of the next one."""
    place = cursors.read(Instant, UUID)
    after = None if place is None else (place[0], place[1])
    with connection.snapshot() as reading:
        page = list_workflows(reading, tenant, query.job, query.state, after=after, limit=query.limit)
    return WorkflowList(tuple(page.workflows), cursors.write(*(page.next_place or [None])))


def _parent(found: ParentRun) -> ParentOfRun:
    values: dict[str, Any] = {each.name: getattr(found, each.name) for each in fields(found)}
    values["result"] = read_stored_json("result", found.result, f"run {found.run_id}")
    return ParentOfRun(**values)


def _run_id(request: Request) -> UUID:
    return cast("UUID", request.path_params["run_id"])
