"""Run the failed part of a batch again.

The batch has the repeated runs in place of the old ones, in its refs and its edges. So a drain finds the children of a
repeated run as it finds those of a first one. A service that imports this module gets the right to replace them.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import NamedTuple, cast
from uuid import UUID

from psycopg.rows import class_row

from tidewheel.errors import refuse
from tidewheel.jobs.batches import MAX_RUNS
from tidewheel.jobs.validation import shown
from tidewheel.postgres.pg_binary import uuids
from tidewheel.postgres.session import Conn, read_rows, rows_of
from tidewheel.postgres.statements import Statements
from tidewheel.transitions.batch_writer import BatchWriter, Member, SharedJob, Waits, lock_jobs_for_share
from tidewheel.transitions.dead_letters import mark_redriven
from tidewheel.transitions.installation import Installation
from tidewheel.transitions.occurrences import (
    Again,
    Node,
    parents_first,
    read_node_runs,
    span_of_batch,
    to_run_again,
)
from tidewheel.transitions.requested_changes import OldPayloads, OldRun
from tidewheel.transitions.workflows import Workflow, set_workflow

_SQL = Statements("tidewheel.transitions")

_MAX_READ = 50_000  # runs of a batch: their states and edges are read in one transaction
_ANOTHER = "submit another batch"


class _Old(NamedTuple):
    """A run of the batch."""

    run_id: UUID
    ref: str
    job_id: UUID


def resume_batch(connection: Conn, installation: Installation, workflow: Workflow, now: datetime) -> None:
    """Run the failed part of a batch again.

    Args:
        workflow: The occurrence of the batch, which is locked and has ended.

    Raises:
        InvalidInput: Nothing of it failed, a job is deleted, it is too large, or its runs are no longer stored.
    """
    batch_id = workflow.root_run_id
    row = connection.execute(_SQL["read_batch"], {"batch_id": batch_id}, binary=True).fetchone()
    if row is None:
        refuse("run_id", "the batch is no longer stored", _ANOTHER)
    _, total, finished_at = cast("tuple[bool, int, datetime]", row)
    if total > _MAX_READ:
        refuse("run_id", f"the batch has {total} runs, but a resume reads at most {_MAX_READ}", _ANOTHER)
    old = {
        row.run_id: row
        for row in read_rows(connection, rows_of(_Old._make), _SQL["read_batch_members"], {"batch_id": batch_id})
    }
    again = to_run_again(_nodes(connection, batch_id, old, total, finished_at))
    if not again:
        refuse("run_id", "no run of the batch failed or was cancelled", _ANOTHER)
    if len(again) > MAX_RUNS:
        refuse("run_id", f"{len(again)} runs would run again, but a resume writes at most {MAX_RUNS}", _ANOTHER)
    jobs = lock_jobs_for_share(connection, {old[one.job_id].job_id for one in again})
    for one in again:
        if old[one.job_id].job_id not in jobs:
            problem = f"the job of run {shown(old[one.job_id].ref)} is deleted"
            refuse("run_id", problem, "submit that job again, or submit another batch")
    wanted = {"run_ids": uuids(one.job_id for one in again), **span_of_batch(batch_id, finished_at)}
    inputs = {run.run_id: run for run in read_rows(connection, class_row(OldRun), _SQL["read_ended_runs"], wanted)}
    generation = workflow.generation + 1
    writer = BatchWriter(connection, installation, batch_id, workflow.tenant, now, generation=generation)
    payloads = OldPayloads(connection, inputs, {run_id: jobs[run.job_id] for run_id, run in inputs.items()})
    members = [_member(one, old[one.job_id].ref, inputs[one.job_id], jobs, payloads) for one in again]
    writer.write(members)
    run_again = {
        one.job_id: writer.id_of(member.ref, member.job.job_id) for one, member in zip(again, members, strict=True)
    }
    columns: dict[str, object] = {"batch_id": batch_id, "old": uuids(run_again), "new": uuids(run_again.values())}
    connection.execute(_SQL["repeat_batch_runs"], columns)
    mark_redriven(connection, run_again, now)
    workflow.failed = workflow.cancelled = 0
    set_workflow(connection, workflow, "open", generation=generation, pending=len(members))


def _nodes(
    connection: Conn, batch_id: UUID, runs: Iterable[UUID], total: int, finished_at: datetime
) -> dict[UUID, Node]:
    nodes = {run: Node(run) for run in runs}
    stored = read_node_runs(connection, nodes, batch_id, finished_at)
    if not total == len(nodes) == len(stored):
        refuse("run_id", "runs of the batch are no longer stored", _ANOTHER)
    edges = connection.execute(_SQL["read_batch_edges"], {"batch_id": batch_id}, binary=True).fetchall()
    for parent, child, condition in cast("list[tuple[UUID, UUID, str]]", edges):
        nodes[child].parents[parent] = condition
    for run, node in nodes.items():
        node.run = stored[run]
    return parents_first(nodes)


def _member(again: Again, ref: str, run: OldRun, jobs: Mapping[UUID, SharedJob], payloads: OldPayloads) -> Member:
    """Return the run that repeats another: the current version of its job, and the payload that it had."""
    waits = Waits(again.parents, again.unmet)
    blocks = (run.run_id, run.blocks_key) if run.blocks_key else None
    return Member(ref, jobs[run.job_id], payloads.of(run), waits, traceparent=run.traceparent, blocks=blocks)
