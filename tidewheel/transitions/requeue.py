"""End attempts of unfinished runs: requeue them, or await an external completion.

The row's attempt number stays raised, which fences off the old attempt. The message for the next attempt is written in
the same transaction, with the row's `publish_at`, however far ahead. An active run stays its job's active run.

A waiting run keeps its executor_id, as a part of the fence. No lease guards it, only its deadlines, which the scheduler
enforces. A message with its task token ends it or requeues it.

The same transaction writes the events `run.started` and `run.retrying`, if the setting `events_runs` is `all`.
"""

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from psycopg.rows import class_row

from tidewheel.jobs.values import format_timestamp
from tidewheel.outbox import append
from tidewheel.postgres.pg_binary import integers, uuids
from tidewheel.postgres.session import Conn, read_ids, read_rows, rows_of
from tidewheel.postgres.statements import Statements
from tidewheel.process import tracing
from tidewheel.runs import HOLDS, AttemptOutcome, Move, RunState, sequence_of, sources, target
from tidewheel.schemas.codec import decode
from tidewheel.schemas.generated.records import RunRequest
from tidewheel.transitions.active_runs import PromotedRun
from tidewheel.transitions.attempts import AttemptEnd, write_attempts
from tidewheel.transitions.claim import Started
from tidewheel.transitions.events import lifecycle_row
from tidewheel.transitions.finish import finish_runs
from tidewheel.transitions.finished import Ended, RunEnd
from tidewheel.transitions.installation import Installation
from tidewheel.transitions.messages import DEFINITIONS, append_requests
from tidewheel.transitions.places import FreedPlace, held_places
from tidewheel.transitions.run_keys import settle_keys

_SQL = Statements("tidewheel.transitions")
_READ_STARTED = _SQL["read_started"]
_REQUEUE_RUNS = _SQL["requeue_runs"]
_FIND_BUSY_ATTEMPTS = _SQL["find_busy_attempts"]
_WAIT_RUNS = _SQL["wait_runs"]


class _StartedRun(NamedTuple):
    """The columns of a started run that its event needs."""

    run_id: UUID
    job_id: UUID
    job_key: str
    tenant: str
    shard: int
    queue: str
    lane: str
    job_version: int
    traceparent: str | None


def append_started(connection: Conn, installation: Installation, started: Sequence[Started], executor_id: UUID) -> None:
    """Append the event of each attempt that this transaction has started."""
    if not installation.run_events or not started:
        return
    with connection.cursor(row_factory=rows_of(_StartedRun._make), binary=True) as cursor:
        found = cursor.execute(_READ_STARTED, {"run_ids": uuids(one.run_id for one in started)})
        runs = {run.run_id: run for run in found}
    rows = (
        lifecycle_row(
            installation,
            kind="run.started",
            tenant=run.tenant,
            job_id=run.job_id,
            job_key=run.job_key,
            job_version=run.job_version,
            shard=run.shard,
            now=one.started_at,
            detail={"executor_id": str(executor_id), "queue": run.queue, "lane": run.lane},
            run=(one.run_id, one.attempt, sequence_of(one.attempt, ended_running=None)),
            traceparent=tracing.traceparent_of(one.run_id, run.traceparent),
        )
        for one in started
        if (run := runs.get(one.run_id)) is not None
    )
    append(connection, rows, shards=installation.shards)


def append_retrying(
    connection: Conn,
    installation: Installation,
    requeued: "Iterable[tuple[Requeue, RequeuedRun]]",
    messages: Mapping[UUID, bytes],
) -> None:
    """Append the event of each attempt that this transaction ends, and that another one follows."""
    if not installation.run_events:
        return
    requests = {run_id: decode(message, RunRequest) for run_id, message in messages.items()}
    rows = (
        lifecycle_row(
            installation,
            kind="run.retrying",
            tenant=run.tenant,
            job_id=run.job_id,
            job_key=DEFINITIONS.of(requests[run.run_id].definition).job_key,
            job_version=run.job_version,
            shard=run.shard,
            now=run.ended_at,
            reason=end.outcome.value,
            detail=_detail(end, run),
            run=(run.run_id, end.attempt, sequence_of(end.attempt, ended_running=True)),
            traceparent=tracing.traceparent_of(run.run_id, requests[run.run_id].traceparent),
        )
        for end, run in requeued
    )
    append(connection, rows, shards=installation.shards)


def _detail(end: "Requeue", run: "RequeuedRun") -> dict[str, str]:
    error = {"error_type": end.error_type, "error_message": end.error_message}
    given = {name: value for name, value in error.items() if value is not None}
    return {"next_attempt_at": format_timestamp(run.publish_at), **given}


