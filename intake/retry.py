"""`run.retry`: a run that is over becomes a new one: its payload, under the job's current version.

The old run stays as it ended; the new one names it, and the root of the chain. Where the old one was a dead letter,
that says in the same transaction what it was redriven as.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from psycopg.rows import class_row

from tidewheel.errors import FieldError, InvalidInput, Refused, UnknownJob, UnknownRun
from tidewheel.ids import JobId, RunId, run_id
from tidewheel.intake.locks import read_now
from tidewheel.intake.request import ReceivedRequest, accepted, rejected
from tidewheel.intake.trigger import SharedJob, lock_jobs_for_share
from tidewheel.jobs.payload import Payload
from tidewheel.jobs.requests import RunRetry
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements
from tidewheel.runs import FINAL, Cause, RunState
from tidewheel.schemas.generated.records import Reply
from tidewheel.transitions.create import NewRun, RunInputs, create_runs
from tidewheel.transitions.dead_letters import mark_redriven
from tidewheel.transitions.installation import Installation
from tidewheel.transitions.run_messages import Definitions, read_definitions

_SQL = Statements("tidewheel.intake")
_READ_RETRIED = _SQL["read_retried"]
_READ_JOB_KEY = _SQL["read_job_key"]


@dataclass(frozen=True, slots=True)
class _Old:
    """A run of which a new one is wanted, with what it carried beyond its version."""

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
    """Make new runs of old ones, in the caller's transaction; an answer for each request, in their order."""
    old = _read(connection, [_asked(received).run_id for received in batch])
    jobs = lock_jobs_for_share(connection, {run.job_id for run in old.values()})
    payloads = _Payloads(connection, old, jobs)
    now = read_now(connection)
    runs: list[NewRun] = []
    replies: list[Reply] = []
    redriven: dict[UUID, UUID] = {}
    for received in batch:
        try:
            run = _over(connection, received, old, jobs)
        except Refused as refused:
            replies.append(rejected(received, refused))
            continue
        made = _made(received, run, jobs[run.job_id], payloads.of(run), now=now)
        runs.append(made)
        redriven[run.run_id] = made.run_id
        replies.append(
            accepted(received, job_id=str(run.job_id), job_version=made.job_version, run_id=str(made.run_id))
        )
    create_runs(connection, installation, runs, now=now, repeats=True)
    mark_redriven(connection, redriven, now)
    return replies


def _asked(received: ReceivedRequest) -> RunRetry:
    assert isinstance(received.request, RunRetry)  # noqa: S101 - by accept's table
    return received.request


def _read(connection: Conn, run_ids: Sequence[str]) -> dict[UUID, _Old]:
    with connection.cursor(row_factory=class_row(_Old), binary=True) as cursor:
        found = cursor.execute(_READ_RETRIED, {"run_ids": sorted({UUID(run) for run in run_ids})})
        return {row.run_id: row for row in found}


def _over(
    connection: Conn, received: ReceivedRequest, old: Mapping[UUID, _Old], jobs: Mapping[UUID, SharedJob]
) -> _Old:
    """The run of which a new one is to be made.

    Raises:
        Refused: There is none, it is not over, or its job is gone.
    """
    run = old.get(UUID(_asked(received).run_id))
    if run is None or run.tenant != received.tenant:
        raise UnknownRun(_asked(received).run_id)
    if RunState(run.state) not in FINAL:
        problem = f"run {run.run_id} is {run.state}: it is not over"
        raise InvalidInput([FieldError("run_id", problem, "wait until it has ended, or cancel it first")])
    if run.job_id not in jobs:
        row = connection.execute(_READ_JOB_KEY, {"job_id": run.job_id}, binary=True).fetchone()
        raise UnknownJob(run.tenant, str(row[0]) if row else "")
    return run


def _made(received: ReceivedRequest, old: _Old, job: SharedJob, payload: Payload | None, *, now: datetime) -> NewRun:
    request = _asked(received)
    origin = old.run_id.bytes + (received.seed() or os.urandom(16))
    inputs = RunInputs(
        payload=payload.content if payload else None,
        payload_content_type=payload.content_type if payload else None,
        labels=old.labels,
        traceparent=request.traceparent or old.traceparent,
        request_id=request.request_id,
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
    )


class _Payloads:
    """What old runs were handed, where their job's current version would hand on something else."""

    def __init__(self, connection: Conn, old: Mapping[UUID, _Old], jobs: Mapping[UUID, SharedJob]) -> None:
        self._jobs = jobs
        edited = [
            (run.job_id, run.job_version)
            for run in old.values()
            if run.job_id in jobs and run.job_version != jobs[run.job_id].version
        ]
        self._definitions = read_definitions(connection, edited) if edited else {}

    def of(self, run: _Old) -> Payload | None:
        """What the new run has to carry; None where its version says the same."""
        current = self._jobs[run.job_id].definition
        standing = self._definitions.get((run.job_id, run.job_version), current)
        if run.payload is not None:
            return Payload(run.payload, run.payload_content_type or _payload(standing).content_type)
        handed = _payload(standing)
        return None if handed == _payload(current) else handed


def _payload(definition: bytes) -> Payload:
    decoded = _DEFINITIONS.of(definition)
    return Payload(decoded.payload, decoded.payload_content_type)


_DEFINITIONS = Definitions()
