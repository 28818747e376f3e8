"""Read occurrences of workflows: a page of them, or one with the latest run of each job of its graph."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import cast
from uuid import UUID

from psycopg.rows import class_row

from tidewheel.control.reads.job_position import read_job_position
from tidewheel.control.reads.tenants import require_tenant
from tidewheel.errors import UnknownWorkflow
from tidewheel.ids import job_id
from tidewheel.postgres.pg_arrays import uuids
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements
from tidewheel.transitions.occurrences import NodeRun, read_occurrence, to_run_again

_SQL = Statements("tidewheel.control")
_LIST_WORKFLOWS = _SQL["list_workflows"]
_SHOW_WORKFLOW = _SQL["show_workflow"]
_READ_KEYS = _SQL["read_node_keys"]


@dataclass(frozen=True, slots=True)
class WorkflowSummary:
    """An occurrence of a workflow as lists show it.

    Args:
        root_run_id: The root's run.
        key: The root's key.
        state: `open`, `paused`, `cancelling`, `timing_out`, `succeeded`, `failed`, `cancelled` or `timed_out`.
        scheduled_at: The nominal instant of all of its runs.
        generation: 0, and one more for each resume.
        pending: The number of its runs that have not ended, or whose children are not released yet.
        failed: The number of its runs that failed or timed out, in this generation.
        reason: The reason of a pause or a cancel.
        created_at: The end of the root's run, or the first request about it.
        finished_at: Its end.
    """

    root_run_id: UUID
    key: str
    state: str
    scheduled_at: datetime
    generation: int
    pending: int
    failed: int
    reason: str | None
    created_at: datetime
    finished_at: datetime | None


@dataclass(frozen=True, slots=True)
class Parent:
    """A parent of a job in an occurrence, with the condition on its end."""

    key: str
    when: str


@dataclass(frozen=True, slots=True)
class WorkflowNode:
    """A job in an occurrence.

    Args:
        key: Its key.
        state: The state of its latest run; `pending` if it has none yet, and `not_reached` if it will have none.
        parents: Its parents.
        run_id: Its latest run.
        reason: Why that was skipped or cancelled.
        attempt: The number of its attempts.
        started_at: The start of its last attempt.
        finished_at: Its end.
    """

    key: str
    state: str
    parents: Sequence[Parent]
    run_id: UUID | None = None
    reason: str | None = None
    attempt: int = 0
    started_at: datetime | None = None
    finished_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Workflow:
    """An occurrence with its graph: the root first, each job after its parents.

    Args:
        summary: The occurrence as in lists.
        nodes: Its jobs.
        again: The keys of the jobs that a resume runs again, if it has ended and a part of it failed.
    """

    summary: WorkflowSummary
    nodes: Sequence[WorkflowNode]
    again: Sequence[str]


def workflows(connection: Conn, tenant: str, key: str | None = None, *, limit: int = 100) -> list[WorkflowSummary]:
    """Return a tenant's occurrences of workflows, or those of one root, the newest first.

    Args:
        connection: Reads the rows.
        tenant: The tenant.
        key: Only those of this root.
        limit: How many at most.

    Raises:
        InvalidInput: There is no such tenant.
        UnknownJob: There is no such job and never was one.
    """
    require_tenant(connection, tenant)
    if key is not None:
        read_job_position(connection, tenant, key)
    columns = {"tenant": tenant, "job_id": None if key is None else job_id(tenant, key), "limit": limit}
    with connection.cursor(row_factory=class_row(WorkflowSummary), binary=True) as cursor:
        return cursor.execute(_LIST_WORKFLOWS, columns).fetchall()


def workflow(connection: Conn, tenant: str, root_run_id: UUID) -> Workflow:
    """Return one occurrence with its graph.

    Raises:
        UnknownWorkflow: The tenant has no occurrence with this root's run.
    """
    columns = {"tenant": tenant, "root_run_id": root_run_id}
    with connection.cursor(row_factory=class_row(WorkflowSummary), binary=True) as cursor:
        summary = cursor.execute(_SHOW_WORKFLOW, columns).fetchone()
    if summary is None:
        raise UnknownWorkflow(str(root_run_id))
    nodes = read_occurrence(connection, root_run_id)
    rows = connection.execute(_READ_KEYS, {"job_ids": uuids(nodes)}, binary=True).fetchall()
    keys = dict(cast("list[tuple[UUID, str]]", rows))
    unreached = "pending" if summary.state in ("open", "paused") else "not_reached"
    return Workflow(
        summary,
        [
            _node(keys[job], node.run, [Parent(keys[parent], when) for parent, when in node.parents.items()], unreached)
            for job, node in nodes.items()
        ],
        [keys[each.job_id] for each in to_run_again(nodes)] if summary.finished_at is not None else [],
    )


def _node(key: str, run: NodeRun | None, parents: Sequence[Parent], unreached: str) -> WorkflowNode:
    if run is None:
        return WorkflowNode(key, unreached, parents)
    return WorkflowNode(key, run.state, parents, run.run_id, run.reason, run.attempt, run.started_at, run.finished_at)
