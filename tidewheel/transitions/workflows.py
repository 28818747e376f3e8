"""The rows of occurrences: locked, opened, counted down, ended; and the callbacks of batches.

`pending` counts the runs that were written and whose release is not drained. An occurrence ends with 0 of them.

A trigger is a request in the outbox, written by the drain that has counted the end: once, whatever dies. Its id names
the batch, the callback and, after a resume, the generation.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import NamedTuple, cast
from uuid import UUID

from psycopg.rows import class_row

from tidewheel.ids import child_run_id
from tidewheel.jobs.batches import BatchCallbacks
from tidewheel.jobs.strict_json import as_object, compact, read_value
from tidewheel.jobs.values import format_timestamp
from tidewheel.outbox import OutboxRow, append
from tidewheel.postgres.pg_binary import instants, integers, texts, uuids, words
from tidewheel.postgres.session import Conn, at_commit, read_rows, rows_of
from tidewheel.postgres.statements import Statements
from tidewheel.process.metrics import metrics
from tidewheel.runs import DEAD_LETTERED, RunState
from tidewheel.transitions.active_runs import settle_places
from tidewheel.transitions.children import Release
from tidewheel.transitions.events import lifecycle_row
from tidewheel.transitions.installation import Installation
from tidewheel.transitions.messages import request_row

_SQL = Statements("tidewheel.transitions")

_GOING_ON = frozenset({"open", "paused", "cancelling", "timing_out"})

NO_JOB = UUID(int=0)
"""In place of the root's job, in the occurrence of a batch."""


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
    deadline_at: datetime | None


class _Batch(NamedTuple):
    batch_id: UUID
    total: int
    succeeded: int
    first_failed_run_id: UUID | None
    callbacks: bytes


def callbacks_text(on: BatchCallbacks | None) -> bytes:
    """Return callbacks as the JSON text that `batches` holds."""
    given: dict[str, object] = {}
    for name in ("failed", "succeeded", "finished"):
        if on is not None and (callback := getattr(on, name)) is not None:
            payload = callback.carried
            given[name] = {"key": callback.key, "payload": read_value(payload.content) if payload else {}}
    return compact(given)


def count_batch_ends(
    connection: Conn,
    installation: Installation,
    batches: Mapping[UUID, Workflow],
    drained: Sequence[Release],
    *,
    ended: Collection[UUID],
    now: datetime,
) -> None:
    """Count drained releases in batches whose occurrences are locked; append the triggers that are due."""
    succeeded = Counter(one.root_run_id for one in drained if one.state == RunState.SUCCEEDED)
    failures: dict[UUID, UUID] = {}
    for one in drained:
        if one.state in DEAD_LETTERED:
            failures.setdefault(one.root_run_id, one.run_id)
    columns: dict[str, object] = {
        "batch_ids": uuids(batches),
        "succeeded": integers(succeeded[batch] for batch in batches),
        "failed_run_ids": uuids(failures.get(batch) for batch in batches),
    }
    found = read_rows(connection, rows_of(_Batch._make), _SQL["count_batch_ends"], columns)
    rows: list[OutboxRow] = []
    for batch in found:
        occurrence = batches[batch.batch_id]
        first = failures.get(batch.batch_id)
        due = ["failed"] if first is not None and first == batch.first_failed_run_id else []
        if batch.batch_id in ended:
            due += ["succeeded", "finished"] if occurrence.state == "succeeded" else ["finished"]
        rows += _triggers(installation, batch, occurrence, due, now)
    append(connection, rows, shards=installation.shards)


def _triggers(
    installation: Installation, batch: _Batch, occurrence: Workflow, due: Sequence[str], now: datetime
) -> list[OutboxRow]:
    callbacks = as_object(read_value(batch.callbacks)) or {}
    facts = {
        "batch_id": str(batch.batch_id),
        "total": batch.total,
        "succeeded": batch.succeeded,
        "failed": occurrence.failed,
        "first_failed_run_id": None if batch.first_failed_run_id is None else str(batch.first_failed_run_id),
    }
    again = f"/{occurrence.generation}" if occurrence.generation else ""
    return [
        request_row(
            installation,
            "job.trigger",
            {
                "request_id": f"batch/{batch.batch_id}/{name}{again}",
                "tenant": occurrence.tenant,
                "key": str(callback["key"]),
                "payload": {**(as_object(callback["payload"]) or {}), **facts},
            },
            key=str(callback["key"]),
            shard=occurrence.shard,
            at=now,
        )
        for name in due
        if (callback := as_object(callbacks.get(name))) is not None
    ]


def lock_workflows(connection: Conn, roots: Iterable[UUID]) -> dict[UUID, Workflow]:
    """Lock occurrences; return those that there are."""
    with connection.cursor(row_factory=class_row(Workflow), binary=True) as cursor:
        return {row.root_run_id: row for row in cursor.execute(_SQL["lock_workflows"], {"roots": uuids(roots)})}


def open_workflows(connection: Conn, parents: Sequence[Release], roots: Iterable[UUID]) -> dict[UUID, Workflow]:
    """Open the occurrences of roots that have ended; lock all occurrences of the drain."""
    opened = [release for release in parents if release.is_of_root and release.opens]
    if opened:
        columns: dict[str, object] = {
            "roots": uuids(release.root_run_id for release in opened),
            "tenants": texts([release.tenant for release in opened]),
            "job_ids": uuids(release.job_id for release in opened),
            "shards": integers(release.shard for release in opened),
            "scheduled_at": instants(release.scheduled_at for release in opened),
            "graph_at": instants(release.graph_at for release in opened),
            "started_at": instants(release.started_at for release in opened),
        }
        connection.execute(_SQL["add_workflows"], columns)
    return lock_workflows(connection, roots)