@dataclass(frozen=True, slots=True)
class Requeue:
    """An attempt that ends without ending its run.

    Args:
        executor_id: The row's executor, also while it waits for an external completion. Part of the fence.
        outcome: How it ended; decides if it counts against `max_attempts`, against `max_lost`, or neither.
        output: The attempt's last output; None keeps what was flushed while it ran.
        unflushed: True if it is certain that no output was flushed while the attempt ran.
        claimed_from: The message of the claim, if the executor kept it.
    """

    run_id: UUID
    attempt: int
    executor_id: UUID | None
    outcome: AttemptOutcome
    delay: timedelta = timedelta(0)
    error_type: str | None = None
    error_message: str | None = None
    trace: str | None = None
    output: bytes | None = None
    output_bytes: int | None = None
    unflushed: bool = False
    claimed_from: str | None = None

    @property
    def move(self) -> Move:
        """The move of the state machine."""
        if self.outcome is AttemptOutcome.RELEASED:
            return Move.RELEASE
        return Move.SNOOZE if self.outcome is AttemptOutcome.SNOOZED else Move.RETRY

    @property
    def charge(self) -> int:
        """1 if the attempt counts against `max_attempts`, else 0."""
        return int(self.outcome in {AttemptOutcome.FAILED, AttemptOutcome.TIMED_OUT})

    @property
    def loss(self) -> int:
        """1 if the attempt counts against `max_lost`, else 0."""
        return int(self.outcome is AttemptOutcome.LOST)


@dataclass(frozen=True, slots=True)
class RequeuedRun(PromotedRun):
    """An open run's row after the attempt ended."""

    started_at: datetime
    executor_id: UUID | None
    claimed_from: str | None
    ended_at: datetime
    key_id: int | None
    gates: int


@dataclass(slots=True)
class Requeued:
    """The result of requeuing a batch; a run in no part has ended before or started another attempt.

    Args:
        cancelled: Runs with a cancel request, which ended now.
        busy: Runs whose row another transaction holds; retry them.
    """

    runs: dict[UUID, RequeuedRun] = field(default_factory=dict[UUID, RequeuedRun])
    cancelled: Set[UUID] = frozenset()
    busy: set[UUID] = field(default_factory=set[UUID])


def requeue_runs(
    connection: Conn,
    installation: Installation,
    requeues: Sequence[Requeue],
    *,
    freed_keys: list[FreedPlace] | None = None,
) -> Requeued:
    """Requeue runs for another attempt, in the caller's transaction.

    A run with a cancel request is not requeued: it ends as cancelled.

    Args:
        requeues: At most one per run.
        freed_keys: As for `finish_runs`.
    """
    done = Requeued()
    freed: list[FreedPlace] = []
    for move in (Move.RETRY, Move.RELEASE, Move.SNOOZE):
        chosen = [requeue for requeue in requeues if requeue.move is move]
        if chosen:
            done.runs |= {row.run_id: row for row in _move(connection, move, chosen)}
            done.busy |= _busy(connection, move, [r for r in chosen if r.run_id not in done.runs])
    cancelled = _end_cancelled(connection, installation, requeues, done, freed)
    done.cancelled, done.busy = cancelled.states.keys(), done.busy | cancelled.busy
    if done.runs:
        _record(connection, installation, requeues, done)
    freed += [place for row in done.runs.values() for place in held_places(row.gates, row.key_id, row.tenant)]
    if freed_keys is not None:
        freed_keys += freed
    elif freed:
        settle_keys(connection, installation, freed=freed)
    return done


def _record(connection: Conn, installation: Installation, requeues: Sequence[Requeue], done: Requeued) -> None:
    rows = list(done.runs.values())
    write_attempts(connection, [_attempt(done.runs[r.run_id], r) for r in requeues if r.run_id in done.runs])
    messages = append_requests(connection, installation, rows)
    retried = [(r, done.runs[r.run_id]) for r in requeues if r.run_id in done.runs and r.move is Move.RETRY]
    append_retrying(connection, installation, retried, dict(zip(done.runs, messages, strict=True)))


def _end_cancelled(
    connection: Conn,
    installation: Installation,
    requeues: Sequence[Requeue],
    done: Requeued,
    freed_keys: list[FreedPlace],
) -> Ended:
    # A run that is being cancelled is owned by an executor. An unowned one may have been requeued before: leave it.
    refused = [r for r in requeues if r.executor_id and r.run_id not in done.runs and r.run_id not in done.busy]
    # Every end of such a run makes it cancelled. No other state with an attempt allows `skipped`: a waiting run stays.
    ends = [RunEnd(r.run_id, r.attempt, RunState.SKIPPED, r.executor_id) for r in refused]
    return finish_runs(connection, installation, ends, freed_keys=freed_keys)


