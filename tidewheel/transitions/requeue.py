"""End attempts whose runs go on: retried, released, snoozed, or lost with their executor.

The row's attempt number stays raised, which fences off the old attempt. The message for the next attempt is written in
the same transaction, with the row's `publish_at`, however far ahead. An active run stays its job's active run.
"""

from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from uuid import UUID

from psycopg.rows import class_row

from tidewheel.outbox import append
from tidewheel.postgres.session import Conn, read_ids
from tidewheel.postgres.statements import Statements
from tidewheel.runs import HOLDS, AttemptOutcome, Move, RunState, sources, target
from tidewheel.transitions.attempts import AttemptEnd, write_attempts
from tidewheel.transitions.finish import finish_runs
from tidewheel.transitions.finished import Ended, RunEnd
from tidewheel.transitions.installation import Installation
from tidewheel.transitions.places import FreedPlace, held_places
from tidewheel.transitions.run_events import append_retrying
from tidewheel.transitions.run_keys import settle_keys
from tidewheel.transitions.run_messages import build_requests, request_rows

_SQL = Statements("tidewheel.transitions")
_REQUEUE_RUNS = _SQL["requeue_runs"]
_FIND_BUSY_ATTEMPTS = _SQL["find_busy_attempts"]


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
class RequeuedRun:
    """An open run's row after the attempt ended."""

    run_id: UUID
    job_id: UUID
    tenant: str
    shard: int
    queue: str
    lane: str
    cause: str
    job_version: int
    attempt: int
    scheduled_at: datetime
    publish_at: datetime
    created_at: datetime
    started_at: datetime
    executor_id: UUID | None
    claimed_from: str | None
    ended_at: datetime
    concurrency_key: str | None
    key_id: int | None
    gates: int
    priority: int | None


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
    """Write the attempts that have ended, and the messages and events of the next ones."""
    rows = list(done.runs.values())
    write_attempts(connection, [_attempt(done.runs[r.run_id], r) for r in requeues if r.run_id in done.runs])
    requests = build_requests(connection, rows)
    append(connection, request_rows(rows, requests, installation), shards=installation.shards)
    retried = [(r, done.runs[r.run_id]) for r in requeues if r.run_id in done.runs and r.move is Move.RETRY]
    append_retrying(connection, installation, retried, requests)


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
        "run_ids": [requeue.run_id for requeue in requeues],
        "attempts": [requeue.attempt for requeue in requeues],
        "executor_ids": [requeue.executor_id for requeue in requeues],
        "delays": [requeue.delay for requeue in requeues],
        "charges": [requeue.charge for requeue in requeues],
        "losses": [requeue.loss for requeue in requeues],
        "sources": sources(move),
        "target": target(move),
        "holds": HOLDS,
    }
    with connection.cursor(row_factory=class_row(RequeuedRun), binary=True) as cursor:
        return cursor.execute(_REQUEUE_RUNS, columns).fetchall()


def _busy(connection: Conn, move: Move, requeues: Sequence[Requeue]) -> set[UUID]:
    if not requeues:
        return set()
    columns = {
        "run_ids": [requeue.run_id for requeue in requeues],
        "attempts": [requeue.attempt for requeue in requeues],
        "executor_ids": [requeue.executor_id for requeue in requeues],
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
