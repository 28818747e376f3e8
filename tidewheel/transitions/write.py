"""`write_runs`: the only way a run comes into being.

A run, its open run and its outbox row are written together in the caller's transaction, so that no run exists whose
message does not, and no message whose run does not. The primary key of job_runs is the uniqueness of occurrences.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from psycopg.types.json import Jsonb

from tidewheel.db import Conn
from tidewheel.ids import JobId, RunId, run_instant
from tidewheel.outbox import OutboxRow, append
from tidewheel.partitions import day_of, ensure_days
from tidewheel.runs import Cause, RunState
from tidewheel.schemas import records
from tidewheel.schemas.codec import encode
from tidewheel.sql import Statements
from tidewheel.transitions.dispatch import Definitions
from tidewheel.transitions.installation import Installation

_ADD_JOB_RUNS = Statements("tidewheel.transitions")["add_job_runs"]

_COPY_JOB_RUNS = (
    "COPY job_runs (run_id, job_id, tenant, job_version, shard, cause, queue, lane, scheduled_at, made_at, "
    "parent_run_id, root_run_id) FROM STDIN (FORMAT BINARY)"
)
_JOB_RUN_TYPES = (
    "uuid", "uuid", "text", "int4", "int2", "text", "text", "text", "timestamptz", "timestamptz", "uuid", "uuid"
)  # fmt: skip
_COPY_OPEN_RUNS = (
    "COPY open_runs (run_id, job_id, tenant, shard, queue, lane, handler, cause, overlap, state, job_version, "
    "scheduled_at, publish_at, made_at, deadline_at, close_at) FROM STDIN (FORMAT BINARY)"
)
_OPEN_RUN_TYPES = (
    "uuid", "uuid", "text", "int2", "text", "text", "text", "text", "text", "text", "int4",
    "timestamptz", "timestamptz", "timestamptz", "timestamptz", "timestamptz",
)  # fmt: skip
_COPY_INPUTS = (
    "COPY run_inputs (run_id, tenant, payload, payload_content_type, labels, overlap, traceparent, request_id, "
    "late_ms) FROM STDIN (FORMAT BINARY)"
)
_INPUT_TYPES = ("uuid", "text", "bytea", "text", "jsonb", "text", "text", "text", "int8")


@dataclass(frozen=True, slots=True)
class RunInputs:
    """What a run carries beyond its job's version; `late`: how late, where it makes up for a missed occurrence."""

    payload: bytes | None = None
    payload_content_type: str | None = None
    labels: dict[str, str] | None = None
    overlap: str | None = None
    traceparent: str | None = None
    request_id: str | None = None
    late: timedelta | None = None


@dataclass(frozen=True, slots=True)
class NewRun:
    """A run to be.

    Args:
        run_id: Derived by `tidewheel.ids.run_id`.
        job_id: Its job.
        tenant: The job's tenant.
        job_version: The version it is made from; a claim with another version finds nothing.
        shard: The job's shard.
        cause: Why there is a run.
        queue: Which executors may take it.
        lane: Its priority class.
        handler: The handler's name, or None for a target that any executor can run.
        overlap: The policy in force for this run.
        scheduled_at: The nominal instant.
        publish_at: Not to be claimed before.
        definition: The version's JobDefinition, as stored.
        limited: False where it is known that the version bounds neither the start nor the whole of its runs.
        inputs: What it carries beyond that, if anything.
        parent_run_id: The run that an `on_failure` or a retry came from.
        root_run_id: The root of a workflow's occurrence.
    """

    run_id: RunId
    job_id: JobId
    tenant: str
    job_version: int
    shard: int
    cause: Cause
    queue: str
    lane: str
    handler: str | None
    overlap: str
    scheduled_at: datetime
    publish_at: datetime
    definition: bytes
    limited: bool = True
    inputs: RunInputs | None = None
    parent_run_id: RunId | None = None
    root_run_id: RunId | None = None


def write_runs(
    connection: Conn, installation: Installation, runs: Sequence[NewRun], *, now: datetime, repeats: bool = False
) -> set[UUID]:
    """Write runs with their open runs and outbox rows, in the caller's transaction.

    Args:
        connection: Inside a transaction.
        installation: Shards and topic names.
        runs: What to write.
        now: The database's clock, read in this transaction.
        repeats: Whether some may have been written before; then those are passed over. Slower.

    Returns:
        The ids that were written.

    Raises:
        psycopg.errors.UniqueViolation: A run exists already and `repeats` is false.
    """
    if not runs:
        return set()
    ensure_days(connection, {day_of(run_instant(run.run_id)) for run in runs})
    if repeats:
        # One row per id: what was asked for twice in one batch is one run.
        runs = list({run.run_id: run for run in runs}.values())
        written = _add_job_runs(connection, runs, now)
        runs = [run for run in runs if run.run_id in written]
        if not runs:
            return written
    else:
        written = {UUID(int=run.run_id.int) for run in runs}
        _copy_job_runs(connection, runs, now)
    _copy_open_runs(connection, runs, now)
    _copy_inputs(connection, runs)
    rows = [_outbox_row(run, installation) for run in runs]
    append(connection, rows, shards=installation.shards)
    return written


