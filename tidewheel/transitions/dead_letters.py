"""Dead letters: failed runs and unreadable messages, in a table and on a topic."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple, cast
from uuid import UUID

from psycopg.rows import class_row

from tidewheel.ids import event_id
from tidewheel.jobs.payload import Payload
from tidewheel.outbox import Headers, OutboxLane, OutboxRow, append, headers_of, parts_of
from tidewheel.postgres.pg_binary import uuids
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements
from tidewheel.runs import sequence_of
from tidewheel.schemas.definitions import NO_PAYLOAD
from tidewheel.schemas.generated import records
from tidewheel.transitions.finished import FinishedRun, RunEnd
from tidewheel.transitions.installation import Installation

_SQL = Statements("tidewheel.transitions")

_KIND = "tidewheel-dlq-kind"
_TRACE = 8192  # characters of a trace that stay with its failed run, after output is dropped: some 80 frames


@dataclass(frozen=True, slots=True)
class DeadMessage:
    """A message that cannot be read, on a topic of requests or of targets' replies.

    Args:
        key: Its key, byte for byte, or the head of it.
        value: Its value, byte for byte, or the head of it.
        reason: The reason why it cannot be read.
        headers: The headers of a target's reply, which needs its task token.
        cut_from: The bytes of the whole value, if only its head is kept.
        tenant: The tenant of its topic; None for a shared topic.
    """

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    reason: str
    headers: Headers = ()
    cut_from: int | None = None
    tenant: str | None = None


@dataclass(frozen=True, slots=True)
class DeadLetterRef:
    """The columns of a dead letter that a redrive or a purge needs."""

    id: int
    kind: str
    run_id: UUID | None
    created_at: datetime


class LetterScan(NamedTuple):
    """A part of a walk over dead letters: those that match, and the last one looked at; None at the end."""

    letters: Sequence[DeadLetterRef]
    last: DeadLetterRef | None


@dataclass(frozen=True, slots=True)
class _PastAttempt:
    attempt: int
    executor_id: UUID | None
    started_at: datetime | None
    finished_at: datetime
    outcome: str
    error_type: str | None
    error_message: str | None


def dead_letter_run(connection: Conn, installation: Installation, run: FinishedRun) -> OutboxRow:
    """Store a failed run as a dead letter; return the message that publishes it.

    The message holds the last attempt in full and up to 99 earlier ones by their outcome. So it stays below 900 KiB:
    payload 256 KiB, traceback 32 Ki characters, output 64 KiB, and the bounds on everything else.
    """
    row, end, state, request, definition = run
    reason = end.error_message or end.reason or end.error_type or state
    facts: dict[str, object] = {
        "run_id": row.run_id, "job_id": row.job_id, "tenant": row.tenant, "job_version": row.job_version,
        "cause": row.cause, "queue": row.queue, "lane": row.lane, "scheduled_at": row.scheduled_at,
        "started_at": row.started_at, "finished_at": row.ended_at, "state": state, "attempt": row.attempt,
        "error_type": end.error_type, "error_message": end.error_message, "trace": (end.trace or "")[-_TRACE:] or None,
    }  # fmt: skip
    connection.execute(_SQL["add_failed_run"], facts)
    connection.execute(_SQL["add_dead_run"], facts | {"reason": reason, "created_at": row.ended_at})
    with connection.cursor(row_factory=class_row(_PastAttempt)) as cursor:
        past = cursor.execute(_SQL["read_attempts"], {"run_id": row.run_id}).fetchall()[::-1]
    payload, content_type = _payload(request, definition)
    letter = records.DeadLetter(
        event_id=str(event_id(row.run_id, "dead", row.attempt)),
        run_id=str(row.run_id),
        job_id=str(row.job_id),
        job_key=definition.job_key,
        job_version=row.job_version,
        tenant=row.tenant,
        lane=records.Lane(row.lane),
        cause=records.Cause(row.cause),
        status=records.RunStatus(state),
        scheduled_at=row.scheduled_at,
        published_at=row.publish_at,
        started_at=row.started_at,
        finished_at=row.ended_at,
        attempt=row.attempt,
        max_attempts=definition.retry.max_attempts,
        executor_id=str(end.executor_id) if end.executor_id else None,
        error=records.RunError(type=end.error_type, message=end.error_message or "") if end.error_type else None,
        labels={**definition.labels, **(request.labels or {})},
        parent_run_id=request.parent_run_id,
        root_run_id=request.root_run_id,
        sequence=sequence_of(row.attempt, ended_running=row.started_at is not None),
        reason=reason,
        payload=payload,
        payload_content_type=content_type,
        traceparent=request.traceparent,
        attempts=tuple(_attempt(attempt, end, last=attempt.attempt == row.attempt) for attempt in past),
    )
    return OutboxRow(
        shard=row.shard,
        lane=OutboxLane.EVENTS,
        topic=installation.topics.dead_letters,
        key=letter.job_id.encode(),
        value=installation.encode_event(letter),
        publish_at=row.ended_at,
        headers=((_KIND, b"run"), ("content-type", installation.content_type.encode())),
    )


def dead_letter_message(connection: Conn, installation: Installation, dead: DeadMessage, now: datetime) -> OutboxRow:
    """Store a message that cannot be read as a dead letter; return the message that publishes it.

    The headers are not published: a task token is a secret of its target.
    """
    connection.execute(
        _SQL["add_dead_message"],
        {
            "tenant": dead.tenant or "default",
            "topic": dead.topic,
            "partition": dead.partition,
            "offset": dead.offset,
            "key": dead.key,
            "value": dead.value,
            "headers": parts_of(dead.headers),
            "cut_from": dead.cut_from,
            "reason": dead.reason,
            "created_at": now,
        },
    )
    return OutboxRow(
        shard=dead.partition % installation.shards,
        lane=OutboxLane.EVENTS,
        topic=installation.topics.dead_letters,
        key=dead.key,
        value=dead.value,
        publish_at=now,
        headers=(
            (_KIND, b"message"),
            ("tidewheel-dlq-topic", dead.topic.encode()),
            ("tidewheel-dlq-partition", str(dead.partition).encode()),
            ("tidewheel-dlq-offset", str(dead.offset).encode()),
            ("tidewheel-dlq-error", dead.reason.encode()),
            ("tidewheel-dlq-stage", b"intake"),
            *([("tidewheel-dlq-tenant", dead.tenant.encode())] if dead.tenant else []),
        ),
    )


def mark_redriven(connection: Conn, new_runs: Mapping[UUID, UUID], now: datetime) -> None:
    """Record the redrives of dead letters, in the transaction that creates the new runs."""
    if new_runs:
        columns = {"run_ids": uuids(new_runs), "new_run_ids": uuids(new_runs.values()), "now": now}
        connection.execute(_SQL["mark_redriven"], columns)


def scan_dead_letters(connection: Conn, columns: Mapping[str, object]) -> LetterScan:
    """Look at the next `look` dead letters after one of them, and return the first `limit` that match."""
    rows = connection.execute(_SQL["scan_dead_letters"], columns, binary=True).fetchall()
    letters: list[DeadLetterRef] = []
    last: DeadLetterRef | None = None
    for *values, matches in rows:
        each = DeadLetterRef(*cast("tuple[int, str, UUID | None, datetime]", tuple(values)))
        if matches:
            letters.append(each)
        else:
            last = each
    return LetterScan(letters, letters[-1] if len(letters) == columns["limit"] else last)


def lock_dead_letters(connection: Conn, ids: Sequence[int]) -> set[int]:
    """Lock dead letters against other redrives and purges; return the ids of the locked ones.

    The others are locked by another transaction, or were redriven or purged.
    """
    rows = connection.execute(_SQL["lock_dead_letters"], {"ids": list(ids)}, binary=True).fetchall()
    return {cast("int", number) for (number,) in rows}


def republish(
    connection: Conn, installation: Installation, ids: Sequence[int], now: datetime
) -> tuple[int, dict[int, int]]:
    """Publish locked messages that could not be read on their topic again, in the caller's transaction.

    Returns:
        The number of published ones, and the ids of those whose head alone is stored, with the bytes of the whole.
    """
    rows = cast(
        "list[tuple[int, str, int, bytes | None, bytes | None, list[bytes] | None, int | None]]",
        connection.execute(_SQL["read_dead_messages"], {"ids": list(ids)}, binary=True).fetchall(),
    )
    messages = [
        OutboxRow(
            shard=partition % installation.shards,
            lane=OutboxLane.EVENTS,
            topic=topic,
            key=key,
            value=value,
            publish_at=now,
            headers=headers_of(parts),
        )
        for _, topic, partition, key, value, parts, cut_from in rows
        if cut_from is None
    ]
    append(connection, messages, shards=installation.shards)
    cut = {number: cut_from for number, *_, cut_from in rows if cut_from is not None}
    sent = [number for number, *_ in rows if number not in cut]
    connection.execute(_SQL["mark_republished"], {"ids": sent})
    return len(sent), cut


def purge(connection: Conn, ids: Sequence[int], *, redriven: bool | None) -> int:
    """Delete dead letters, in the caller's transaction; return the number of deleted ones.

    Args:
        redriven: True deletes only those that were redriven, False only the others.
    """
    return connection.execute(_SQL["purge_dead_letters"], {"ids": list(ids), "redriven": redriven}).rowcount


def _payload(request: records.RunRequest, definition: records.JobDefinition) -> tuple[bytes | None, str | None]:
    """Return the run's payload and its content type; both None if it has no payload."""
    content_type = request.payload_content_type or definition.payload_content_type
    if request.payload is not None:
        return request.payload, content_type
    if Payload(definition.payload, definition.payload_content_type) == NO_PAYLOAD:
        return None, None
    return definition.payload, definition.payload_content_type


def _attempt(past: _PastAttempt, end: RunEnd, *, last: bool) -> records.DeadAttempt:
    return records.DeadAttempt(
        attempt=past.attempt,
        executor_id=str(past.executor_id) if past.executor_id else None,
        started_at=past.started_at,
        finished_at=past.finished_at,
        outcome=past.outcome,
        error_type=past.error_type,
        error_message=past.error_message if last else None,
        trace=end.trace if last else None,
        output=end.output if last else None,
    )
