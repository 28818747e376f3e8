"""Resume an ended or stopped occurrence, or the failed part of a batch; mend a stuck occurrence.

No transaction of Tidewheel leaves a stuck one behind. A manual change or a partial restore may. What is known is the
end of each run, by its derived id. The other jobs get a run in a new generation.

A batch has the repeated runs in place of the old ones, in its refs and its edges. So a drain finds the children of a
repeated run as it finds those of a first one.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple, cast
from uuid import UUID

from psycopg.rows import class_row

from tidewheel.errors import refuse
from tidewheel.ids import child_run_id
from tidewheel.jobs.batches import MAX_RUNS
from tidewheel.jobs.validation import shown
from tidewheel.postgres.pg_binary import uuids
from tidewheel.postgres.session import Conn, rows_of
from tidewheel.postgres.statements import Statements
from tidewheel.runs import DEAD_LETTERED, Gate, Overlap, RunState
from tidewheel.transitions.active_runs import AcquireRequest, take_place
from tidewheel.transitions.batch_writer import BatchWriter, Member, SharedJob, Waits, add_joins, lock_jobs_for_share
from tidewheel.transitions.children import (
    NOW,
    ChildJob,
    Release,
    lock_children,
    new_child,
    read_versions_at,
    skip_reason,
)
from tidewheel.transitions.create import create_runs
from tidewheel.transitions.dead_letters import mark_redriven
from tidewheel.transitions.finish import finish_runs
from tidewheel.transitions.finished import RunEnd
from tidewheel.transitions.installation import Installation
from tidewheel.transitions.occurrences import (
    Again,
    Node,
    RootInputs,
    among_parents,
    parents_first,
    read_node_runs,
    read_occurrence,
    span_of_batch,
    to_run_again,
)
from tidewheel.transitions.requested_changes import OldPayloads, OldRun
from tidewheel.transitions.workflows import Workflow, end_workflow, leave_places, set_workflow

_SQL = Statements("tidewheel.transitions")
_READ_JOINS_OF = _SQL["read_joins_of"]
_DROP_JOINS_OF = _SQL["drop_joins_of"]
_DROP_BLOCKED = _SQL["drop_blocked"]
_READ_BATCH = _SQL["read_batch"]
_READ_MEMBERS = _SQL["read_batch_members"]
_READ_ENDED_RUNS = _SQL["read_ended_runs"]
_READ_EDGES = _SQL["read_batch_edges"]
_REPEAT_BATCH_RUNS = _SQL["repeat_batch_runs"]

_MAX_READ = 50_000  # runs of a batch: their states and edges are read in one transaction
_ANOTHER = "submit another batch"


def resume(
    connection: Conn,
    installation: Installation,
    workflow: Workflow,
    again: Sequence[Again],
    now: datetime,
    *,
    root_inputs: RootInputs | None,
) -> bool:
    """Open the next generation of a finished occurrence, whose row is locked.

    Args:
        again: The jobs that run again, as `to_run_again` returns them.
        root_inputs: The inputs of the root's latest run, if the root runs again.

    Returns:
        False if another occurrence, or another run of the root, has the place of this one; nothing was written.
    """
    root, root_job = workflow.root_run_id, workflow.root_job_id
    version = read_versions_at(connection, {(root_job, NOW)})[root_job, NOW]
    overlap = (root_inputs.overlap if root_inputs is not None else None) or version.overlap
    holds = version.holds_place and overlap != Overlap.ALLOW_ALL
    # Before its place: with an active run locked, a transaction waits for active runs alone (ADR 0008).
    jobs = lock_children(connection, {one.job_id for one in again})
    runs_again = root if root_inputs is None else child_run_id(root_job, workflow.scheduled_at, root, _next(workflow))
    if holds and not take_place(connection, AcquireRequest(root_job, workflow.tenant, runs_again), root):
        return False
    timeout = version.workflow_timeout_us
    workflow.deadline_at = None if timeout is None else now + timedelta(microseconds=timeout)
    workflow.failed = workflow.cancelled = 0
    gates = Gate.FLOW | Gate.WHOLE if holds else Gate.FLOW
    open_generation(
        connection, installation, workflow, again, now, jobs=jobs, root_inputs=root_inputs, root_gates=gates
    )
    return True


def open_generation(
    connection: Conn,
    installation: Installation,
    workflow: Workflow,
    again: Sequence[Again],
    now: datetime,
    *,
    jobs: Mapping[UUID, ChildJob],
    root_inputs: RootInputs | None = None,
    root_gates: Gate = Gate.FLOW,
) -> None:
    """Write the joins and the first runs of an occurrence's next generation; its counts stay as they are.

    Args:
        workflow: The occurrence, which is locked and has no open run and no release.
        jobs: The rows of the jobs that run, as `lock_children` returns them.
        root_inputs: As for `resume`.
    """
    root, at, generation = workflow.root_run_id, workflow.scheduled_at, _next(workflow)
    ids = {one.job_id: child_run_id(one.job_id, at, root, generation) for one in again}
    joined, first = [one for one in again if one.parents], [one for one in again if not one.parents]
    add_joins(connection, root, workflow.tenant, [(ids[one.job_id], one.parents, one.unmet) for one in joined])
    versions = read_versions_at(connection, {(one.job_id, NOW) for one in first})
    release = Release(
        id=0,
        shard=workflow.shard,
        root_run_id=root,
        generation=generation,
        scheduled_at=at,
        graph_at=workflow.graph_at,
        run_id=root,
        job_id=workflow.root_job_id,
        tenant=workflow.tenant,
        state="",
        began=True,
        started_at=None,
        holds=False,
        cursor_id=None,
    )
    reasons = {ids[one.job_id]: reason for one in first if (reason := skip_reason(jobs[one.job_id], one.unmet))}
    new = [
        new_child(
            versions[one.job_id, NOW],
            ids[one.job_id],
            release,
            jobs[one.job_id].shard,
            now,
            blocked=ids[one.job_id] in reasons,
        )
        for one in first
    ]
    if root_inputs is not None:
        root_job = workflow.root_job_id
        new = [root_inputs.given_to(run)._replace(gates=root_gates) if run.job_id == root_job else run for run in new]
    create_runs(connection, installation, new, now=now)
    ends = [RunEnd(run_id, 0, RunState.SKIPPED, reason=reason) for run_id, reason in reasons.items()]
    finish_runs(connection, installation, ends)
    set_workflow(connection, workflow, "open", generation=generation, pending=len(new))


def _next(workflow: Workflow) -> int:
    return workflow.generation + 1


def mend_workflow(connection: Conn, installation: Installation, workflow: Workflow, now: datetime) -> None:
    """Go on with an occurrence that has stopped, or end it.

    Args:
        workflow: The occurrence, which is locked, whose open runs are all blocked and which has no release.
    """
    root, at = workflow.root_run_id, workflow.scheduled_at
    nodes = read_occurrence(connection, root)
    joined = {
        run for (run,) in cast("list[tuple[UUID]]", connection.execute(_READ_JOINS_OF, {"root": root}).fetchall())
    }
    missing = {
        job
        for job, node in nodes.items()
        if node.state in (None, RunState.BLOCKED) or child_run_id(job, at, root, workflow.generation) in joined
    }
    ends = [node.state for job, node in nodes.items() if job not in missing]
    workflow.failed = sum(state in DEAD_LETTERED for state in ends)
    workflow.cancelled = sum(state is RunState.CANCELLED for state in ends)
    if workflow.state == "open" and missing and workflow.root_job_id not in missing:
        connection.execute(_DROP_JOINS_OF, {"roots": [root]})
        connection.execute(_DROP_BLOCKED, {"root": root, "blocked": RunState.BLOCKED})
        again = among_parents(nodes, missing)
        jobs = lock_children(connection, {one.job_id for one in again})
        open_generation(connection, installation, workflow, again, now, jobs=jobs)
        return
    workflow.pending = 0
    end_workflow(connection, installation, workflow, now)
    leave_places(connection, installation, [], {}, [workflow])


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
    row = connection.execute(_READ_BATCH, {"batch_id": batch_id}, binary=True).fetchone()
    if row is None:
        refuse("run_id", "the batch is no longer stored", _ANOTHER)
    _, total, finished_at = cast("tuple[bool, int, datetime]", row)
    if total > _MAX_READ:
        refuse("run_id", f"the batch has {total} runs, and a resume reads at most {_MAX_READ}", _ANOTHER)
    with connection.cursor(row_factory=rows_of(_Old._make), binary=True) as cursor:
        old = {row.run_id: row for row in cursor.execute(_READ_MEMBERS, {"batch_id": batch_id})}
    again = to_run_again(_nodes(connection, batch_id, old, total, finished_at))
    if not again:
        refuse("run_id", "no run of the batch failed or was cancelled", _ANOTHER)
    if len(again) > MAX_RUNS:
        refuse("run_id", f"{len(again)} runs would run again, and a resume writes at most {MAX_RUNS}", _ANOTHER)
    jobs = lock_jobs_for_share(connection, {old[one.job_id].job_id for one in again})
    for one in again:
        if old[one.job_id].job_id not in jobs:
            problem = f"the job of its run {shown(old[one.job_id].ref)} is deleted"
            refuse("run_id", problem, "submit that job again, or submit another batch")
    wanted = {"run_ids": uuids(one.job_id for one in again), **span_of_batch(batch_id, finished_at)}
    with connection.cursor(row_factory=class_row(OldRun), binary=True) as cursor:
        inputs = {run.run_id: run for run in cursor.execute(_READ_ENDED_RUNS, wanted)}
    generation = workflow.generation + 1
    writer = BatchWriter(connection, installation, batch_id, workflow.tenant, now, generation=generation)
    payloads = OldPayloads(connection, inputs, {run_id: jobs[run.job_id] for run_id, run in inputs.items()})
    members = [_member(one, old[one.job_id].ref, inputs[one.job_id], jobs, payloads) for one in again]
    writer.write(members)
    run_again = {
        one.job_id: writer.id_of(member.ref, member.job.job_id) for one, member in zip(again, members, strict=True)
    }
    columns: dict[str, object] = {"batch_id": batch_id, "old": uuids(run_again), "new": uuids(run_again.values())}
    connection.execute(_REPEAT_BATCH_RUNS, columns)
    mark_redriven(connection, run_again, now)
    workflow.failed = workflow.cancelled = 0
    set_workflow(connection, workflow, "open", generation=generation, pending=len(members))


def _nodes(
    connection: Conn, batch_id: UUID, runs: Iterable[UUID], total: int, finished_at: datetime
) -> dict[UUID, Node]:
    """Return the runs of a batch, each after its parents."""
    nodes = {run: Node(run) for run in runs}
    stored = read_node_runs(connection, nodes, batch_id, finished_at)
    if not total == len(nodes) == len(stored):
        refuse("run_id", "runs of the batch are no longer stored", _ANOTHER)
    edges = connection.execute(_READ_EDGES, {"batch_id": batch_id}, binary=True).fetchall()
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