def milliseconds(late: timedelta | None) -> int | None:
    """How late, as it is stored and told."""
    return None if late is None else late // timedelta(milliseconds=1)


def _copy_job_runs(connection: Conn, runs: Sequence[NewRun], now: datetime) -> None:
    with connection.cursor() as cursor, cursor.copy(_COPY_JOB_RUNS) as copy:
        copy.set_types(_JOB_RUN_TYPES)
        for r in runs:
            copy.write_row(
                (
                    r.run_id, r.job_id, r.tenant, r.job_version, r.shard, r.cause, r.queue, r.lane, r.scheduled_at, now,
                    r.parent_run_id, r.root_run_id,
                )
            )  # fmt: skip


def _add_job_runs(connection: Conn, runs: Sequence[NewRun], now: datetime) -> set[UUID]:
    columns: dict[str, list[object]] = {
        "run_ids": [run.run_id for run in runs],
        "job_ids": [run.job_id for run in runs],
        "tenants": [run.tenant for run in runs],
        "versions": [run.job_version for run in runs],
        "shards": [run.shard for run in runs],
        "causes": [run.cause for run in runs],
        "queues": [run.queue for run in runs],
        "lanes": [run.lane for run in runs],
        "scheduled_at": [run.scheduled_at for run in runs],
        "made_at": [now] * len(runs),
        "parents": [run.parent_run_id for run in runs],
        "roots": [run.root_run_id for run in runs],
    }
    return {row[0] for row in connection.execute(_ADD_JOB_RUNS, columns, binary=True) if isinstance(row[0], UUID)}


def _copy_open_runs(connection: Conn, runs: Sequence[NewRun], now: datetime) -> None:
    with connection.cursor() as cursor, cursor.copy(_COPY_OPEN_RUNS) as copy:
        copy.set_types(_OPEN_RUN_TYPES)
        for r in runs:
            copy.write_row(
                (
                    r.run_id, r.job_id, r.tenant, r.shard, r.queue, r.lane, r.handler, r.cause, r.overlap,
                    RunState.QUEUED, r.job_version, r.scheduled_at, r.publish_at, now, *_deadlines(r),
                )
            )  # fmt: skip


def _deadlines(run: NewRun) -> tuple[datetime | None, datetime | None]:
    """The earliest deadline of a new run, and when its schedule_to_close strikes; both count from its publish_at."""
    if not run.limited:
        return None, None
    definition = _DEFINITIONS.of(run.definition)
    start_ms, close_ms = definition.schedule_to_start_ms, definition.schedule_to_close_ms
    if start_ms is None and close_ms is None:
        return None, None
    starts = None if start_ms is None else run.publish_at + timedelta(milliseconds=start_ms)
    closes = None if close_ms is None else run.publish_at + timedelta(milliseconds=close_ms)
    return min(at for at in (starts, closes) if at is not None), closes


def _copy_inputs(connection: Conn, runs: Sequence[NewRun]) -> None:
    carrying = [(run, run.inputs) for run in runs if run.inputs is not None]
    if not carrying:
        return
    with connection.cursor() as cursor, cursor.copy(_COPY_INPUTS) as copy:
        copy.set_types(_INPUT_TYPES)
        for run, i in carrying:
            labels = None if i.labels is None else Jsonb(i.labels)
            copy.write_row(
                (
                    run.run_id, run.tenant, i.payload, i.payload_content_type, labels, i.overlap, i.traceparent,
                    i.request_id, milliseconds(i.late),
                )
            )  # fmt: skip


def _outbox_row(run: NewRun, installation: Installation) -> OutboxRow:
    inputs = run.inputs or _NO_INPUTS
    run_id = str(run.run_id)
    request = records.RunRequest(
        run_id=run_id,
        job_id=str(run.job_id),
        job_version=run.job_version,
        attempt=1,
        cause=records.Cause(run.cause),
        shard=run.shard,
        scheduled_at=run.scheduled_at,
        publish_at=run.publish_at,
        payload=inputs.payload,
        payload_content_type=inputs.payload_content_type,
        labels=inputs.labels,
        traceparent=inputs.traceparent,
        late_ms=milliseconds(inputs.late),
        checkpoint=None,
        parent_run_id=str(run.parent_run_id) if run.parent_run_id else None,
        root_run_id=str(run.root_run_id) if run.root_run_id else None,
        definition=run.definition,
    )
    return OutboxRow(
        shard=run.shard,
        outbox_class=run.lane,
        topic=installation.topics.runs(run.queue, run.lane),
        key=run_id.encode(),
        value=encode(request),
        publish_at=run.publish_at,
    )


_NO_INPUTS = RunInputs()
_DEFINITIONS = Definitions()
