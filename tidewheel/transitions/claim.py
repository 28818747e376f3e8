"""Claim runs for an executor, set-wise, in the caller's transaction.

A claim is a compare-and-set on (run_id, attempt, job_version, state, publish_at, deadline_at). A claim that does not
match is lost, which is a return value and not an error: a repeated or stale message, or a run that was retracted.
Unless its policy is `allow_all`, a run starts only as its job's active run. If the job has none, which is the usual
case, one statement does everything. Otherwise the overlap policies decide about both runs, in further statements of
the same transaction.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple, cast
from uuid import UUID

from tidewheel.postgres.pg_arrays import integers, texts, uuids, words
from tidewheel.postgres.session import Conn, rows_of
from tidewheel.postgres.statements import Statements
from tidewheel.runs import Move, Overlap, RunState, sources, target
from tidewheel.transitions.installation import Installation
from tidewheel.transitions.overlap_rows import REPLACING_WORDS, LockedRun, OverlapResult, resolve_overlaps

_SQL = Statements("tidewheel.transitions")
_CLAIM_RUNS = _SQL["claim_runs"]
_LOCK_CLAIMS = _SQL["lock_claims"]
_START_ATTEMPTS = _SQL["start_attempts"]
_WAIT_FOR_CLAIMS = _SQL["wait_for_claims"]
_READ_CLAIMS = _SQL["read_claims"]

_CLAIM_SOURCES = words(sources(Move.CLAIM))
_CLAIM_TARGET = target(Move.CLAIM)


class Claim(NamedTuple):
    """A request to run one attempt.

    Args:
        run_id: The run.
        attempt: The requested attempt: the row's plus one.
        job_version: The job version in the message.
        claimed_from: Coordinates of the message, or `sweep`.
    """

    run_id: UUID
    attempt: int
    job_version: int
    claimed_from: str


class Started(NamedTuple):
    """A claimed attempt; the statements that claim return its columns in this order.

    Args:
        run_id: The run.
        attempt: The fence of everything this attempt writes.
        failed_attempts: Earlier attempts that count against `max_attempts`.
        lost_attempts: Earlier attempts that were lost.
        publish_at: Its due time.
        started_at: The time of the claim, by the database's clock.
        schedule_to_close_at: When `schedule_to_close` expires, by the same clock.
    """

    run_id: UUID
    attempt: int
    failed_attempts: int
    lost_attempts: int
    publish_at: datetime
    started_at: datetime
    schedule_to_close_at: datetime | None = None


@dataclass(slots=True)
class Claimed:
    """The result of a batch of claims; a claim that is in neither part was lost.

    Args:
        started: The attempts that the executor owns now.
        overlaps: The result for runs of jobs with another active run.
    """

    started: list[Started] = field(default_factory=list[Started])
    overlaps: OverlapResult = field(default_factory=OverlapResult)

    @property
    def signalled(self) -> bool:
        """True if executors have new signals: notify them after the commit."""
        return bool(self.overlaps.cancel_requested or self.overlaps.replaced)


def claim_runs(connection: Conn, installation: Installation, claims: Sequence[Claim], *, executor_id: UUID) -> Claimed:
    """Claim runs for an executor, in the caller's transaction.

    Args:
        connection: Inside a transaction; the executor owns the attempts once the caller has committed it.
        installation: For the events of runs that end, and the messages of runs that are promoted.
        claims: The requests; several for one run count as one.
        executor_id: The executor.
    """
    requested = {claim.run_id: claim for claim in claims}
    if not requested:
        return Claimed()
    started, rest = _claim(connection, requested, executor_id)
    if not rest:
        return Claimed(started=started)
    candidates = _lock(connection, {run_id: requested[run_id] for run_id in rest})
    limited = [candidate for candidate in candidates if candidate.overlap != Overlap.ALLOW_ALL]
    overlaps = resolve_overlaps(connection, installation, limited) if limited else OverlapResult()
    winners = [candidate.run_id for candidate in candidates if candidate.run_id not in overlaps.not_started]
    return Claimed(started=started + _start(connection, requested, winners, executor_id), overlaps=overlaps)


def read_claims(connection: Conn, claims: Sequence[Claim], *, executor_id: UUID) -> list[Started]:
    """Return the claims that were committed, after the connection was lost during COMMIT.

    Raises:
        Unavailable: The database does not respond. Retry until it does: the executor must run what was committed.
    """
    columns = {
        "run_ids": [claim.run_id for claim in claims],
        "attempts": [claim.attempt for claim in claims],
        "executor_id": executor_id,
        "states": [RunState.RUNNING, RunState.CANCELLING],
    }
    connection.execute(_WAIT_FOR_CLAIMS, columns)
    with connection.cursor(row_factory=rows_of(Started._make), binary=True) as cursor:
        return cursor.execute(_READ_CLAIMS, columns).fetchall()


def _claim(connection: Conn, requested: Mapping[UUID, Claim], executor_id: UUID) -> tuple[list[Started], list[UUID]]:
    """Start runs without overlap; return their attempts, and the runs that need a decision."""
    columns = {
        **_fences(requested),
        "claimed_from": texts(claim.claimed_from for claim in requested.values()),
        "executor_id": executor_id,
        "target": _CLAIM_TARGET,
        "free": Overlap.ALLOW_ALL,
        "replacing": REPLACING_WORDS,
    }
    with connection.cursor(row_factory=rows_of(Started._make), binary=True) as cursor:
        rows = cursor.execute(_CLAIM_RUNS, columns).fetchall()
    rest = [row.run_id for row in rows if cast("int | None", row.attempt) is None]
    return [row for row in rows if cast("int | None", row.attempt) is not None] if rest else rows, rest


def _lock(connection: Conn, requested: Mapping[UUID, Claim]) -> list[LockedRun]:
    columns = _fences(requested)
    with connection.cursor(row_factory=rows_of(LockedRun._make), binary=True) as cursor:
        return cursor.execute(_LOCK_CLAIMS, columns).fetchall()


def _start(
    connection: Conn, requested: Mapping[UUID, Claim], winners: Sequence[UUID], executor_id: UUID
) -> list[Started]:
    if not winners:
        return []
    columns = {
        "run_ids": uuids(winners),
        "claimed_from": texts([requested[run_id].claimed_from for run_id in winners]),
        "executor_id": executor_id,
        "target": _CLAIM_TARGET,
    }
    with connection.cursor(row_factory=rows_of(Started._make), binary=True) as cursor:
        return cursor.execute(_START_ATTEMPTS, columns).fetchall()


def _fences(requested: Mapping[UUID, Claim]) -> dict[str, object]:
    return {
        "run_ids": uuids(requested),
        "attempts": integers(claim.attempt for claim in requested.values()),
        "versions": integers(claim.job_version for claim in requested.values()),
        "sources": _CLAIM_SOURCES,
    }
