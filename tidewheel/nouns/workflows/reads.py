"""Read occurrences of workflows: a page of them, or one with the latest run of each job of its graph.

An older generation has the latest run of each job up to it.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import cast
from uuid import UUID

from psycopg.rows import class_row

from tidewheel.control.reads.job_position import read_job_position
from tidewheel.control.reads.stored import read_stored_json
from tidewheel.errors import UnknownWorkflow, refuse
from tidewheel.ids import child_run_id, job_id
from tidewheel.nouns.operation import Page, field_values
from tidewheel.nouns.tenants.reads import require_tenant
from tidewheel.nouns.workflows.model import Parent, ParentOfRun, Place, Workflow, WorkflowNode, WorkflowSummary
from tidewheel.postgres.pg_binary import uuids
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements
from tidewheel.runs import RunState
from tidewheel.transitions.occurrences import Node, NodeRun, read_occurrence, to_run_again
from tidewheel.transitions.parents import ParentRun, read_parents

_SQL = Statements("tidewheel.nouns.workflows")
_FIND_WORKFLOWS = _SQL["find_workflows"]
_FIND_WORKFLOWS_OF_ROOT = _SQL["find_workflows_of_root"]
_READ_WORKFLOWS = _SQL["read_workflows"]
_READ_KEYS = _SQL["read_node_keys"]

LOOKED_AT = 20_000  # rows of a page, matching or not: some tens of milliseconds

_START = (datetime(9999, 12, 31, tzinfo=UTC), UUID(int=(1 << 128) - 1))


def list_workflows(
    connection: Conn,
    tenant: str,
    key: str | None = None,
    state: str | None = None,
    *,
    after: Place | None = None,
    limit: int = 50,
) -> Page[WorkflowSummary]:
    """Return a page of a tenant's occurrences, the newest first; those of one root by instant.

    A page looks at a limited number of rows: with a state that few have, it may be short or empty, and not the last.

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
    after = (found[goes_on].scheduled_at, goes_on) if goes_on and goes_on in found else None
    return Page([found[root] for root in roots[:limit] if root in found], after)


def _read_workflows(connection: Conn, tenant: str, roots: Sequence[UUID]) -> dict[UUID, WorkflowSummary]:
    columns = {"tenant": tenant, "root_run_ids": uuids(roots)}
    with connection.cursor(row_factory=class_row(WorkflowSummary), binary=True) as cursor:
        return {each.root_run_id: each for each in cursor.execute(_READ_WORKFLOWS, columns)}


def show_workflow(connection: Conn, tenant: str, root_run_id: UUID, *, generation: int | None = None) -> Workflow:
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


def list_parents(connection: Conn, tenant: str, run_id: UUID, key: str | None) -> list[ParentOfRun]:
    """Return the parents of a run, or the one with a key."""
    return [_parent(each) for each in read_parents(connection, run_id, tenant=tenant, key=key)]


def _parent(found: ParentRun) -> ParentOfRun:
    values = field_values(found)
    values["result"] = read_stored_json("result", found.result, f"run {found.run_id}")
    return ParentOfRun(**values)
