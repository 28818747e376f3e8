"""Resume an ended or stopped occurrence; mend a stuck one.

No transaction of Tidewheel leaves a stuck one behind. A manual change or a partial restore may. What is known is the
end of each run, by its derived id. The other jobs get a run in a new generation.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from uuid import UUID

from tidewheel.ids import child_run_id
from tidewheel.postgres.session import Conn, read_ids
from tidewheel.postgres.statements import Statements
from tidewheel.runs import DEAD_LETTERED, Gate, Overlap, RunState
from tidewheel.transitions.active_runs import AcquireRequest, take_place
from tidewheel.transitions.batch_writer import add_joins
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
from tidewheel.transitions.finish import finish_runs
from tidewheel.transitions.finished import RunEnd
from tidewheel.transitions.installation import Installation
from tidewheel.transitions.occurrences import (
    Again,
    RootInputs,
    among_parents,
    read_occurrence,
)
from tidewheel.transitions.workflows import Workflow, end_workflow, leave_places, set_workflow

_SQL = Statements("tidewheel.transitions")


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
    joined = read_ids(connection, _SQL["read_joins_of"], {"root": root})
    missing = {
        job
        for job, node in nodes.items()
        if node.state in (None, RunState.BLOCKED) or child_run_id(job, at, root, workflow.generation) in joined
    }
    ends = [node.state for job, node in nodes.items() if job not in missing]
    workflow.failed = sum(state in DEAD_LETTERED for state in ends)
    workflow.cancelled = sum(state is RunState.CANCELLED for state in ends)
    if workflow.state == "open" and missing and workflow.root_job_id not in missing:
        connection.execute(_SQL["drop_joins_of"], {"roots": [root]})
        connection.execute(_SQL["drop_blocked"], {"root": root, "blocked": RunState.BLOCKED})
        again = among_parents(nodes, missing)
        jobs = lock_children(connection, {one.job_id for one in again})
        open_generation(connection, installation, workflow, again, now, jobs=jobs)
        return
    workflow.pending = 0
    end_workflow(connection, installation, workflow, now)
    leave_places(connection, installation, [], {}, [workflow])
