"""`client.workflows`: list, show, pause, resume and cancel occurrences of workflows.

An older generation has the latest run of each job up to it.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Annotated, Literal, cast
from uuid import UUID

from psycopg.rows import class_row
from pydantic import BeforeValidator, Field

from tidewheel.api_keys import Scope
from tidewheel.control.reads.job_position import read_job_position
from tidewheel.control.reads.stored import read_stored_json
from tidewheel.errors import UnknownWorkflow, refuse
from tidewheel.ids import child_run_id, instant_of
from tidewheel.jobs.values import Key, Reason
from tidewheel.nouns.operation import InDoors, Noun, Page, Rows, as_id, field_values, operation, reads
from tidewheel.nouns.tenants.reads import require_tenant
from tidewheel.postgres.pg_binary import uuids
from tidewheel.postgres.session import Conn, read_rows, rows_of
from tidewheel.postgres.statements import Statements
from tidewheel.runs import RunState
from tidewheel.transitions.occurrences import Node, NodeRun, read_occurrence, to_run_again
from tidewheel.transitions.parents import ParentRun, read_parents

_SQL = Statements("tidewheel.nouns.workflows")
_READ_STATES = Statements("tidewheel.transitions")["read_run_states"]

LOOKED_AT = 20_000  # rows of a page, matching or not: some tens of milliseconds
_JOBS = 100  # of an occurrence in a list
_MARGIN = timedelta(hours=1)  # the database's clock may have been set back

_START = (datetime(9999, 12, 31, tzinfo=UTC), UUID(int=(1 << 128) - 1))

Place = tuple[datetime, UUID]
State = Literal["open", "paused", "cancelling", "timing_out", "succeeded", "failed", "cancelled", "timed_out"]

_WORKFLOWS = "/api/v1/workflows"
_WORKFLOW = f"{_WORKFLOWS}/{{run_id:uuid}}"

RootRunId = Annotated[UUID, BeforeValidator(partial(as_id, name="root_run_id")), InDoors("run_id")]
_RunId = Annotated[UUID, BeforeValidator(partial(as_id, name="run_id"))]
_Root = Annotated[Key | None, Field(description="Only occurrences of the root with this key."), InDoors("job")]
_ParentKey = Annotated[
    Key | None,
    Field(description="Only the parent with this key, with its result regardless of the total size."),
    InDoors("job"),
]
_Generation = Annotated[
    Annotated[int, Field(ge=0, le=2**63 - 1)] | None,
    Field(description="Show the state that this generation left; by default the current state."),
]


@dataclass(frozen=True, slots=True)
class WorkflowSummary:
    """An occurrence of a workflow as lists show it."""

    root_run_id: Annotated[UUID, Field(description="The root's run.")]
    key: Annotated[str, Field(description="The root's key.")]
    state: Annotated[
        str,
        Field(
            description="`open`, `paused`, `cancelling`, `timing_out`, `succeeded`, `failed`, `cancelled` or "
            "`timed_out`."
        ),
    ]
    scheduled_at: Annotated[datetime, Field(description="The nominal instant of all of its runs.")]
    generation: Annotated[int, Field(description="The number of resumes so far.")]
    pending: Annotated[
        int,
        Field(description="The number of its runs that have not ended, or whose children have not been created yet."),
    ]
    failed: Annotated[int, Field(description="The number of its runs that failed or timed out, in this generation.")]
    reason: Annotated[str | None, Field(description="The reason of a pause or a cancel.")]
    created_at: Annotated[datetime, Field(description="The end of the root's run, or the first request about it.")]
    finished_at: Annotated[datetime | None, Field(description="Its end.")]


def list_workflows(
    connection: Conn,
    tenant: str,
    key: _Root = None,
    *,
    state: Annotated[State | None, Field(description="Only those in this state.")] = None,
    after: Place | None = None,
    limit: Rows = 100,
) -> Page[WorkflowSummary]:
    """List occurrences of workflows, newest first; those of one root are sorted by instant."""
    require_tenant(connection, tenant)
    at, before = after or _START
    columns: dict[str, object] = {"tenant": tenant, "state": state, "before_at": at, "before_id": before}
    columns |= {"limit": limit + 1, "look": LOOKED_AT if state else limit + 1}
    if key is not None:
        columns["job_id"] = read_job_position(connection, tenant, key).job_id
    statement = _SQL["find_workflows"] if key is None else _SQL["find_workflows_of_root"]
    row = connection.execute(statement, columns, binary=True).fetchone()
    roots, _, looked_at, last_seen = cast("tuple[list[UUID], int, int, UUID | None]", row)
    goes_on = roots[limit - 1] if len(roots) > limit else last_seen if state and looked_at == LOOKED_AT else None
    found = _read_workflows(connection, tenant, [*roots[:limit], *([goes_on] if goes_on else [])])
    after = (found[goes_on].scheduled_at, goes_on) if goes_on and goes_on in found else None
    return Page([found[root] for root in roots[:limit] if root in found], after)


def _read_workflows(connection: Conn, tenant: str, roots: Sequence[UUID]) -> dict[UUID, WorkflowSummary]:
    columns = {"tenant": tenant, "root_run_ids": uuids(roots)}
    with connection.cursor(row_factory=class_row(WorkflowSummary), binary=True) as cursor:
        return {each.root_run_id: each for each in cursor.execute(_SQL["read_workflows"], columns)}


@dataclass(frozen=True, slots=True)
class Parent:
    """A parent of a job in an occurrence, with the condition on its end."""

    key: str
    when: str


@dataclass(frozen=True, slots=True)
class WorkflowNode:
    """A job in an occurrence."""

    key: Annotated[str, Field(description="Its key.")]
    state: Annotated[
        str,
        Field(
            description="The state of its latest run; `pending` while it waits for a run, also after a resume;"
            " `not_reached` if it will have none."
        ),
    ]
    parents: Annotated[Sequence[Parent], Field(description="Its parents.")]
    run_id: Annotated[UUID | None, Field(description="Its latest run; null while the job waits for one.")] = None
    reason: Annotated[str | None, Field(description="Why its latest run was skipped or cancelled.")] = None
    attempt: Annotated[int, Field(description="The number of its attempts.")] = 0
    started_at: Annotated[datetime | None, Field(description="The start of its last attempt.")] = None
    finished_at: Annotated[datetime | None, Field(description="Its end.")] = None


@dataclass(frozen=True, slots=True)
class Workflow:
    """An occurrence with its graph: the root first, each job after its parents."""

    summary: Annotated[WorkflowSummary, Field(description="The occurrence as in lists.")]
    nodes: Annotated[Sequence[WorkflowNode], Field(description="Its jobs.")]
    again: Annotated[
        Sequence[str],
        Field(description="The keys of the jobs that a resume would rerun, if a part of the ended occurrence failed."),
    ]


def show_workflow(connection: Conn, tenant: str, root_run_id: RootRunId, *, generation: _Generation = None) -> Workflow:
    """Show an occurrence as a graph from its root, each job with the state of its latest run."""
    summary = _read_workflows(connection, tenant, [root_run_id]).get(root_run_id)
    if summary is None:
        raise UnknownWorkflow(str(root_run_id))
    if generation is not None and generation > summary.generation:
        refuse("generation", f"the workflow has no generation {generation}", f"write 0 to {summary.generation}")
    is_older = generation is not None and generation < summary.generation
    nodes = read_occurrence(connection, root_run_id, generation)
    rows = connection.execute(_SQL["read_node_keys"], {"job_ids": uuids(nodes)}, binary=True).fetchall()
    keys = dict(cast("list[tuple[UUID, str]]", rows))
    unreached = "pending" if summary.state in ("open", "paused") and not is_older else "not_reached"
    if summary.finished_at is None and not is_older:
        for job in _waiting_again(nodes, summary):
            nodes[job].run = None
    return Workflow(
        summary,
        [
            _node(keys[job], node.run, [Parent(keys[parent], when) for parent, when in node.parents.items()], unreached)
            for job, node in nodes.items()
        ],
        [keys[each.job_id] for each in to_run_again(nodes)] if summary.finished_at and not is_older else [],
    )


def read_first_runs(connection: Conn, page: Sequence[WorkflowSummary]) -> dict[UUID, list[NodeRun | None]]:
    """Return the run of each job, but of occurrences that were resumed or have more than 100 jobs."""
    shown = {each.root_run_id: each for each in page if not each.generation}
    columns = {"root_run_ids": uuids(shown), "look": _JOBS + 1}
    rows = connection.execute(_SQL["read_graphs"], columns, binary=True).fetchall()
    graphs = [row for row in cast("list[tuple[UUID, UUID, datetime, list[UUID]]]", rows) if len(row[3]) <= _JOBS]
    wanted = {
        root: [root if job == root_job else child_run_id(job, shown[root].scheduled_at, root, 0) for job in jobs]
        for root, root_job, _, jobs in graphs
    }
    if not wanted:
        return {}
    ends = [shown[root].finished_at for root in wanted]
    states: dict[str, object] = {
        "run_ids": uuids(run for each in wanted.values() for run in each),
        "since": min(min(at, instant_of(root)) for root, _, at, _ in graphs) - _MARGIN,
        "until": max(_START[0] if each is None else each + _MARGIN for each in ends),
    }
    found = {run.run_id: run for run in read_rows(connection, rows_of(NodeRun._make), _READ_STATES, states)}
    return {root: [found.get(run) for run in runs] for root, runs in wanted.items()}


def _waiting_again(nodes: Mapping[UUID, Node], summary: WorkflowSummary) -> Collection[UUID]:
    """Return the jobs whose run is of an older generation and whose parents run again."""
    found: set[UUID] = set()
    again: set[UUID] = set()  # jobs with a run of this generation, or with none yet
    for job, node in nodes.items() if summary.generation else ():  # parents first
        of_this = child_run_id(job, summary.scheduled_at, summary.root_run_id, summary.generation)
        if node.run is None or node.run.run_id == of_this:
            again.add(job)
        elif node.state is not RunState.SUCCEEDED and (found | again).intersection(node.parents):
            found.add(job)
    return found


def _node(key: str, run: NodeRun | None, parents: Sequence[Parent], unreached: str) -> WorkflowNode:
    if run is None:
        return WorkflowNode(key, unreached, parents)
    return WorkflowNode(key, run.state, parents, run.run_id, run.reason, run.attempt, run.started_at, run.finished_at)


@dataclass(frozen=True, slots=True)
class ParentOfRun:
    """A parent of a run in its occurrence."""

    key: Annotated[str, Field(description="The parent's key.")]
    when: Annotated[str, Field(description="The condition on its end.")]
    status: Annotated[
        str | None,
        Field(description="The state of its latest run; null if there is none, or if it is no longer stored."),
    ]
    run_id: Annotated[
        UUID | None, Field(description="Its latest run; null if there is none, or if it is no longer stored.")
    ]
    result: Annotated[object, Field(description="Its result; null if there is none, or if it is left out or expired.")]
    result_bytes: Annotated[int, Field(description="The size of its result.")]
    left_out: Annotated[
        bool, Field(description="True if all results together have more than 64 KiB; `job` reads this one.")
    ]
    expired: Annotated[bool, Field(description="True if the run or its result is no longer stored.")]


def _parent(found: ParentRun) -> ParentOfRun:
    values = field_values(found)
    values["result"] = read_stored_json("result", found.result, f"run {found.run_id}")
    return ParentOfRun(**values)


@dataclass(frozen=True, slots=True)
class ChangedWorkflow:
    """Result of a change of an occurrence; `unchanged` if it already was in that state, or has ended."""

    root_run_id: UUID
    unchanged: bool


_Parents = list[ParentOfRun]  # the class has another `list`


class Workflows(Noun):
    """Occurrences of workflows. Each is named by the run of its root."""

    list = operation(f"GET {_WORKFLOWS}", "list_workflows", scope=Scope.READ)(reads(list_workflows))
    get = operation(f"GET {_WORKFLOW}", "get_workflow", scope=Scope.READ)(reads(show_workflow))

    @operation(
        f"POST {_WORKFLOW}:pause",
        "pause_workflow",
        scope=Scope.OPERATE,
        answer=ChangedWorkflow,
        sent={"reason": "maintenance"},
    )
    def pause(self, root_run_id: RootRunId, *, reason: Reason | None = None, request_id: str | None = None) -> bool:
        """Start no further jobs of an occurrence until you resume it; queued runs continue."""
        return self._change("workflow.pause", root_run_id, reason, request_id)

    @operation(
        f"POST {_WORKFLOW}:resume",
        "resume_workflow",
        scope=Scope.OPERATE,
        answer=ChangedWorkflow,
    )
    def resume(self, root_run_id: RootRunId, *, reason: Reason | None = None, request_id: str | None = None) -> bool:
        """Continue a paused occurrence, or rerun the failed part of an ended one.

        Raises:
            Refused: No part of it failed, or it is being cancelled.
        """
        return self._change("workflow.resume", root_run_id, reason, request_id)

    @operation(
        f"POST {_WORKFLOW}:cancel",
        "cancel_workflow",
        scope=Scope.OPERATE,
        answer=ChangedWorkflow,
        sent={"reason": "maintenance"},
    )
    def cancel(self, root_run_id: RootRunId, *, reason: Reason | None = None, request_id: str | None = None) -> bool:
        """Cancel an occurrence: end its open runs, and start no further jobs."""
        return self._change("workflow.cancel", root_run_id, reason, request_id)

    @operation("GET /api/v1/runs/{run_id:uuid}/parents", "list_parents", scope=Scope.READ)
    def parents(self, run_id: _RunId, *, key: _ParentKey = None) -> _Parents:
        """List a run's parents in its occurrence, with their latest runs and results."""
        with self._call.snapshot() as connection:
            return [_parent(each) for each in read_parents(connection, run_id, tenant=self._call.tenant, key=key)]

    def _change(self, kind: str, root_run_id: UUID, reason: str | None, request_id: str | None) -> bool:
        document = {"type": kind, "run_id": str(root_run_id), "reason": reason}
        return not self._call.request(document, request_id).unchanged
