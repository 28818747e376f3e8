"""The rows of occurrences: locked, opened, counted down, ended.

`pending` counts the runs that were written and whose release is not drained. An occurrence ends with 0 of them.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import cast
from uuid import UUID

from psycopg.rows import class_row

from tidewheel.jobs.values import format_timestamp
from tidewheel.outbox import append
from tidewheel.postgres.pg_arrays import instants, integers, texts, uuids, words
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements
from tidewheel.process.metrics import metrics
from tidewheel.runs import DEAD_LETTERED, RunState
from tidewheel.transitions.events import lifecycle_row
from tidewheel.transitions.installation import Installation
from tidewheel.transitions.releases import Release

_SQL = Statements("tidewheel.transitions")
_ADD_WORKFLOWS = _SQL["add_workflows"]
_LOCK_WORKFLOWS = _SQL["lock_workflows"]
_SET_WORKFLOW = _SQL["set_workflow"]
_UPDATE_WORKFLOWS = _SQL["update_workflows"]
_DROP_JOINS_OF = _SQL["drop_joins_of"]
_READ_JOB_KEYS = _SQL["read_job_keys"]


@dataclass(slots=True)
class Workflow:
    """An occurrence's row, locked; its counts change during the drain."""

    root_run_id: UUID
    tenant: str
    root_job_id: UUID
    shard: int
    scheduled_at: datetime
    graph_at: datetime
    state: str
    generation: int
    pending: int
    failed: int
    cancelled: int
    reason: str | None


def lock_workflows(connection: Conn, roots: Iterable[UUID]) -> dict[UUID, Workflow]:
    """Lock occurrences; return those that there are."""
    with connection.cursor(row_factory=class_row(Workflow), binary=True) as cursor:
        return {row.root_run_id: row for row in cursor.execute(_LOCK_WORKFLOWS, {"roots": uuids(roots)})}


def open_workflows(connection: Conn, parents: Sequence[Release], roots: Iterable[UUID]) -> dict[UUID, Workflow]:
    """Open the occurrences of roots that have ended; lock all occurrences of the drain.

    Args:
        connection: Inside a transaction.
        parents: The releases of runs with children.
        roots: The root's run of each occurrence.
    """
    opened = [release for release in parents if release.is_of_root and opens(release)]
    if opened:
        columns: dict[str, object] = {
            "roots": uuids(release.root_run_id for release in opened),
            "tenants": texts([release.tenant for release in opened]),
            "job_ids": uuids(release.job_id for release in opened),
            "shards": integers(release.shard for release in opened),
            "scheduled_at": instants(release.scheduled_at for release in opened),
            "graph_at": instants(release.graph_at for release in opened),
        }
        connection.execute(_ADD_WORKFLOWS, columns)
    return lock_workflows(connection, roots)


def opens(release: Release) -> bool:
    """Return True if the root's end opens an occurrence: it began, and was not skipped."""
    return release.state != RunState.SKIPPED and (release.began or release.state != RunState.CANCELLED)


def set_workflow(
    connection: Conn,
    workflow: Workflow,
    state: str,
    *,
    generation: int | None = None,
    pending: int | None = None,
    reason: str | None = None,
) -> None:
    """Set the state of an occurrence whose row is locked; a new generation begins without failures."""
    columns: dict[str, object] = {
        "root": workflow.root_run_id,
        "state": state,
        "reason": reason,
        "generation": workflow.generation if generation is None else generation,
        "pending": workflow.pending if pending is None else pending,
        "failed": workflow.failed if generation is None else 0,
        "cancelled": workflow.cancelled if generation is None else 0,
    }
    connection.execute(_SET_WORKFLOW, columns)


def count_drained(
    connection: Conn,
    installation: Installation,
    drained: Sequence[Release],
    workflows: Mapping[UUID, Workflow],
    now: datetime,
) -> None:
    """Count the drained releases, and end the occurrences that have no pending run."""
    open_before = {root for root, workflow in workflows.items() if workflow.pending > 0}
    for release in drained:
        if (workflow := workflows.get(release.root_run_id)) is not None:
            workflow.pending -= 1
            workflow.failed += release.state in DEAD_LETTERED
            workflow.cancelled += release.state == RunState.CANCELLED
    if not workflows:
        return
    ended = [one for root, one in workflows.items() if root in open_before and one.pending == 0]
    for workflow in ended:
        cancelled = workflow.cancelled or workflow.state == "cancelling"
        workflow.state = "failed" if workflow.failed else "cancelled" if cancelled else "succeeded"
    columns: dict[str, object] = {
        "roots": uuids(workflows),
        "pending": integers(workflow.pending for workflow in workflows.values()),
        "failed": integers(workflow.failed for workflow in workflows.values()),
        "cancelled": integers(workflow.cancelled for workflow in workflows.values()),
        "states": words(workflow.state for workflow in workflows.values()),
    }
    connection.execute(_UPDATE_WORKFLOWS, columns)
    if ended:
        connection.execute(_DROP_JOINS_OF, {"roots": uuids(workflow.root_run_id for workflow in ended)})
        append_workflow_events(connection, installation, ended, now)
        for state, number in Counter(workflow.state for workflow in ended).items():
            metrics.count("workflows_ended", number, state)


def append_workflow_events(
    connection: Conn, installation: Installation, ended: Sequence[Workflow], now: datetime
) -> None:
    """Append the event `workflow.finished` of each occurrence."""
    columns = {"job_ids": uuids({workflow.root_job_id for workflow in ended})}
    rows = connection.execute(_READ_JOB_KEYS, columns, binary=True).fetchall()
    keys = dict(cast("list[tuple[UUID, str]]", rows))
    events = [
        lifecycle_row(
            installation,
            kind="workflow.finished",
            tenant=workflow.tenant,
            job_id=workflow.root_job_id,
            job_key=keys.get(workflow.root_job_id, ""),
            shard=workflow.shard,
            now=now,
            reason=workflow.reason,
            detail={
                "root_run_id": str(workflow.root_run_id),
                "scheduled_at": format_timestamp(workflow.scheduled_at),
                "state": workflow.state,
                "generation": str(workflow.generation),
            },
        )
        for workflow in ended
    ]
    append(connection, events, shards=installation.shards)