def _move(connection: Conn, move: Move, requeues: Sequence[Requeue]) -> list[RequeuedRun]:
    columns = {
        "run_ids": uuids(requeue.run_id for requeue in requeues),
        "attempts": integers(requeue.attempt for requeue in requeues),
        "executor_ids": uuids(requeue.executor_id for requeue in requeues),
        "delays": [requeue.delay for requeue in requeues],
        "charges": integers(requeue.charge for requeue in requeues),
        "losses": integers(requeue.loss for requeue in requeues),
        "sources": sources(move),
        "target": target(move),
        "holds": HOLDS,
    }
    return read_rows(connection, class_row(RequeuedRun), _REQUEUE_RUNS, columns)


def _busy(connection: Conn, move: Move, requeues: Sequence[Requeue]) -> set[UUID]:
    if not requeues:
        return set()
    columns = {
        "run_ids": uuids(requeue.run_id for requeue in requeues),
        "attempts": integers(requeue.attempt for requeue in requeues),
        "executor_ids": uuids(requeue.executor_id for requeue in requeues),
        "sources": sources(move),
    }
    return read_ids(connection, _FIND_BUSY_ATTEMPTS, columns)


def _attempt(row: RequeuedRun, requeue: Requeue) -> AttemptEnd:
    return AttemptEnd(
        run_id=row.run_id,
        attempt=row.attempt,
        tenant=row.tenant,
        executor_id=row.executor_id,
        started_at=row.started_at,
        finished_at=row.ended_at,
        outcome=requeue.outcome,
        error_type=requeue.error_type,
        error_message=requeue.error_message,
        claimed_from=requeue.claimed_from or row.claimed_from,
        trace=requeue.trace,
        output=requeue.output,
        output_bytes=requeue.output_bytes,
        unflushed=requeue.unflushed,
    )


@dataclass(frozen=True, slots=True)
class Wait:
    """An attempt that an external system completes."""

    run_id: UUID
    attempt: int
    executor_id: UUID
    timeout: timedelta
    heartbeat: timedelta | None = None


@dataclass(frozen=True, slots=True)
class Waiting:
    """The runs that wait now, and the busy ones: another transaction holds their row, so retry them."""

    waits: Set[UUID] = frozenset()
    busy: Set[UUID] = frozenset()


def wait_runs(connection: Conn, waits: Sequence[Wait]) -> Waiting:
    """Move runs to waiting, in the caller's transaction.

    A run that has ended, because its completion came first, stays as it is. One that is being cancelled is left to
    `end_cancelled_waits`.
    """
    if not waits:
        return Waiting()
    columns: dict[str, object] = {
        "run_ids": uuids(wait.run_id for wait in waits),
        "attempts": integers(wait.attempt for wait in waits),
        "executor_ids": uuids(wait.executor_id for wait in waits),
        "timeouts": [wait.timeout for wait in waits],
        "heartbeats": [wait.heartbeat for wait in waits],
        "sources": sources(Move.WAIT),
        "target": target(Move.WAIT),
    }
    moved = read_ids(connection, _WAIT_RUNS, columns)
    return Waiting(moved, _find(connection, [wait for wait in waits if wait.run_id not in moved], sources(Move.WAIT)))


def end_cancelled_waits(
    connection: Conn, installation: Installation, waits: Sequence[Wait], *, freed_keys: list[FreedPlace] | None = None
) -> Ended:
    """End runs with a cancel request that came before they waited: no other process would end them.

    `freed_keys` is that of `finish_runs`.
    """
    cancelled = _find(connection, waits, [RunState.CANCELLING])
    ends = [
        RunEnd(wait.run_id, wait.attempt, RunState.CANCELLED, wait.executor_id)
        for wait in waits
        if wait.run_id in cancelled
    ]
    return finish_runs(connection, installation, ends, freed_keys=freed_keys)


def _find(connection: Conn, waits: Sequence[Wait], states: Sequence[str]) -> set[UUID]:
    """Return the runs whose attempt is still the current one, in one of these states."""
    if not waits:
        return set()
    columns: dict[str, object] = {
        "run_ids": uuids(wait.run_id for wait in waits),
        "attempts": integers(wait.attempt for wait in waits),
        "executor_ids": uuids(wait.executor_id for wait in waits),
        "sources": list(states),
    }
    return read_ids(connection, _FIND_BUSY_ATTEMPTS, columns)
