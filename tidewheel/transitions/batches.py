"""Batches: submit them, add runs to them, close them.

A batch is an occurrence of a workflow without a root: its row of `workflows` counts the pending runs, and the ends of
its runs write releases. An open batch counts as one pending run more, so it does not end before it is closed. A caller
that adds runs locks the jobs for share and then the occurrence, as a drain does (docs/adr/0066-batches.md).
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from hashlib import sha256
from typing import NamedTuple, cast
from uuid import UUID

from tidewheel.errors import FieldError, InvalidInput, UnknownBatch, refuse
from tidewheel.ids import RunId, job_id, run_bucket, run_id, shard_of, uuid_of
from tidewheel.jobs.batches import BatchRun
from tidewheel.jobs.requests import BatchAdd, BatchSubmit
from tidewheel.jobs.validation import shown
from tidewheel.postgres.database_clock import read_now
from tidewheel.postgres.pg_binary import NULL, columns, copy_rows, int8, text, texts, uuid, uuids, words
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements
from tidewheel.runs import Cause, RunState
from tidewheel.transitions.batch_writer import BatchWriter, Member, Origin, SharedJob, Waits
from tidewheel.transitions.create import milliseconds
from tidewheel.transitions.installation import Installation
from tidewheel.transitions.occurrences import MEETS, read_node_runs
from tidewheel.transitions.workflows import NO_JOB, Workflow, callbacks_text, end_workflow, lock_workflows

_SQL = Statements("tidewheel.transitions")

_COPY_BATCH_RUNS = "COPY batch_runs (batch_id, tenant, ref, run_id, job_id, delay_ms) FROM STDIN (FORMAT BINARY)"
_BATCH_RUN = columns(6)
_MAX_ERRORS = 50
_ENDED = ("succeeded", "failed", "cancelled")


class _Known(NamedTuple):
    """A run that the batch has already."""

    ref: str
    run_id: UUID
    job_id: UUID


def named_jobs(tenant: str, request: BatchSubmit | BatchAdd) -> set[UUID]:
    """Return the ids of the jobs that a request names."""
    keys = {run.key for run in request.runs}
    if isinstance(request, BatchSubmit):
        keys |= {key for _, key in _callback_keys(request)}
    return {job_id(tenant, key) for key in keys}


def batch_id_of(tenant: str, seed: bytes, now: datetime) -> UUID:
    """Return the id of the batch that a request writes at this time."""
    hashed = sha256(b"%b|%b" % (tenant.encode(), seed)).digest()
    return run_id(uuid_of(int.from_bytes(hashed[:16])), now, Cause.WORKFLOW, b"batch")


def submit_batch(
    connection: Conn,
    installation: Installation,
    tenant: str,
    request: BatchSubmit,
    *,
    origin: Origin,
    seed: bytes | None,
    jobs: Mapping[UUID, SharedJob],
) -> UUID:
    """Write a batch with its runs, in the caller's transaction.

    Args:
        seed: The request's id or coordinates, from which the batch's id is derived.
        jobs: The jobs that the request names, locked for share.

    Raises:
        InvalidInput: There is no job of a key.
    """
    _check_jobs(tenant, request, jobs)
    now = read_now(connection)
    batch_id = batch_id_of(tenant, seed or os.urandom(16), now)
    values: dict[str, object] = {
        "batch_id": batch_id,
        "tenant": tenant,
        "shard": shard_of(run_bucket(batch_id), installation.shards),
        "now": now,
        "pending": int(request.open),
        "open": request.open,
        "callbacks": callbacks_text(request.on),
    }
    connection.execute(_SQL["add_batch_workflow"], values)
    connection.execute(_SQL["add_batch"], values)
    _write(BatchWriter(connection, installation, batch_id, tenant, now, origin), request.runs, jobs, {})
    return batch_id


def add_to_batch(
    connection: Conn,
    installation: Installation,
    tenant: str,
    request: BatchAdd,
    *,
    origin: Origin,
    jobs: Mapping[UUID, SharedJob],
) -> bool:
    """Add runs to a batch; return False if it has all of them already, as in a second attempt.

    Args:
        jobs: The jobs that the request names, locked for share.

    Raises:
        UnknownBatch: The tenant has no such batch.
        InvalidInput: The batch takes no further runs, or one of these does not fit.
    """
    batch_id = UUID(request.batch_id)
    workflow = lock_batch(connection, tenant, batch_id)
    named = {run.ref for run in request.runs} | {one.ref for run in request.runs for one in run.after}
    found = connection.execute(
        _SQL["find_batch_runs"], {"batch_id": batch_id, "refs": texts(sorted(named))}, binary=True
    )
    known = {row.ref: row for row in map(_Known._make, cast("Iterable[_Known]", found))}
    if all(run.ref in known and known[run.ref].job_id == job_id(tenant, run.key) for run in request.runs):
        return False
    _check_takes_runs(connection, workflow, request)
    _check_jobs(tenant, request, jobs)
    _check_refs(request, known)
    now = read_now(connection)
    _write(BatchWriter(connection, installation, batch_id, tenant, now, origin), request.runs, jobs, known)
    return True


def close_batch(connection: Conn, installation: Installation, workflow: Workflow) -> bool:
    """Close a batch whose occurrence is locked; return False if it is closed already."""
    if not connection.execute(_SQL["close_batch"], {"batch_id": workflow.root_run_id}).rowcount:
        return False
    workflow.pending -= 1
    if not workflow.pending:
        end_workflow(connection, installation, workflow, read_now(connection))
    return True


def lock_batch(connection: Conn, tenant: str, batch_id: UUID) -> Workflow:
    """Lock the occurrence of a batch."""
    workflow = lock_workflows(connection, [batch_id]).get(batch_id)
    if workflow is None or workflow.tenant != tenant or workflow.root_job_id != NO_JOB:
        raise UnknownBatch(str(batch_id))
    return workflow


def _callback_keys(request: BatchSubmit) -> list[tuple[str, str]]:
    on = request.on
    given = [] if on is None else [(name, getattr(on, name)) for name in ("succeeded", "failed", "finished")]
    return [(name, callback.key) for name, callback in given if callback is not None]


def _check_jobs(tenant: str, request: BatchSubmit | BatchAdd, jobs: Mapping[UUID, SharedJob]) -> None:
    keys = [(f"runs.{place}.key", run.key) for place, run in enumerate(request.runs)]
    if isinstance(request, BatchSubmit):
        keys += [(f"on.{name}.key", key) for name, key in _callback_keys(request)]
    errors = [
        FieldError(path, f"tenant {tenant!r} has no job {key!r}", "submit the job first, or correct the key")
        for path, key in keys
        if job_id(tenant, key) not in jobs
    ]
    if not errors:
        errors = [error for place, run in enumerate(request.runs) for error in _key_errors(place, run, jobs, tenant)]
    if errors:
        raise InvalidInput(errors[:_MAX_ERRORS])


def _key_errors(place: int, run: BatchRun, jobs: Mapping[UUID, SharedJob], tenant: str) -> Sequence[FieldError]:
    """Return why a run does not go with its job's key: no field to fill it, or another order."""
    job = jobs[job_id(tenant, run.key)]
    if job.ordering_key is not None and run.after:
        problem = f"job {run.key!r} has an ordering_key, which cannot be combined with after"
        return [FieldError(f"runs.{place}.after", problem, "leave it out, or name a job without an ordering_key")]
    try:
        job.key_of(run.carried)
        job.order_of(run.carried)
    except InvalidInput as error:
        return [FieldError(f"runs.{place}.{one.path}", one.problem, one.remedy) for one in error.errors]
    return ()


