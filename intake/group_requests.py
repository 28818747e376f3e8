"""Apply requests about many jobs or runs: freezes, occurrences of workflows, batches.

Each locks the occurrence's row, which a drain locks too. So from the commit on no drain releases a run of an occurrence
that is paused or cancelled. A cancel of its open runs is a row for each (`pending_cancels`), written under the lock
`claims`: no executor claims one from the commit on, and the scheduler ends them within about a second.

A batch of runs is an occurrence too. Its requests lock the jobs that they name, then the occurrences in the order of
their ids, as a drain does.

A freeze is one row that every claim reads. It is written under the lock `claims`: a batch of claims comes wholly before
it, or sees it. Firing holds the timers that come due under it. A thaw ends the freeze at once, and the scheduler then
releases these timers (scheduler/releases.py). The sweeps of the executors find the runs that waited.

An operator's freeze of all runs of a tenant is not ended by a key or a topic of the tenant.

A run shows neither its job's labels nor its key. So a freeze by them has a row for each job, and each submit keeps
these rows. A submit that is not committed when the freeze is written may miss it: the scheduler then adds the job.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, cast
from uuid import UUID

import psycopg
from psycopg.types.json import Jsonb

from tidewheel.errors import PausedByOperator, UnknownFreeze, UnknownWorkflow, refuse
from tidewheel.ids import child_run_id
from tidewheel.intake.locks import RowLocked, lock_each, try_lock
from tidewheel.intake.request import ReceivedRequest, accepted
from tidewheel.intake.runs import block_claims
from tidewheel.intake.writing import Writing, one_by_one
from tidewheel.jobs.requests import (
    BatchAdd,
    BatchClose,
    BatchSubmit,
    Freeze,
    Thaw,
    WorkflowCancel,
    WorkflowPause,
    WorkflowResume,
)
from tidewheel.postgres.pg_binary import texts, uuids
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements
from tidewheel.schemas.generated.records import Reply
from tidewheel.transitions.batch_resume import resume_batch
from tidewheel.transitions.batch_writer import Origin, SharedJob, lock_jobs_for_share
from tidewheel.transitions.batches import add_to_batch, close_batch, lock_batch, named_jobs, submit_batch
from tidewheel.transitions.dead_letters import mark_redriven
from tidewheel.transitions.occurrences import read_occurrence, read_root_inputs, to_run_again
from tidewheel.transitions.resume import resume
from tidewheel.transitions.workflows import NO_JOB, Workflow, cancel_open_runs, lock_workflows, set_workflow

_TRANSITIONS = Statements("tidewheel.transitions")

_SQL = Statements("tidewheel.intake")

_REASON = "workflow_cancelled"
_TRIGGER = "trigger the root for a new occurrence"

MAX_JOBS = 100_000  # jobs of one freeze: a row each, about a second in all


def apply_workflow_changes(writing: Writing, batch: Sequence[ReceivedRequest]) -> list[Reply]:
    """Pause, resume or cancel occurrences."""
    _lock_occurrences(writing)
    return one_by_one(batch, partial(_change, writing))


def apply_batch_submits(writing: Writing, batch: Sequence[ReceivedRequest]) -> list[Reply]:
    """Write batches."""
    jobs = _lock_named_jobs(writing, batch)

    def submit(received: ReceivedRequest) -> Reply:
        batch_id = submit_batch(
            writing.connection,
            writing.installation,
            received.tenant,
            received.of(BatchSubmit),
            origin=_origin(received),
            seed=received.seed(),
            jobs=jobs,
        )
        return accepted(received, batch_id=str(batch_id))

    return one_by_one(batch, submit)


def apply_batch_adds(writing: Writing, batch: Sequence[ReceivedRequest]) -> list[Reply]:
    """Add runs to batches."""
    jobs = _lock_named_jobs(writing, batch)
    _lock_occurrences(writing)

    def add(received: ReceivedRequest) -> Reply:
        request, origin = received.of(BatchAdd), _origin(received)
        added = add_to_batch(
            writing.connection, writing.installation, received.tenant, request, origin=origin, jobs=jobs
        )
        return accepted(received, batch_id=request.batch_id, unchanged=not added)

    return one_by_one(batch, add)


def apply_batch_closes(writing: Writing, batch: Sequence[ReceivedRequest]) -> list[Reply]:
    """Close batches."""
    _lock_occurrences(writing)

    def close(received: ReceivedRequest) -> Reply:
        batch_id = received.of(BatchClose).batch_id
        workflow = lock_batch(writing.connection, received.tenant, UUID(batch_id))
        closed = close_batch(writing.connection, writing.installation, workflow)
        return accepted(received, batch_id=batch_id, unchanged=not closed)

    return one_by_one(batch, close)


def _lock_named_jobs(writing: Writing, batch: Sequence[ReceivedRequest]) -> Mapping[UUID, SharedJob]:
    named = (named_jobs(received.tenant, cast("BatchSubmit | BatchAdd", received.request)) for received in batch)
    return lock_jobs_for_share(writing.connection, set[UUID]().union(*named))


def _origin(received: ReceivedRequest) -> Origin:
    return Origin(received.request.request_id, received.requested_from, received.traceparent)


def _lock_occurrences(writing: Writing) -> None:
    """Lock the occurrences of all requests of the transaction; those of roots that run get their rows now.

    Raises:
        RowLocked: A user's own transaction completes a root: roll back and try again.
    """
    connection, batch = writing.connection, writing.together
    of_roots = [one for one in batch if isinstance(one.request, WorkflowPause | WorkflowResume | WorkflowCancel)]
    if of_roots:
        lock_each(
            connection, _TRANSITIONS["keep_root_runs"], of_roots, columns=_columns, what=lambda one: f"run {_root(one)}"
        )
        writing.execute(_TRANSITIONS["keep_root_releases"], **_columns(of_roots))
        writing.execute(_TRANSITIONS["open_early"], **_columns(of_roots))
    of_batches = [UUID(one.request.batch_id) for one in batch if isinstance(one.request, BatchAdd | BatchClose)]
    lock_workflows(connection, {*map(_root, of_roots), *of_batches})


def _columns(batch: Sequence[ReceivedRequest]) -> dict[str, object]:
    roots = sorted({(_root(received), received.tenant) for received in batch})
    return {"roots": uuids(root for root, _ in roots), "tenants": texts([tenant for _, tenant in roots])}


def _root(received: ReceivedRequest) -> UUID:
    return UUID(cast("WorkflowPause | WorkflowResume | WorkflowCancel", received.request).run_id)


def _change(writing: Writing, received: ReceivedRequest) -> Reply:
    request = cast("WorkflowPause | WorkflowResume | WorkflowCancel", received.request)
    # Locked already: read as the requests before have left it.
    root = UUID(request.run_id)
    workflow = lock_workflows(writing.connection, [root]).get(root)
    if workflow is None or workflow.tenant != received.tenant:
        raise UnknownWorkflow(str(root))
    if isinstance(request, WorkflowPause):
        changed = _pause(writing, workflow, request.reason)
    elif isinstance(request, WorkflowCancel):
        changed = _cancel(writing, workflow, received, request.reason)
    else:
        changed = _resume(writing, workflow)
    job_id = None if workflow.root_job_id == NO_JOB else str(workflow.root_job_id)
    return accepted(received, job_id=job_id, unchanged=not changed)


def _pause(writing: Writing, workflow: Workflow, reason: str | None) -> bool:
    if workflow.state != "open":
        if workflow.state != "paused":
            refuse("run_id", f"the occurrence is {workflow.state}", "pause only an open occurrence")
        return False
    set_workflow(writing.connection, workflow, "paused", reason=reason)
    return True


def _cancel(writing: Writing, workflow: Workflow, received: ReceivedRequest, reason: str | None) -> bool:
    if workflow.state not in ("open", "paused"):
        return False
    # A claim that began before would not see the cancels, and could start a run after the reply.
    block_claims(writing.connection, [received])
    cancel_open_runs(writing.connection, workflow, "cancelling", reason=reason, cause=_REASON)
    if workflow.root_job_id == NO_JOB:
        workflow.state = "cancelling"
        close_batch(writing.connection, writing.installation, workflow)
    return True


def _resume(writing: Writing, workflow: Workflow) -> bool:
    connection, installation = writing.connection, writing.installation
    if workflow.state == "open":  # a quarantined release is drained again
        return writing.execute(_TRANSITIONS["hasten_releases"], root=workflow.root_run_id).rowcount > 0
    if workflow.state in ("cancelling", "timing_out"):
        refuse("run_id", "the occurrence is being cancelled", "resume it when it has ended")
    if workflow.state == "paused":
        set_workflow(connection, workflow, "open")
        writing.execute(_TRANSITIONS["hasten_releases"], root=workflow.root_run_id)
        return True
    if workflow.root_job_id == NO_JOB:
        resume_batch(connection, installation, workflow, writing.now())
        return True
    nodes = read_occurrence(connection, workflow.root_run_id)
    root = nodes[workflow.root_job_id]
    if not root.has_first_run:
        refuse("run_id", "runs of the occurrence are no longer stored", _TRIGGER)
    again = to_run_again(nodes)
    if not again:
        refuse("run_id", "no run of the occurrence failed, was cancelled or is missing", _TRIGGER)
    inputs = None
    if root.run is not None and any(one.job_id == root.job_id for one in again):
        inputs = read_root_inputs(connection, root.run.run_id)
        if inputs is None:
            refuse("run_id", "the root's run is no longer stored", _TRIGGER)
    now, generation = writing.now(), workflow.generation + 1
    if not resume(connection, installation, workflow, again, now, root_inputs=inputs):
        refuse("run_id", "another occurrence or another run of the root is open", "resume it when that has ended")
    run_again = {
        run.run_id: child_run_id(one.job_id, workflow.scheduled_at, workflow.root_run_id, generation)
        for one in again
        if not one.parents and (run := nodes[one.job_id].run) is not None  # the others have no run yet
    }
    mark_redriven(connection, run_again, now)
    return True


class _Standing(NamedTuple):
    """A standing freeze; `by_operator` is true for that of a tenant that no key of the tenant ends."""

    id: int
    by_operator: bool


def keep_frozen_jobs(connection: Conn, job_ids: Iterable[UUID]) -> None:
    """Add jobs that were just written to the standing freezes that they fit; remove them from the others."""
    connection.execute(_SQL["keep_frozen_jobs"], {"job_ids": uuids(job_ids)})


def freeze(writing: Writing, received: ReceivedRequest) -> Reply:
    """Write a freeze."""
    request = received.of(Freeze)
    scope = _scope(received, request)
    is_pause = request.scope == "tenant" and not (request.queue or request.labels or request.key_prefix)
    by_operator = is_pause and _is_operator(writing, received)
    columns: dict[str, object] = {**scope, "reason": request.reason, "by": request.by, "by_operator": by_operator}
    if by_operator and _take_over(writing, received, columns):
        return accepted(received)
    if _find(writing, scope) is not None:
        return accepted(received, unchanged=True)
    [(columns["id"],)] = writing.read(_SQL["next_freeze_id"])
    added = 0
    with writing.connection.transaction() as savepoint:
        _add_jobs(writing, columns)
        # As late as possible: no executor can claim from here to the commit.
        block_claims(writing.connection, [received])
        # Freezes come one after another from here on, so this sees one that was written meanwhile.
        added = writing.execute(_SQL["add_freeze"], **columns).rowcount
        if not added:
            raise psycopg.Rollback(savepoint)
    changed = added or (by_operator and _take_over(writing, received, columns))
    return accepted(received, unchanged=not changed)


def _take_over(writing: Writing, received: ReceivedRequest, columns: dict[str, object]) -> bool:
    """Make the pause that a key of the tenant has begun one of an operator; return False if there is none."""
    standing = _find(writing, columns)
    if standing is None or standing.by_operator:
        return False
    _lock(writing, received, standing)
    return writing.execute(_SQL["take_over_pause"], **{**columns, "id": standing.id}).rowcount > 0


def thaw(writing: Writing, received: ReceivedRequest) -> Reply:
    """End a freeze."""
    request = received.of(Thaw)
    scope = _scope(received, request)
    standing = _find(writing, scope)
    if standing is None:
        named = ("key_prefix", "labels", "queue", "scope")
        raise UnknownFreeze(next(name for name in named if getattr(request, name)))
    _lock(writing, received, standing)
    # A later statement than the lock: it sees that an operator has taken the pause over.
    standing = _find(writing, scope)
    if standing is None:
        return accepted(received, unchanged=True)
    if standing.by_operator and not _is_operator(writing, received):
        raise PausedByOperator(received.tenant)
    writing.execute(_SQL["thaw"], id=standing.id)
    return accepted(received)


def _lock(writing: Writing, received: ReceivedRequest, standing: _Standing) -> None:
    if not try_lock(writing.connection, _SQL["lock_freeze"], {"id": standing.id}):
        what = "the freeze"
        raise RowLocked(what, [received])


def _is_operator(writing: Writing, received: ReceivedRequest) -> bool:
    """Return True for a sender with the rights of all tenants: none by a key or a topic of one tenant."""
    if received.origin is not None:
        return writing.installation.topics.tenant_of(received.origin.topic) is None
    return writing.actor is None or writing.actor.tenant is None


def _scope(received: ReceivedRequest, request: Freeze | Thaw) -> dict[str, object]:
    return {
        "tenant": None if request.scope == "fleet" else received.tenant,
        "queue": request.queue,
        "labels": Jsonb(request.labels) if request.labels else None,
        "key_prefix": request.key_prefix,
    }


def _find(writing: Writing, scope: dict[str, object]) -> _Standing | None:
    rows = cast("list[tuple[int, bool]]", writing.read(_TRANSITIONS["find_freeze"], **scope))
    return _Standing(*rows[0]) if rows else None


def _add_jobs(writing: Writing, columns: dict[str, object]) -> None:
    if columns["labels"] is None and columns["key_prefix"] is None:
        return
    found = writing.read_unindexed(_SQL["find_jobs_to_freeze"], **columns, limit=MAX_JOBS + 1)
    if len(found) > MAX_JOBS:
        path = "labels" if columns["labels"] is not None else "key_prefix"
        refuse(path, f"more than {MAX_JOBS} jobs match", "narrow it, or freeze a queue or the tenant")
    jobs = cast("list[tuple[UUID]]", found)
    writing.execute(_SQL["add_frozen_jobs"], **columns, job_ids=uuids(job for (job,) in jobs))
