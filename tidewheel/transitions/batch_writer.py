"""Lock jobs for share, and write runs of a batch whose occurrence is locked or new.

Runs that come after others are written at once, as `blocked`, with a join each.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple, cast
from uuid import UUID

from tidewheel.errors import InvalidInput
from tidewheel.ids import JobId, RunId, run_id
from tidewheel.jobs.invalid import InvalidValue
from tidewheel.jobs.keys import fill_key, is_template
from tidewheel.jobs.payload import Payload
from tidewheel.postgres.pg_binary import integers, uuids
from tidewheel.postgres.session import Conn, read_rows, rows_of
from tidewheel.postgres.statements import Statements
from tidewheel.runs import Cause, Gate, Overlap, RunState, SkipReason, order_gates
from tidewheel.transitions.create import create_runs
from tidewheel.transitions.finish import finish_runs
from tidewheel.transitions.finished import RunEnd
from tidewheel.transitions.installation import Installation
from tidewheel.transitions.messages import DEFINITIONS
from tidewheel.transitions.new_runs import NewRun, RunInputs

_NO_GATES = Gate(0)

_SQL = Statements("tidewheel.transitions")

_NOTHING = RunInputs()


class SharedJob(NamedTuple):
    """The columns that a run needs of a job whose key is locked for share."""

    job_id: UUID
    shard: int
    version: int
    deleted_at: datetime | None
    handler: str
    queue: str
    lane: str
    overlap: str
    definition: bytes
    key: str | None
    priority: int
    ordering_key: str | None
    passes: bool
    dedupe: str | None

    def key_of(self, payload: Payload | None, requested: str | None = None) -> str | None:
        """Return the concurrency key of a new run, filled with fields of its payload, else of the job's."""
        key = requested or self.key
        return None if key is None else self.fill(key, payload, "concurrency key")

    def order_of(self, payload: Payload | None) -> tuple[str | None, Gate]:
        """Return the ordering key of a new run by its job, filled in likewise, and the run's gates."""
        if self.ordering_key is None:
            return None, _NO_GATES
        return self.fill(self.ordering_key, payload, "ordering key"), order_gates(passes=self.passes)

    def fill(self, key: str, payload: Payload | None, what: str) -> str:
        """Return a key filled with fields of a payload, or raise InvalidInput; `what` is the key's name."""
        if not is_template(key):
            return key
        try:
            return fill_key(key, payload or payload_of(self.definition), what)
        except InvalidValue as error:
            raise InvalidInput(error.errors) from error


def payload_of(definition: bytes) -> Payload:
    """Return the payload of a version by its stored definition; it has no bytes if the job has none."""
    decoded = DEFINITIONS.of(definition)
    return Payload(decoded.payload, decoded.payload_content_type)


def lock_jobs_for_share(connection: Conn, job_ids: Collection[UUID]) -> dict[UUID, SharedJob]:
    """Lock jobs against deletion until their runs are written; return those that exist."""
    columns = {"job_ids": uuids(job_ids)}
    connection.execute(_SQL["lock_jobs_for_share"], columns)
    found = read_rows(connection, rows_of(SharedJob._make), _SQL["read_shared_jobs"], columns)
    return {job.job_id: job for job in found if job.deleted_at is None}


def read_versions(connection: Conn, versions: Collection[tuple[UUID, int]]) -> dict[tuple[UUID, int], SharedJob]:
    """Return locked jobs as they were in these versions."""
    columns = {"job_ids": uuids(job for job, _ in versions), "versions": [version for _, version in versions]}
    with connection.cursor(row_factory=rows_of(SharedJob._make), binary=True) as cursor:
        return {(job.job_id, job.version): job for job in cursor.execute(_SQL["read_shared_versions"], columns)}


class Origin(NamedTuple):
    """The request that writes runs: its id, the coordinates of its message, its trace context."""

    request_id: str | None = None
    requested_from: str | None = None
    traceparent: str | None = None


_NO_ORIGIN = Origin()


class Waits(NamedTuple):
    """The numbers of pending parents of a new run, and of those that ended otherwise than needed."""

    parents: int = 0
    unmet: int = 0


class Member(NamedTuple):
    """A run of a batch to write; `delay` counts from now, and is not used if the run waits for parents.

    With `blocks` it repeats a run that blocks an ordering key, and takes its place: the run and the key.
    """

    ref: str
    job: SharedJob
    payload: Payload | None
    waits: Waits = Waits()
    delay: timedelta = timedelta(0)
    traceparent: str | None = None
    blocks: tuple[UUID, str] | None = None