def _check_takes_runs(connection: Conn, workflow: Workflow, request: BatchAdd) -> None:
    if workflow.state in _ENDED:
        refuse("batch_id", f"the batch has already ended as {workflow.state}", "submit another batch")
    if workflow.state == "cancelling":
        refuse("batch_id", "the batch is being cancelled", "submit another batch")
    is_open = connection.execute(_SQL["read_batch"], {"batch_id": workflow.root_run_id}).fetchone()
    if is_open is not None and is_open[0]:
        return
    if request.from_run_id is None:
        remedy = "name a run of the batch that is still running, or submit the batch with open: true"
        refuse("from_run_id", "the batch is closed", remedy)
    found = {"batch_id": workflow.root_run_id, "run_ids": uuids([UUID(request.from_run_id)])}
    if connection.execute(_SQL["find_pending_runs"], found).fetchone() is None:
        problem = "is not an open run of the batch"
        refuse("from_run_id", problem, "add runs before the run ends, or submit the batch with open: true")


def _check_refs(request: BatchAdd, known: Mapping[str, _Known]) -> None:
    refs = {run.ref for run in request.runs}
    errors = [
        FieldError(f"runs.{place}.ref", f"the batch already has a run {shown(run.ref)}", "give it another ref")
        for place, run in enumerate(request.runs)
        if run.ref in known
    ]
    errors += [
        FieldError(
            f"runs.{place}.after.{number}.ref",
            f"the batch has no run with the ref {shown(one.ref)}",
            "name a run of this request or of the batch",
        )
        for place, run in enumerate(request.runs)
        for number, one in enumerate(run.after)
        if one.ref not in refs and one.ref not in known
    ]
    if errors:
        raise InvalidInput(errors[:_MAX_ERRORS])