def set_workflow(
    connection: Conn,
    workflow: Workflow,
    state: str,
    *,
    generation: int | None = None,
    pending: int | None = None,
    reason: str | None = None,
) -> None:
    """Set the state of an occurrence whose row is locked."""
    columns: dict[str, object] = {
        "root": workflow.root_run_id,
        "state": state,
        "reason": reason,
        "generation": workflow.generation if generation is None else generation,
        "pending": workflow.pending if pending is None else pending,
        "failed": workflow.failed,
        "cancelled": workflow.cancelled,
        "deadline_at": workflow.deadline_at,
    }
    connection.execute(_SQL["set_workflow"], columns)


def count_drained(
    connection: Conn,
    installation: Installation,
    drained: Sequence[Release],
    workflows: Mapping[UUID, Workflow],
    now: datetime,
) -> list[Workflow]:
    """Count the drained releases, and end the occurrences that have no pending run; return those.

    A release of an occurrence that has ended counts nothing: it was mended before.
    """
    going_on = {root: workflow for root, workflow in workflows.items() if workflow.state in _GOING_ON}
    if not going_on:
        return []
    open_before = {root for root, workflow in going_on.items() if workflow.pending > 0}
    counted = [release for release in drained if release.root_run_id in going_on]
    for release in counted:
        workflow = going_on[release.root_run_id]
        workflow.pending -= 1
        workflow.failed += release.state in DEAD_LETTERED
        workflow.cancelled += release.state == RunState.CANCELLED
    ended = [one for root, one in going_on.items() if root in open_before and one.pending == 0]
    _settle(connection, installation, going_on, ended, drained=counted, now=now)
    return [one for one in ended if one.root_job_id != NO_JOB]


def end_workflow(connection: Conn, installation: Installation, workflow: Workflow, now: datetime) -> None:
    """End an occurrence that is locked and has no pending run."""
    _settle(connection, installation, {workflow.root_run_id: workflow}, [workflow], drained=(), now=now)


def _settle(
    connection: Conn,
    installation: Installation,
    workflows: Mapping[UUID, Workflow],
    ended: Sequence[Workflow],
    *,
    drained: Sequence[Release],
    now: datetime,
) -> None:
    for workflow in ended:
        workflow.state = _end_state(workflow)
    columns: dict[str, object] = {
        "roots": uuids(workflows),
        "pending": integers(workflow.pending for workflow in workflows.values()),
        "failed": integers(workflow.failed for workflow in workflows.values()),
        "cancelled": integers(workflow.cancelled for workflow in workflows.values()),
        "states": words(workflow.state for workflow in workflows.values()),
    }
    connection.execute(_SQL["update_workflows"], columns)
    if ended:
        connection.execute(_SQL["drop_joins_of"], {"roots": uuids(workflow.root_run_id for workflow in ended)})
        append_workflow_events(connection, installation, [one for one in ended if one.root_job_id != NO_JOB], now)
        for state, number in Counter(workflow.state for workflow in ended).items():
            at_commit(connection, partial(metrics.count, "workflows_ended", number, state))
    if batches := {root: one for root, one in workflows.items() if one.root_job_id == NO_JOB}:
        over = {workflow.root_run_id for workflow in ended}
        count_batch_ends(connection, installation, batches, drained, ended=over, now=now)


def _end_state(workflow: Workflow) -> str:
    if workflow.state == "timing_out":
        return "timed_out"
    if workflow.failed:
        return "failed"
    return "cancelled" if workflow.cancelled or workflow.state == "cancelling" else "succeeded"


def leave_places(
    connection: Conn,
    installation: Installation,
    releases: Sequence[Release],
    workflows: Mapping[UUID, Workflow],
    ended: Sequence[Workflow],
) -> None:
    """Leave the places of ended roots to their occurrences; release those of ended occurrences.

    Args:
        connection: Inside the drain's transaction, which waits for no other lock from here on.
    """
    over = {workflow.root_run_id for workflow in ended}
    roots = [one for one in releases if one.holds and one.is_of_root and one.root_run_id not in over]
    held = [(one.job_id, one.root_run_id) for one in roots if one.root_run_id in workflows]
    freed = [(one.job_id, one.root_run_id) for one in roots if one.root_run_id not in workflows]
    freed += [(one.root_job_id, run) for one in ended for run in root_runs(one)]
    settle_places(connection, installation, held, freed)


def root_runs(workflow: Workflow) -> list[UUID]:
    """Return the ids of the root's runs in the generations of an occurrence."""
    root, job, at = workflow.root_run_id, workflow.root_job_id, workflow.scheduled_at
    return [root, *(child_run_id(job, at, root, number) for number in range(1, workflow.generation + 1))]


def cancel_open_runs(connection: Conn, workflow: Workflow, state: str, *, reason: str | None, cause: str) -> None:
    """Release no further run of an occurrence, and cancel its open runs within about a second.

    Args:
        connection: Inside a transaction that has locked the occurrence.
        state: `cancelling` or `timing_out`.
        cause: The reason of its runs, if it has none.
    """
    set_workflow(connection, workflow, state, reason=reason)
    columns = {"root": workflow.root_run_id, "reason": reason or cause, "cancelling": RunState.CANCELLING}
    connection.execute(_SQL["cancel_workflow_runs"], columns)
    connection.execute(_SQL["hasten_releases"], columns)


def append_workflow_events(
    connection: Conn, installation: Installation, ended: Sequence[Workflow], now: datetime
) -> None:
    """Append the event `workflow.finished` of each occurrence."""
    if not ended:
        return
    columns = {"job_ids": uuids({workflow.root_job_id for workflow in ended})}
    rows = connection.execute(_SQL["read_job_keys"], columns, binary=True).fetchall()
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
