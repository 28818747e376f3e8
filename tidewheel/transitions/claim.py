"""`start_runs`: the claim, set-wise, in the caller's transaction.

A claim is a compare-and-set on (run_id, attempt, job_version, state, publish_at); what it does not match is lost, which
is a return value and not an error: a repeat, a stale message, a run that was taken back. Unless its policy is
`allow_all`, a run starts only by taking its job's turn. Where that is free, which is nearly always, one statement does
it all; what becomes of a run that finds the turn taken, and of the one that has it, its policy says, in statements that
follow in the same transaction.
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
from tidewheel.transitions.overlap import REPLACING
from tidewheel.transitions.overlap_rows import Candidate, Contested, contest

_SQL = Statements("tidewheel.transitions")
_CLAIM_RUNS = _SQL["claim_runs"]
_LOCK_CLAIMS = _SQL["lock_claims"]
_START_ATTEMPTS = _SQL["start_attempts"]
_WAIT_FOR_CLAIMS = _SQL["wait_for_claims"]
_READ_CLAIMS = _SQL["read_claims"]

_CLAIM_SOURCES = words(sources(Move.CLAIM))
_CLAIM_TARGET = target(Move.CLAIM)
_REPLACING = words(sorted(REPLACING))


class Claim(NamedTuple):
    """A wish to run one attempt.

    Args:
        run_id: The run.
        attempt: The attempt asked for: the row's plus one.
        job_version: The version the message was made from.
        claimed_from: Coordinates of the message, or `sweep`.
    """

    run_id: UUID
    attempt: int
    job_version: int
    claimed_from: str


class Started(NamedTuple):
    """An attempt that is now this executor's; start_attempts and read_claims return its columns in this order.

    Args:
        run_id: The run.
        attempt: The fence of everything this attempt writes.
        charged: Attempts charged before this one.
        lost: Attempts lost before this one.
        publish_at: When it was due.
        started_at: When it was claimed, by the database's clock.
        schedule_to_close_at: When schedule_to_close strikes, by the same clock.
    """

    run_id: UUID
    attempt: int
    charged: int
    lost: int
    publish_at: datetime
    started_at: datetime
    schedule_to_close_at: datetime | None = None


@dataclass(slots=True)
class Claimed:
    """What became of a batch of claims.

    Args:
        started: What is the executor's now. Whatever is in none of these was lost.
        contested: What became of the others that needed their job's turn.
    """

    started: list[Started] = field(default_factory=list[Started])
    contested: Contested = field(default_factory=Contested)

    @property
    def signalled(self) -> bool:
        """Whether executors were told something: they are to be woken after the commit."""
        return bool(self.contested.asked or self.contested.replaced)


def start_runs(connection: Conn, installation: Installation, claims: Sequence[Claim], *, executor_id: UUID) -> Claimed:
    """Claim runs for an executor, in the caller's transaction.

    Args:
        connection: Inside a transaction that the caller commits; only then are the attempts its own.
        installation: For the events of runs that end, and the messages of those that are released.
        claims: The wishes; several for one run are one.
        executor_id: Who asks.

    Returns:
        What was started, and what became of runs of jobs that may not overlap.
    """
    wanted = {claim.run_id: claim for claim in claims}
    if not wanted:
        return Claimed()
    started, rest = _claim(connection, wanted, executor_id)
    if not rest:
        return Claimed(started=started)
    candidates = _lock(connection, {run_id: wanted[run_id] for run_id in rest})
    needing = [candidate for candidate in candidates if candidate.overlap != Overlap.ALLOW_ALL]
    contested = contest(connection, installation, needing) if needing else Contested()
    winners = [candidate.run_id for candidate in candidates if candidate.run_id not in contested.losers]
    return Claimed(started=started + _start(connection, wanted, winners, executor_id), contested=contested)


def read_claims(connection: Conn, claims: Sequence[Claim], *, executor_id: UUID) -> list[Started]:
    """After a lost COMMIT: which of these claims stand.

    Raises:
        Unavailable: The database does not answer; ask again until it does, for what stands must be run.
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


def _claim(connection: Conn, wanted: Mapping[UUID, Claim], executor_id: UUID) -> tuple[list[Started], list[UUID]]:
    """Start what needs no turn, or finds its job's turn free; returns that, and what is to be contested."""
    columns = {
        **_fences(wanted),
        "claimed_from": texts(claim.claimed_from for claim in wanted.values()),
        "executor_id": executor_id,
        "target": _CLAIM_TARGET,
        "free": Overlap.ALLOW_ALL,
        "replacing": _REPLACING,
    }
    with connection.cursor(row_factory=rows_of(Started._make), binary=True) as cursor:
        rows = cursor.execute(_CLAIM_RUNS, columns).fetchall()
    contested = [row.run_id for row in rows if cast("int | None", row.attempt) is None]
    return [row for row in rows if cast("int | None", row.attempt) is not None] if contested else rows, contested


def _lock(connection: Conn, wanted: Mapping[UUID, Claim]) -> list[Candidate]:
    columns = _fences(wanted)
    with connection.cursor(row_factory=rows_of(Candidate._make), binary=True) as cursor:
        return cursor.execute(_LOCK_CLAIMS, columns).fetchall()


def _start(connection: Conn, wanted: Mapping[UUID, Claim], winners: Sequence[UUID], executor_id: UUID) -> list[Started]:
    if not winners:
        return []
    columns = {
        "run_ids": uuids(winners),
        "claimed_from": texts([wanted[run_id].claimed_from for run_id in winners]),
        "executor_id": executor_id,
        "target": _CLAIM_TARGET,
    }
    with connection.cursor(row_factory=rows_of(Started._make), binary=True) as cursor:
        return cursor.execute(_START_ATTEMPTS, columns).fetchall()


def _fences(wanted: Mapping[UUID, Claim]) -> dict[str, object]:
    return {
        "run_ids": uuids(wanted),
        "attempts": integers(claim.attempt for claim in wanted.values()),
        "versions": integers(claim.job_version for claim in wanted.values()),
        "sources": _CLAIM_SOURCES,
    }
