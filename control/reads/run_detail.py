"""Read one run with its attempts, deadlines and retry chain."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING
from uuid import UUID

from psycopg.rows import class_row

from tidewheel.control.reads.retry_chain import RelatedRun, RetryChain, retry_chain_of
from tidewheel.control.reads.run_stages import RunStage, run_stages
from tidewheel.control.reads.runs import RunRow, RunSummary, summary_of
from tidewheel.control.reads.stored import read_definition, rows_as
from tidewheel.control.reads.waits import read_waits
from tidewheel.errors import UnknownRun
from tidewheel.jobs.payload import JSON_CONTENT
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements
from tidewheel.runs import AttemptOutcome

if TYPE_CHECKING:
    from tidewheel.schemas.generated.records import JobDefinition

_SQL = Statements("tidewheel.control")
_SHOW_FAILED_RUN = _SQL["show_failed_run"]
_SHOW_RUN = _SQL["show_run"]
_READ_PAST_ATTEMPTS = _SQL["read_past_attempts"]
_READ_RETRY_CHAIN = _SQL["read_retry_chain"]


@dataclass(frozen=True, slots=True)
class PastAttempt:
    """An attempt that has ended.

    Args:
        attempt: Its number.
        outcome: Its outcome.
        executor_id: Its executor.
        started_at: When it was claimed.
        finished_at: When it ended.
        error_type: The error's type.
        error_message: The error's text.
        claimed_from: The message by which it was claimed, as topic/partition/offset@timestamp, or `sweep`.
        trace: Its traceback.
        output: The last 64 KiB of its output.
        output_bytes: All bytes that it wrote, where known.
        result: The handler's result, as JSON text.
    """

    attempt: int
    outcome: str
    executor_id: UUID | None
    started_at: datetime | None
    finished_at: datetime
    error_type: str | None
    error_message: str | None
    claimed_from: str | None
    trace: str | None
    output: bytes | None
    output_bytes: int | None
    result: bytes | None


@dataclass(frozen=True, slots=True)
class PayloadFacts:
    """The size and the type of the payload that a run's handler gets.

    Args:
        bytes: Its size.
        content_type: Its type.
        is_own: True if the run was created with it; False if it is that of its job's version.
    """

    bytes: int
    content_type: str
    is_own: bool


@dataclass(frozen=True, slots=True)
class RunDetail:
    """A run with its attempts, deadlines and retry chain.

    Args:
        summary: The run as in lists.
        handler: The handler or capability that its executor must have.
        labels: Its job's labels, overridden by its own.
        max_attempts: How many attempts may fail before the run fails; 0 if its definition is lost or cannot be read.
        failed_attempts: How many attempts count against `max_attempts`; None of an ended run with more than a hundred.
        lost_attempts: How many were lost with their executors; None likewise.
        deadline_at: The earliest of its timeouts that PostgreSQL keeps.
        schedule_to_close_at: When its schedule_to_close timeout fires.
        external_deadline_at: While it waits for an external completion: until when.
        executor_id: The executor that owns it.
        executor: That executor's name.
        claimed_from: The message by which the current attempt was claimed.
        progress: Reported by the current attempt, or the last, as JSON text.
        progress_at: When it was reported.
        checkpoint: Passed to the next attempt, as JSON text.
        checkpoint_attempt: The attempt that saved it.
        error_message: The last attempt's error.
        result: The handler's result, as JSON text.
        late: How late it was created, if it catches up a missed occurrence.
        request_id: The id of the request that created it.
        traceparent: Its trace.
        dead_letter: Its dead letter, if it is one.
        workflow_run_id: The root's run, if it belongs to an occurrence of a workflow.
        batch_id: Its batch, if it belongs to one.
        retry_chain: The runs that it retries, and its retries.
        attempts: The last hundred that have ended, the oldest first.
        payload: The size and type of its payload; None if the database has it no more, or cannot read its definition.
        stages: The stages that it has passed, each with the clock that gave its instant.
        archived: True if the archive has it and the database no more: without outputs, results and progress.
        copied: True if only the copy of a failed run is left: without attempts, inputs and labels of its own.
    """

    summary: RunSummary
    handler: str
    labels: Mapping[str, str]
    max_attempts: int
    failed_attempts: int | None
    lost_attempts: int | None
    deadline_at: datetime | None
    schedule_to_close_at: datetime | None
    external_deadline_at: datetime | None
    executor_id: UUID | None
    executor: str | None
    claimed_from: str | None
    progress: bytes | None
    progress_at: datetime | None
    checkpoint: bytes | None
    checkpoint_attempt: int | None
    error_message: str | None
    result: bytes | None
    late: timedelta | None
    request_id: str | None
    traceparent: str | None
    dead_letter: int | None
    workflow_run_id: UUID | None
    retry_chain: RetryChain
    attempts: tuple[PastAttempt, ...]
    payload: PayloadFacts | None
    stages: tuple[RunStage, ...]
    archived: bool
    copied: bool = False
    batch_id: UUID | None = None


def show_run(connection: Conn, tenant: str, run_id: UUID) -> RunDetail:
    """Return one run, or raise UnknownRun."""
    with connection.cursor(row_factory=rows_as(_RunDetailRow), binary=True) as cursor:
        row = cursor.execute(_SHOW_RUN, {"run_id": run_id, "tenant": tenant}).fetchone()
    if row is None:
        raise UnknownRun(str(run_id))
    why = read_waits(connection, [run_id]).get(run_id) if row.finished_at is None else None
    attempts = tuple(past_attempts(connection, run_id))
    failed, lost = row.failed_attempts, row.lost_attempts
    if row.finished_at is not None and len(attempts) == row.attempt:
        outcomes = Counter(attempt.outcome for attempt in attempts)
        failed = outcomes[AttemptOutcome.FAILED] + outcomes[AttemptOutcome.TIMED_OUT]
        lost = outcomes[AttemptOutcome.LOST]
    summary, definition = replace(summary_of(row), why=why), read_definition(row.definition, f"run {run_id}")
    return RunDetail(
        summary=summary,
        handler=row.handler,
        labels=row.labels,
        max_attempts=_max_attempts(definition),
        failed_attempts=failed,
        lost_attempts=lost,
        deadline_at=row.deadline_at,
        schedule_to_close_at=row.schedule_to_close_at,
        external_deadline_at=row.external_deadline_at,
        executor_id=row.executor_id,
        executor=row.executor,
        claimed_from=row.claimed_from,
        progress=row.progress,
        progress_at=row.progress_at,
        checkpoint=row.checkpoint,
        checkpoint_attempt=row.checkpoint_attempt,
        error_message=row.error_message,
        result=row.result,
        late=None if row.late_ms is None else timedelta(milliseconds=row.late_ms),
        request_id=row.request_id,
        traceparent=row.traceparent,
        dead_letter=row.dead_letter,
        workflow_run_id=row.workflow_run_id,
        retry_chain=retry_chain_of(run_id, row.parent_run_id, row.root_run_id, _read_retry_chain(connection, row)),
        attempts=attempts,
        payload=_payload(row, definition),
        stages=run_stages(summary, attempts, row.claimed_from),
        archived=False,
        batch_id=row.batch_id,
    )


def show_failed_run(connection: Conn, tenant: str, run_id: UUID) -> RunDetail:
    """Return what is left of a failed run whose day retention has dropped, or raise UnknownRun."""
    with connection.cursor(row_factory=rows_as(_FailedRunRow), binary=True) as cursor:
        row = cursor.execute(_SHOW_FAILED_RUN, {"run_id": run_id, "tenant": tenant}).fetchone()
    if row is None:
        raise UnknownRun(str(run_id))
    maximum = _max_attempts(read_definition(row.definition, f"run {run_id}"))
    left = remains_of(summary_of(row), row.handler or "", row.labels, maximum)
    return replace(left, error_message=row.error_message, dead_letter=row.dead_letter, copied=True)


def remains_of(summary: RunSummary, handler: str, labels: Mapping[str, str], max_attempts: int) -> RunDetail:
    """Return a run that is no longer stored, with what every copy of it has."""
    return RunDetail(
        summary=summary,
        handler=handler,
        labels=labels,
        max_attempts=max_attempts,
        failed_attempts=None,
        lost_attempts=None,
        deadline_at=None,
        schedule_to_close_at=None,
        external_deadline_at=None,
        executor_id=None,
        executor=None,
        claimed_from=None,
        progress=None,
        progress_at=None,
        checkpoint=None,
        checkpoint_attempt=None,
        error_message=None,
        result=None,
        late=None,
        request_id=None,
        traceparent=None,
        dead_letter=None,
        workflow_run_id=None,
        retry_chain=retry_chain_of(summary.run_id, None, None, []),
        attempts=(),
        payload=None,
        stages=run_stages(summary, (), None),
        archived=False,
    )


def past_attempts(connection: Conn, run_id: UUID) -> list[PastAttempt]:
    """Return the ended attempts of a run, the oldest first, at most the last hundred."""
    with connection.cursor(row_factory=class_row(PastAttempt), binary=True) as cursor:
        return cursor.execute(_READ_PAST_ATTEMPTS, {"run_id": run_id}).fetchall()


@dataclass(frozen=True, slots=True)
class _FailedRunRow(RunRow):
    handler: str | None
    definition: bytes | None
    labels: dict[str, str]
    error_message: str | None
    dead_letter: int | None
    redriven_run_id: UUID | None


@dataclass(frozen=True, slots=True)
class _RunDetailRow(RunRow):
    handler: str
    definition: bytes
    failed_attempts: int | None
    lost_attempts: int | None
    deadline_at: datetime | None
    schedule_to_close_at: datetime | None
    external_deadline_at: datetime | None
    executor_id: UUID | None
    executor: str | None
    claimed_from: str | None
    parent_run_id: UUID | None
    root_run_id: UUID | None
    labels: dict[str, str]
    request_id: str | None
    traceparent: str | None
    late_ms: int | None
    progress: bytes | None
    progress_at: datetime | None
    progress_attempt: int | None
    checkpoint: bytes | None
    checkpoint_attempt: int | None
    error_message: str | None
    result: bytes | None
    payload_bytes: int | None
    payload_content_type: str | None
    workflow_run_id: UUID | None
    batch_id: UUID | None
    dead_letter: int | None
    redriven_run_id: UUID | None


def _max_attempts(definition: "JobDefinition | None") -> int:
    return 0 if definition is None else definition.retry.max_attempts


def _payload(row: _RunDetailRow, definition: "JobDefinition | None") -> PayloadFacts | None:
    of_job = JSON_CONTENT if definition is None else definition.payload_content_type
    if row.payload_bytes is not None:
        return PayloadFacts(row.payload_bytes, row.payload_content_type or of_job, is_own=True)
    return None if definition is None else PayloadFacts(len(definition.payload), of_job, is_own=False)


def _read_retry_chain(connection: Conn, row: RunRow) -> list[RelatedRun]:
    columns = {"job_id": row.job_id, "scheduled_at": row.scheduled_at}
    with connection.cursor(row_factory=class_row(RelatedRun), binary=True) as cursor:
        return cursor.execute(_READ_RETRY_CHAIN, columns).fetchall()
