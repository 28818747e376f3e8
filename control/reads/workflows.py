"""Read occurrences of workflows: a page of them, or one with the latest run of each job of its graph.

An older generation has the latest run of each job up to it.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import cast
from uuid import UUID

from psycopg.rows import class_row

from tidewheel.control.reads.job_position import read_job_position
from tidewheel.control.reads.tenants import require_tenant
from tidewheel.errors import UnknownWorkflow, refuse
from tidewheel.ids import child_run_id, job_id
from tidewheel.postgres.pg_binary import uuids
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements
from tidewheel.runs import RunState
from tidewheel.transitions.occurrences import Node, NodeRun, read_occurrence, to_run_again

_SQL = Statements("tidewheel.control")
_FIND_WORKFLOWS = _SQL["find_workflows"]
_FIND_WORKFLOWS_OF_ROOT = _SQL["find_workflows_of_root"]
_READ_WORKFLOWS = _SQL["read_workflows"]
_READ_KEYS = _SQL["read_node_keys"]

LOOKED_AT = 20_000  # rows of a page, matching or not: some tens of milliseconds

_START = (datetime(9999, 12, 31, tzinfo=UTC), UUID(int=(1 << 128) - 1))


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
        state: The state of its latest run; `pending` if it has none yet, or waits for another one after a resume, and
            `not_reached` if it will have none.
        parents: Its parents.
        run_id: Its latest run; None for a job that waits for one.
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


@dataclass(frozen=True, slots=True)
class WorkflowPage:
    """Occurrences of workflows, the newest first.

    Args:
        next_place: The instant and the root's run to continue after; None on the last page.
    """

    workflows: Sequence[WorkflowSummary]
    next_place: tuple[datetime, UUID] | None


def workflows(connection: Conn, tenant: str, key: str | None = None, *, limit: int = 100) -> list[WorkflowSummary]:
    """Return a tenant's occurrences of workflows, or those of one root, the newest first.

    Raises:
        InvalidInput: There is no such tenant.
        UnknownJob: There is no such job and never was one.
    """
    return list(list_workflows(connection, tenant, key, limit=limit).workflows)


def list_workflows(
    connection: Conn,
    tenant: str,
    key: str | None = None,
    state: str | None = None,
    *,
    after: tuple[datetime, UUID] | None = None,
    limit: int = 50,
) -> WorkflowPage:
    """Return a page of a tenant's occurrences, the newest first; those of one root by instant.

    A page looks at a limited number of rows. With a state that few have, it may be short, or empty, and have a place.

    Args:
        after: The `next_place` of the page before.

    Raises:
        InvalidInput: There is no such tenant.
        UnknownJob: There is no such job and never was one.
    """
    require_tenant(connection, tenant)
    at, before = after or _START
    columns: dict[str, object] = {"tenant": tenant, "state": state, "before_at": at, "before_id": before}
    columns |= {"limit": limit + 1, "look": LOOKED_AT if state else limit + 1}
    if key is not None:
        read_job_position(connection, tenant, key)
        columns["job_id"] = job_id(tenant, key)
    statement = _FIND_WORKFLOWS if key is None else _FIND_WORKFLOWS_OF_ROOT
    row = connection.execute(statement, columns, binary=True).fetchone()
    roots, _, looked_at, last_seen = cast("tuple[list[UUID], int, int, UUID | None]", row)
    goes_on = roots[limit - 1] if len(roots) > limit else last_seen if state and looked_at == LOOKED_AT else None
    found = _read_workflows(connection, tenant, [*roots[:limit], *([goes_on] if goes_on else [])])
    next_place = (found[goes_on].scheduled_at, goes_on) if goes_on and goes_on in found else None
    return WorkflowPage([found[root] for root in roots[:limit] if root in found], next_place)


def _read_workflows(connection: Conn, tenant: str, roots: Sequence[UUID]) -> dict[UUID, WorkflowSummary]:
    columns = {"tenant": tenant, "root_run_ids": uuids(roots)}
    with connection.cursor(row_factory=class_row(WorkflowSummary), binary=True) as cursor:
        return {each.root_run_id: each for each in cursor.execute(_READ_WORKFLOWS, columns)}


def workflow(connection: Conn, tenant: str, root_run_id: UUID, *, generation: int | None = None) -> Workflow:
    """Return one occurrence with its graph, as it is or as an earlier generation has left it.

    Raises:
        InvalidInput: It has no such generation.
        UnknownWorkflow: The tenant has no occurrence with this root's run.
    """
    summary = _read_workflows(connection, tenant, [root_run_id]).get(root_run_id)
    if summary is None:
        raise UnknownWorkflow(str(root_run_id))
    if generation is not None and generation > summary.generation:
        refuse("generation", f"it has no generation {generation}", f"write one from 0 to {summary.generation}")
    is_older = generation is not None and generation < summary.generation
    nodes = read_occurrence(connection, root_run_id, generation)
    rows = connection.execute(_READ_KEYS, {"job_ids": uuids(nodes)}, binary=True).fetchall()
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
