"""Events for the outbox: lifecycle events of jobs, and the completion events of runs.

Hot path: every run that ends runs this code, so values that are equal within the batch are encoded once.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Protocol
from uuid import UUID

from tidewheel.ids import event_text, hashed_id, micros
from tidewheel.jobs.values import format_timestamp
from tidewheel.outbox import OutboxLane, OutboxRow, append, pack
from tidewheel.postgres.session import Conn
from tidewheel.process import tracing
from tidewheel.runs import DEAD_LETTERED, RunState, sequence_of
from tidewheel.schedules.decision import Skip
from tidewheel.schemas.avro import HEADER_BYTES
from tidewheel.schemas.generated import records
from tidewheel.schemas.generated.records import RequestOrigin, RunError
from tidewheel.schemas.generated.wire import read_run_completed, run_completed
from tidewheel.schemas.interop import completion_headers, lifecycle_headers
from tidewheel.schemas.primitives import PLACEHOLDER, split_at
from tidewheel.transitions.finished import FinishedRun, RunEnd
from tidewheel.transitions.installation import Installation

if TYPE_CHECKING:
    from tidewheel.process.spans import Spans


_KINDS = {state: state.encode() for state in RunState}
_ID = PLACEHOLDER.encode()


def lifecycle_row(
    installation: Installation,
    *,
    kind: str,
    tenant: str,
    job_id: UUID,
    job_key: str,
    shard: int,
    now: datetime,
    job_version: int | None = None,
    reason: str | None = None,
    detail: Mapping[str, str] | None = None,
    run: tuple[UUID, int, int] | None = None,
    traceparent: str | None = None,
) -> OutboxRow:
    """Return the outbox row of one lifecycle event.

    Args:
        kind: The event's kind, such as `job.paused`.
        run: The run, its attempt, and the event's position within the run.
    """
    # The id is derived from the content, so that a repeated event has the same id.
    content = f"{job_id}|{kind}|{job_version}|{micros(now)}|{reason}|{sorted((detail or {}).items())}"
    run_id, attempt, sequence = run or (None, None, None)
    if run_id is not None:
        content = f"{run_id}|{kind}|{sequence}"
    event = records.LifecycleEvent(
        event_id=str(hashed_id(content.encode())),
        type=f"io.tidewheel.{kind}.v1",
        occurred_at=now,
        tenant=tenant,
        job_id=str(job_id),
        job_key=job_key,
        job_version=job_version,
        run_id=None if run_id is None else str(run_id),
        attempt=attempt,
        sequence=sequence,
        reason=reason,
        actor=None,
        detail=dict(detail or {}),
    )
    return OutboxRow(
        shard=shard,
        lane=OutboxLane.EVENTS,
        topic=installation.topics.events,
        key=event.job_id.encode(),
        value=installation.encode_event(event),
        publish_at=now,
        headers=lifecycle_headers(
            event, source=installation.source, traceparent=traceparent, content_type=installation.content_type
        ),
    )


class VersionFields(Protocol):
    """The columns of a job's version that its event needs."""

    @property
    def job_id(self) -> UUID: ...  # noqa: D102 - the column of that name, as below
    @property
    def tenant(self) -> str: ...  # noqa: D102
    @property
    def shard(self) -> int: ...  # noqa: D102
    @property
    def version(self) -> int: ...  # noqa: D102


class JobFields(VersionFields, Protocol):
    """The columns of a job that its event needs."""

    @property
    def key(self) -> str: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class ChangedJob:
    """A job that a statement has changed."""

    job_id: UUID
    tenant: str
    key: str
    shard: int
    version: int


def job_event(
    installation: Installation,
    kind: str,
    job: JobFields,
    now: datetime,
    *,
    reason: str | None,
    detail: Mapping[str, str] | None = None,
) -> OutboxRow:
    """Return the outbox row of the event of a changed job."""
    return lifecycle_row(
        installation,
        kind=kind,
        tenant=job.tenant,
        job_id=job.job_id,
        job_key=job.key,
        job_version=job.version,
        shard=job.shard,
        now=now,
        reason=reason,
        detail=detail,
    )


def append_job_events(
    connection: Conn,
    installation: Installation,
    kind: str,
    jobs: Sequence[JobFields],
    *,
    now: datetime,
    reasons: Mapping[UUID, str | None],
) -> None:
    """Append the lifecycle event of each changed job."""
    events = [job_event(installation, kind, job, now, reason=reasons.get(job.job_id)) for job in jobs]
    append(connection, events, shards=installation.shards)


def skip_event(installation: Installation, job: VersionFields, job_key: str, skip: Skip, now: datetime) -> OutboxRow:
    """Return the outbox row of the event of a span of occurrences that did not fire."""
    return lifecycle_row(
        installation,
        kind="occurrence.skipped",
        tenant=job.tenant,
        job_id=job.job_id,
        job_key=job_key,
        job_version=job.version,
        shard=job.shard,
        now=now,
        reason=skip.reason,
        detail={
            "first_at": format_timestamp(skip.first_at),
            "last_at": format_timestamp(skip.last_at),
            "occurrences": str(skip.occurrences),
            "is_exact": str(skip.exact).lower(),
        },
    )


