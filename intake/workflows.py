"""Requests about one occurrence: `workflow.pause`, `workflow.resume` and `workflow.cancel`.

Each locks the occurrence's row, which a drain locks too. So from the commit on no drain releases a run of an occurrence
that is paused or cancelled. A cancel of its open runs is a row for each (`pending_cancels`), written under the lock
`claims`: no executor claims one from the commit on, and the scheduler ends them within about a second.
"""

from collections.abc import Sequence
from typing import cast
from uuid import UUID

from tidewheel.errors import FieldError, InvalidInput, Refused, UnknownWorkflow
from tidewheel.ids import child_run_id
from tidewheel.intake.cancel import block_claims
from tidewheel.intake.lock_wait import RowLocked, try_lock
from tidewheel.intake.request import ReceivedRequest, accepted, rejected
from tidewheel.jobs.requests import BatchAdd, BatchClose, WorkflowCancel, WorkflowPause, WorkflowResume
from tidewheel.postgres.database_clock import read_now
from tidewheel.postgres.pg_binary import texts, uuids
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements
from tidewheel.schemas.generated.records import Reply
from tidewheel.transitions.batch_resume import resume_batch
from tidewheel.transitions.batches import close_batch
from tidewheel.transitions.dead_letters import mark_redriven
from tidewheel.transitions.installation import Installation
from tidewheel.transitions.occurrences import read_occurrence, read_root_inputs, to_run_again
from tidewheel.transitions.resume import resume
from tidewheel.transitions.workflows import NO_JOB, Workflow, cancel_open_runs, lock_workflows, set_workflow

_SQL = Statements("tidewheel.transitions")
_KEEP_ROOT_RUNS = _SQL["keep_root_runs"]
_KEEP_ROOT_RELEASES = _SQL["keep_root_releases"]
_OPEN_EARLY = _SQL["open_early"]
_HASTEN_RELEASES = _SQL["hasten_releases"]

_REASON = "workflow_cancelled"
_TRIGGER = "trigger the root for a new occurrence"


def apply_workflow_changes(
    connection: Conn,
    installation: Installation,
    batch: Sequence[ReceivedRequest],
    *,
    together: Sequence[ReceivedRequest],
) -> list[Reply]:
    """Pause, resume or cancel occurrences in the caller's transaction; return a reply for each request.

    Args:
        together: All requests of the transaction: their occurrences are locked at once, in the order of a drain.

    Raises:
        RowLocked: A claim, or a user's own transaction that completes a root, has been under way for longer than
            200 ms: roll back and try again.
    """
    lock_occurrences(connection, together)
    return [_apply(connection, installation, received) for received in batch]


def lock_occurrences(connection: Conn, batch: Sequence[ReceivedRequest]) -> None:
    """Lock the occurrences of these requests; those of roots that run get their rows now.

    Raises:
        RowLocked: A user's own transaction completes a root: roll back and try again.
    """
    of_roots = [one for one in batch if isinstance(one.request, WorkflowPause | WorkflowResume | WorkflowCancel)]
    if of_roots:
        _keep_root_runs(connection, of_roots)
        columns = _columns(of_roots)
        connection.execute(_KEEP_ROOT_RELEASES, columns)
        connection.execute(_OPEN_EARLY, columns)
    of_batches = [UUID(one.request.batch_id) for one in batch if isinstance(one.request, BatchAdd | BatchClose)]
    lock_workflows(connection, {*map(_root, of_roots), *of_batches})


def _keep_root_runs(connection: Conn, batch: Sequence[ReceivedRequest]) -> None:
    if try_lock(connection, _KEEP_ROOT_RUNS, _columns(batch)):
        return
    for received in batch:
        # Find the first locked run: one at a time in the order of the batch, each for 200 ms at most.
        if not try_lock(connection, _KEEP_ROOT_RUNS, _columns([received])):
            what = f"run {_root(received)}"
            raise RowLocked(what, [received])


def _columns(batch: Sequence[ReceivedRequest]) -> dict[str, object]:
    roots = sorted({(_root(received), received.tenant) for received in batch})
    return {"roots": uuids(root for root, _ in roots), "tenants": texts([tenant for _, tenant in roots])}