def _write(
    writer: BatchWriter, runs: Sequence[BatchRun], jobs: Mapping[UUID, SharedJob], known: Mapping[str, _Known]
) -> None:
    chosen = [jobs[job_id(writer.tenant, run.key)] for run in runs]
    ids = {run.ref: writer.id_of(run.ref, job.job_id) for run, job in zip(runs, chosen, strict=True)}
    waits = _waits(writer, runs, ids, known)
    writer.write(
        [
            Member(run.ref, job, run.carried, waits.get(run.ref, Waits()), run.delay or timedelta(0))
            for run, job in zip(runs, chosen, strict=True)
        ]
    )
    shared = _BATCH_RUN + uuid(writer.batch_id) + text(writer.tenant)
    rows = (
        b"".join((shared, text(run.ref), uuid(ids[run.ref]), uuid(job.job_id), _delay(run)))
        for run, job in zip(runs, chosen, strict=True)
    )
    copy_rows(writer.connection, _COPY_BATCH_RUNS, rows)
    _write_edges(writer, runs, ids, known)
    writer.connection.execute(_SQL["grow_batch"], {"batch_id": writer.batch_id, "runs": len(runs)})


def _delay(run: BatchRun) -> bytes:
    delay = milliseconds(run.delay) if run.after else None
    return NULL if delay is None else int8(delay)


def _waits(
    writer: BatchWriter, runs: Sequence[BatchRun], ids: Mapping[str, RunId], known: Mapping[str, _Known]
) -> dict[str, Waits]:
    """Return what each run with parents waits for; the states of counted parents are known."""
    earlier = {known[one.ref].run_id for run in runs for one in run.after if one.ref not in ids}
    pending: set[object] = set()
    states: Mapping[UUID, RunState] = {}
    if earlier:
        columns = {"batch_id": writer.batch_id, "run_ids": uuids(earlier)}
        pending = {row[0] for row in writer.connection.execute(_SQL["find_pending_runs"], columns, binary=True)}
        ended = read_node_runs(writer.connection, earlier - pending, writer.batch_id)
        states = {run_id: RunState(run.state) for run_id, run in ended.items()}
    waits: dict[str, Waits] = {}
    for run in runs:
        open_parents = unmet = 0
        for one in run.after:
            if one.ref in ids or known[one.ref].run_id in pending:
                open_parents += 1
            else:
                unmet += states.get(known[one.ref].run_id) not in MEETS[one.when]
        if run.after:
            waits[run.ref] = Waits(open_parents, unmet)
    return waits


def _write_edges(
    writer: BatchWriter, runs: Sequence[BatchRun], ids: Mapping[str, RunId], known: Mapping[str, _Known]
) -> None:
    edges = [
        (ids[one.ref] if one.ref in ids else known[one.ref].run_id, ids[run.ref], one.when)
        for run in runs
        for one in run.after
    ]
    if edges:
        columns: dict[str, object] = {
            "batch_id": writer.batch_id,
            "tenant": writer.tenant,
            "parents": uuids(parent for parent, _, _ in edges),
            "children": uuids(child for _, child, _ in edges),
            "conditions": words(condition for _, _, condition in edges),
        }
        writer.connection.execute(_SQL["add_run_edges"], columns)