def completions(finished: Iterable[FinishedRun], installation: Installation) -> Iterator[OutboxRow]:
    """Yield the completion event of each run that ends in one transaction."""
    topic, as_json = installation.topics.completions, installation.content_type == "application/json"
    frame = installation.frames["RunCompleted"] if installation.as_registry else None
    headers: _Headers | None = None
    executor_id: UUID | None = None
    executor: str | None = None
    started_at: datetime | None = None
    for run in finished:
        row, end, state, request, definition = run
        if end.executor_id is not executor_id:
            executor_id = end.executor_id
            executor = None if executor_id is None else str(executor_id)
        # The encoder finds a cached instant faster if it is the same object; messages share theirs.
        if row.started_at != started_at:
            started_at = row.started_at
        # Rows of one statement share theirs.
        if headers is None or row.ended_at != headers.ended_at:
            headers = _Headers(installation, row.ended_at)
        ended_at = headers.ended_at
        scheduled_at = request.scheduled_at if request.scheduled_at == row.scheduled_at else row.scheduled_at
        published_at = request.publish_at if request.publish_at == row.publish_at else row.publish_at
        sequence = sequence_of(row.attempt, ended_running=started_at is not None)
        event_id = event_text(end.run_id.bytes, _KINDS[state], sequence)
        value = run_completed(
            event_id,
            row.run,
            row.job,
            definition.job_key,
            row.job_version,
            row.tenant,
            row.lane,
            row.cause,
            state,
            scheduled_at,
            published_at,
            started_at,
            ended_at,
            row.attempt,
            definition.retry.max_attempts,
            executor,
            end.result if state is RunState.SUCCEEDED else None,
            _error(end, state) if end.error_type else None,
            {**definition.labels, **request.labels} if request.labels else definition.labels,
            request.parent_run_id,
            request.root_run_id,
            sequence,
            request.late_ms,
            end.reason,
            row.request_id,
            None if row.requested_from is None else _origin(row.requested_from),
        )
        traceparent = tracing.traceparent_of(end.run_id, request.traceparent)
        if frame is not None:
            value = frame + value[HEADER_BYTES:]
        elif as_json:
            value = installation.encode_event(read_run_completed(value)[0])
        yield OutboxRow(
            row.shard,
            OutboxLane.EVENTS,
            topic,
            row.job.encode(),
            value,
            ended_at,
            headers.of(event_id.encode(), row.run.encode(), state, traceparent),
        )


def record_spans(spans: "Spans", ended: Iterable[FinishedRun]) -> None:
    """Record the span of each run that has ended."""
    for row, end, state, request, definition in ended:
        spans.ended(
            end.run_id,
            request.traceparent,
            # A retry's publish_at is its own; a backfilled run's instant is long before the run.
            due=row.publish_at if row.attempt <= 1 else max(row.scheduled_at, row.created_at),
            ended=row.ended_at,
            error=(end.error_type or state.value) if state in DEAD_LETTERED else None,
            about={
                "tidewheel.run_id": row.run,
                "tidewheel.job.key": definition.job_key,
                "tidewheel.job.version": row.job_version,
                "tidewheel.tenant": row.tenant,
                "tidewheel.queue": definition.queue,
                "tidewheel.lane": str(row.lane),
                "tidewheel.cause": str(row.cause),
                "tidewheel.scheduled_at": format_timestamp(row.scheduled_at),
                "tidewheel.state": state.value,
                "tidewheel.attempt": row.attempt,
            },
            retried=UUID(request.parent_run_id) if request.parent_run_id else None,
        )


class _Headers:
    """The encoded headers of completions at one instant; within one state most differ in two ids alone."""

    def __init__(self, installation: Installation, ended_at: datetime) -> None:
        self._installation, self.ended_at = installation, ended_at
        self._pieces: dict[RunState, list[bytes]] = {}

    def of(self, event_id: bytes, run_id: bytes, state: RunState, traceparent: str | None) -> bytes:
        if traceparent is not None:
            return self._packed(event_id, run_id, state, traceparent)
        pieces = self._pieces.get(state)
        if pieces is None:
            pieces = self._pieces[state] = split_at(self._packed(_ID, _ID, state, None), _ID, _ID)
        head, middle, tail = pieces
        return b"".join((head, event_id, middle, run_id, tail))

    def _packed(self, event_id: bytes, run_id: bytes, state: RunState, traceparent: str | None) -> bytes:
        headers = completion_headers(
            self._installation.source,
            event_id=event_id,
            run_id=run_id,
            status=state,
            finished_at=self.ended_at,
            traceparent=traceparent,
            content_type=self._installation.content_type,
        )
        return pack(headers)


def _origin(requested_from: str) -> RequestOrigin:
    topic, partition, offset = requested_from.split("/")
    return RequestOrigin(topic=topic, partition=int(partition), offset=int(offset))


def _error(end: RunEnd, state: RunState) -> RunError | None:
    if end.error_type is None or state not in DEAD_LETTERED:
        return None
    return RunError(type=end.error_type, message=end.error_message or "")