def _root(received: ReceivedRequest) -> UUID:
    return UUID(cast("WorkflowPause | WorkflowResume | WorkflowCancel", received.request).run_id)


def _apply(connection: Conn, installation: Installation, received: ReceivedRequest) -> Reply:
    request = received.request
    assert isinstance(request, WorkflowPause | WorkflowResume | WorkflowCancel)  # noqa: S101 - by the table of `apply`
    try:
        workflow = _read(connection, UUID(request.run_id), received.tenant)
        if isinstance(request, WorkflowPause):
            changed = _pause(connection, workflow, request.reason)
        elif isinstance(request, WorkflowCancel):
            changed = _cancel(connection, installation, workflow, received)
        else:
            changed = _resume(connection, installation, workflow)
    except Refused as refused:
        return rejected(received, refused)
    job_id = None if workflow.root_job_id == NO_JOB else str(workflow.root_job_id)
    return accepted(received, job_id=job_id, unchanged=not changed)


def _read(connection: Conn, root: UUID, tenant: str) -> Workflow:
    """Read an occurrence, which is locked, as the requests before have left it."""
    workflow = lock_workflows(connection, [root]).get(root)
    if workflow is None or workflow.tenant != tenant:
        raise UnknownWorkflow(str(root))
    return workflow


def _pause(connection: Conn, workflow: Workflow, reason: str | None) -> bool:
    if workflow.state != "open":
        if workflow.state != "paused":
            _refuse(f"the occurrence is {workflow.state}", "pause one that is open")
        return False
    set_workflow(connection, workflow, "paused", reason=reason)
    return True


def _cancel(connection: Conn, installation: Installation, workflow: Workflow, received: ReceivedRequest) -> bool:
    if workflow.state not in ("open", "paused"):
        return False
    reason = cast("WorkflowCancel", received.request).reason
    # A claim that began before would not see the cancels, and could start a run after the reply.
    block_claims(connection, [received])
    cancel_open_runs(connection, workflow, "cancelling", reason=reason, cause=_REASON)
    if workflow.root_job_id == NO_JOB:
        workflow.state = "cancelling"
        close_batch(connection, installation, workflow)
    return True


def _resume(connection: Conn, installation: Installation, workflow: Workflow) -> bool:
    if workflow.state == "open":  # a quarantined release is drained again
        return connection.execute(_HASTEN_RELEASES, {"root": workflow.root_run_id}).rowcount > 0
    if workflow.state in ("cancelling", "timing_out"):
        _refuse("the occurrence is being cancelled", "resume it when it has ended")
    if workflow.state == "paused":
        set_workflow(connection, workflow, "open")
        connection.execute(_HASTEN_RELEASES, {"root": workflow.root_run_id})
        return True
    if workflow.root_job_id == NO_JOB:
        resume_batch(connection, installation, workflow, read_now(connection))
        return True
    nodes = read_occurrence(connection, workflow.root_run_id)
    root = nodes[workflow.root_job_id]
    if not root.has_first_run:
        _refuse("runs of the occurrence are no longer stored", _TRIGGER)
    again = to_run_again(nodes)
    if not again:
        _refuse("no run of the occurrence failed, was cancelled or is missing", _TRIGGER)
    inputs = None
    if root.run is not None and any(one.job_id == root.job_id for one in again):
        inputs = read_root_inputs(connection, root.run.run_id)
        if inputs is None:
            _refuse("the root's run is no longer stored", _TRIGGER)
    now, generation = read_now(connection), workflow.generation + 1
    if not resume(connection, installation, workflow, again, now, root_inputs=inputs):
        _refuse("another occurrence, or another run of the root, is open", "resume it when that has ended")
    run_again = {
        run.run_id: child_run_id(one.job_id, workflow.scheduled_at, workflow.root_run_id, generation)
        for one in again
        if not one.parents and (run := nodes[one.job_id].run) is not None  # the others have no run yet
    }
    mark_redriven(connection, run_again, now)
    return True


def _refuse(problem: str, remedy: str) -> None:
    raise InvalidInput([FieldError("run_id", problem, remedy)])
