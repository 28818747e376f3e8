"""`run.retry`: create a new run from one that has ended, under the job's current version.

The old run keeps its state. The new run has its payload, and names it as its parent, and the root of the retry chain.
If the old run is a dead letter, the same transaction stores the new run's id in it.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from psycopg.rows import class_row

from tidewheel.errors import FieldError, InvalidInput, Refused, UnknownJob, UnknownRun
from tidewheel.ids import JobId, RunId, run_id
from tidewheel.intake.request import ReceivedRequest, accepted, rejected
from tidewheel.intake.trigger import TriggeredJob, lock_jobs_for_share
from tidewheel.jobs.payload import Payload
from tidewheel.jobs.requests import RunRetry
from tidewheel.postgres.database_clock import read_now
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements
from tidewheel.runs import FINAL, Cause, RunState
from tidewheel.schemas.generated.records import Reply
from tidewheel.transitions.create import NewRun, RunInputs, create_runs
from tidewheel.transitions.dead_letters import mark_redriven
from tidewheel.transitions.installation import Installation
from tidewheel.transitions.run_messages import Definitions, read_definitions

_SQL = Statements("tidewheel.intake")
_READ_RETRIED_RUNS = _SQL["read_retried_runs"]
_READ_JOB_KEY = _SQL["read_job_key"]


@dataclass(frozen=True, slots=True)
class _OldRun:
    """A run to retry, with the inputs that it had beyond its version."""

    run_id: UUID
    tenant: str
    job_id: UUID
    job_version: int
    state: str
    scheduled_at: datetime
    root_run_id: UUID | None
    payload: bytes | None
    payload_content_type: str | None
    labels: dict[str, str] | None
    traceparent: str | None


def apply_retries(connection: Conn, installation: Installation, batch: Sequence[ReceivedRequest]) -> list[Reply]:
    """Retry runs in the caller's transaction; return a reply for each request, in their order."""
    old = _read(connection, [_retry(received).run_id for received in batch])
    jobs = lock_jobs_for_share(connection, {run.job_id for run in old.values()})
    payloads = _Payloads(connection, old, jobs)
    now = read_now(connection)
    runs: list[NewRun] = []
    replies: list[Reply] = []
    redriven: dict[UUID, UUID] = {}
    for received in batch:
        try:
            run = _finished_run(connection, received, old, jobs)
        except Refused as refused:
            replies.append(rejected(received, refused))
            continue
        new = _new_run(received, run, jobs[run.job_id], payloads.of(run), now=now)
        runs.append(new)
        redriven[run.run_id] = new.run_id
        replies.append(accepted(received, job_id=str(run.job_id), job_version=new.job_version, run_id=str(new.run_id)))
    create_runs(connection, installation, list({run.run_id: run for run in runs}.values()), now=now)
    mark_redriven(connection, redriven, now)
    return replies


def _retry(received: ReceivedRequest) -> RunRetry:
    assert isinstance(received.request, RunRetry)  # noqa: S101 - by the table of `apply`
    return received.request


def _read(connection: Conn, run_ids: Sequence[str]) -> dict[UUID, _OldRun]:
    with connection.cursor(row_factory=class_row(_OldRun), binary=True) as cursor:
        found = cursor.execute(_READ_RETRIED_RUNS, {"run_ids": sorted({UUID(run) for run in run_ids})})
        return {row.run_id: row for row in found}


def _finished_run(
    connection: Conn, received: ReceivedRequest, old: Mapping[UUID, _OldRun], jobs: Mapping[UUID, TriggeredJob]
) -> _OldRun:
    """Return the run to retry.

    Raises:
        Refused: The run does not exist, has not ended, or its job is deleted.
    """
    run = old.get(UUID(_retry(received).run_id))
    if run is None or run.tenant != received.tenant:
        raise UnknownRun(_retry(received).run_id)
    if RunState(run.state) not in FINAL:
        problem = f"run {run.run_id} is {run.state}: it has not ended"
        raise InvalidInput([FieldError("run_id", problem, "wait until it has ended, or cancel it first")])
    if run.job_id not in jobs:
        row = connection.execute(_READ_JOB_KEY, {"job_id": run.job_id}, binary=True).fetchone()
        raise UnknownJob(run.tenant, str(row[0]) if row else "")
    return run


def _new_run(
    received: ReceivedRequest, old: _OldRun, job: TriggeredJob, payload: Payload | None, *, now: datetime
) -> NewRun:
    request = _retry(received)
    origin = old.run_id.bytes + (received.seed() or os.urandom(16))
    inputs = RunInputs(
        payload=payload.content if payload else None,
        payload_content_type=payload.content_type if payload else None,
        labels=old.labels,
        traceparent=request.traceparent or old.traceparent,
    )
    return NewRun(
        run_id=run_id(job.job_id, old.scheduled_at, Cause.RETRY, origin, at=now),
        job_id=JobId(job.job_id),
        tenant=old.tenant,
        job_version=job.version,
        shard=job.shard,
        cause=Cause.RETRY,
        queue=job.queue,
        lane=job.lane,
        handler=job.handler,
        overlap=job.overlap,
        scheduled_at=old.scheduled_at,
        publish_at=now + (request.delay or timedelta(0)),
        definition=job.definition,
        inputs=None if inputs == RunInputs() else inputs,
        parent_run_id=RunId(old.run_id),
        root_run_id=RunId(old.root_run_id or old.run_id),
        request_id=request.request_id,
    )


class _Payloads:
    """The payloads of old runs, where the job's current version has another one."""

    def __init__(self, connection: Conn, old: Mapping[UUID, _OldRun], jobs: Mapping[UUID, TriggeredJob]) -> None:
        self._jobs = jobs
        edited = [
            (run.job_id, run.job_version)
            for run in old.values()
            if run.job_id in jobs and run.job_version != jobs[run.job_id].version
        ]
        self._definitions = read_definitions(connection, edited) if edited else {}

    def of(self, run: _OldRun) -> Payload | None:
        """Return the payload that the new run needs; None if its version has the same."""
        current = self._jobs[run.job_id].definition
        definition = self._definitions.get((run.job_id, run.job_version), current)
        if run.payload is not None:
            return Payload(run.payload, run.payload_content_type or _payload(definition).content_type)
        payload = _payload(definition)
        return None if payload == _payload(current) else payload


def _payload(definition: bytes) -> Payload:
    decoded = _DEFINITIONS.of(definition)
    return Payload(decoded.payload, decoded.payload_content_type)


_DEFINITIONS = Definitions()