def add_joins(connection: Conn, root: UUID, tenant: str, waits: Sequence[tuple[UUID, int, int]]) -> None:
    """Write the joins of runs of an occurrence: each run, its pending parents, and the unmet ones."""
    columns: dict[str, object] = {
        "root": root,
        "tenant": tenant,
        "run_ids": uuids(run for run, _, _ in waits),
        "parents": integers(parents for _, parents, _ in waits),
        "unmet": integers(unmet for _, _, unmet in waits),
    }
    connection.execute(_SQL["add_joins"], columns)


def member_id(job_id: UUID, at: datetime, batch_id: UUID, ref: str, generation: int = 0) -> RunId:
    """Return the id of the run of a job that a batch gets at this time under a ref."""
    again = b"\0%d" % generation if generation else b""
    return run_id(job_id, at, Cause.WORKFLOW, batch_id.bytes + ref.encode() + again)


@dataclass(frozen=True, slots=True)
class BatchWriter:
    """Writes runs of one batch, in the caller's transaction; each resume is one more `generation`."""

    connection: Conn
    installation: Installation
    batch_id: UUID
    tenant: str
    now: datetime
    origin: Origin = _NO_ORIGIN
    generation: int = 0

    def id_of(self, ref: str, job_id: UUID) -> RunId:
        """Return the id of the run that is written now under a ref."""
        return member_id(job_id, self.now, self.batch_id, ref, self.generation)

    def write(self, members: Sequence[Member]) -> None:
        """Write runs, and the joins of those that wait.

        The caller counts them as pending, and writes their edges.
        """
        runs = [self._new_run(member) for member in members]
        create_runs(self.connection, self.installation, runs, now=self.now)
        pairs = [(run.run_id, member.waits) for run, member in zip(runs, members, strict=True)]
        joined = [(run, waits.parents, waits.unmet) for run, waits in pairs if waits.parents]
        if joined:
            add_joins(self.connection, self.batch_id, self.tenant, joined)
        skipped = [run for run, waits in pairs if waits.unmet and not waits.parents]
        ends = [RunEnd(run, 0, RunState.SKIPPED, reason=SkipReason.PARENTS) for run in skipped]
        finish_runs(self.connection, self.installation, ends)

    def _new_run(self, member: Member) -> NewRun:
        job, payload, blocked = member.job, member.payload, member.waits != Waits()
        at = self.now if blocked else self.now + member.delay
        # A number in an order is taken by a run that may start: one that waits for parents would hold others behind it.
        repeated, order = (None, None) if blocked or member.blocks is None else member.blocks
        gates = Gate.ORDER if repeated else Gate(0)
        if not blocked and repeated is None:
            order, gates = job.order_of(payload)
        inputs = RunInputs(traceparent=member.traceparent or self.origin.traceparent)
        if payload is not None:
            inputs = RunInputs(payload.content, payload.content_type, traceparent=inputs.traceparent)
        return NewRun(
            run_id=self.id_of(member.ref, job.job_id),
            job_id=JobId(job.job_id),
            tenant=self.tenant,
            job_version=job.version,
            shard=job.shard,
            cause=Cause.WORKFLOW,
            queue=job.queue,
            lane=job.lane,
            handler=job.handler,
            overlap=Overlap.ALLOW_ALL if repeated else job.overlap,  # as every run with a place in an order
            scheduled_at=at,
            publish_at=at,
            definition=job.definition,
            inputs=None if inputs == _NOTHING else inputs,
            request_id=self.origin.request_id,
            requested_from=self.origin.requested_from,
            gates=Gate.FLOW | gates,
            workflow_run_id=self.batch_id,
            generation=self.generation,
            concurrency_key=None if repeated else job.key_of(payload),
            ordering_key=order,
            repeats_blocker=repeated,
            priority=job.priority,
            blocked=blocked,
        )


def find_delays(connection: Conn, run_ids: Sequence[UUID]) -> Mapping[UUID, timedelta]:
    """Return the delays of those of these runs of batches that have one after their parents."""
    if not run_ids:
        return {}
    rows = connection.execute(_SQL["find_batch_delays"], {"run_ids": uuids(run_ids)}, binary=True).fetchall()
    return {run: timedelta(milliseconds=delay) for run, delay in cast("list[tuple[UUID, int]]", rows)}
