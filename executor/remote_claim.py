"""Claiming for executors in other languages, whose answers may be lost on their way.

A claim carries a number that rises, stored with the executor in the claim's own transaction: a second one of the same
number starts nothing but tells what the first has started, and an older one that was long under way starts nothing at
all. The executor's row is locked meanwhile, so that a repeat waits for the first, and no reaper ends the lease.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import LiteralString, cast
from uuid import UUID

from psycopg.rows import class_row

from tidewheel.db import Conn
from tidewheel.errors import UnknownExecutor
from tidewheel.executor.sweep import DueRun
from tidewheel.failpoint import failpoint
from tidewheel.metrics import metrics
from tidewheel.runs import IN_HAND, Lane, Move, sources
from tidewheel.schemas.records import RunRequest
from tidewheel.sql import Statements
from tidewheel.transitions.dispatch import build_requests
from tidewheel.transitions.installation import Installation
from tidewheel.transitions.start import Claim, Started, read_claims, start_runs

_SQL = Statements("tidewheel.executor")
_LOCK = _SQL["lock_remote"]
_COUNT_CLAIM = _SQL["count_claim"]
_FIND_DUE = _SQL["find_due_handled"]
_FIND_SWEPT = _SQL["find_swept"]


@dataclass(frozen=True, slots=True)
class RemoteClaim:
    """One claim.

    Args:
        executor_id: Who asks.
        number: Higher than that of its last claim; the same again to be told that one's answer again.
        wishes: The runs it has messages of.
        sweep: How many due runs of its queues it wants instead, of which it has no messages.
        due_for: How long those have to be due.
    """

    executor_id: UUID
    number: int
    wishes: Sequence[Claim] = ()
    sweep: int = 0
    due_for: timedelta = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class RemotelyClaimed:
    """What is the executor's now: the attempts, and the messages of those that were swept.

    Args:
        started: The attempts. What is missing was lost, waits for its turn, or is left.
        requests: Messages by run.
        signalled: Whether executors were told something: they are to be woken after the commit.
    """

    started: Sequence[Started]
    requests: Mapping[UUID, RunRequest]
    signalled: bool = False


def claim_remotely(connection: Conn, installation: Installation, claim: RemoteClaim) -> RemotelyClaimed:
    """Claim runs for an executor in another language, in the caller's transaction.

    Raises:
        UnknownExecutor: Its lease was ended.
    """
    row = connection.execute(_LOCK, {"executor_id": claim.executor_id}, binary=True).fetchone()
    if row is None:
        raise UnknownExecutor(claim.executor_id)
    queues, handlers, last = row
    assert isinstance(last, int)  # noqa: S101 - the column's type
    served = cast("list[str]", queues), cast("list[str]", handlers)
    if claim.number < last:
        return RemotelyClaimed((), {})
    if claim.number == last:
        return _told_again(connection, claim)
    swept = _find_due(connection, claim, *served) if claim.sweep else []
    requests = build_requests(connection, swept)
    wishes = [*claim.wishes, *_wishes(swept, claim)]
    connection.execute(_COUNT_CLAIM, {"executor_id": claim.executor_id, "claim_id": claim.number})
    claimed = start_runs(connection, installation, wishes, executor_id=claim.executor_id)
    failpoint("claim.before_commit")
    way = "sweep" if claim.sweep else "message"
    metrics.count("claims", len(claimed.started), "won", way)
    metrics.count("claims", len(wishes) - len(claimed.started), "lost", way)
    return RemotelyClaimed(claimed.started, requests, claimed.signalled)


def _told_again(connection: Conn, claim: RemoteClaim) -> RemotelyClaimed:
    swept: list[DueRun] = []
    if claim.sweep:
        columns = {"executor_id": claim.executor_id, "came_by": _came_by(claim), "states": IN_HAND}
        swept = _due_runs(connection, _FIND_SWEPT, columns)
    wishes = [*claim.wishes, *_wishes(swept, claim)]
    started = read_claims(connection, wishes, executor_id=claim.executor_id) if wishes else []
    return RemotelyClaimed(started, build_requests(connection, swept))


def _find_due(connection: Conn, claim: RemoteClaim, queues: list[str], handlers: list[str]) -> list[DueRun]:
    served = [(queue, lane) for lane in Lane for queue in queues]
    columns = {
        "queues": [queue for queue, _ in served],
        "lanes": [lane for _, lane in served],
        "handlers": handlers,
        "most": claim.sweep,
        "due_for": claim.due_for,
        "sources": sources(Move.CLAIM),
    }
    return _due_runs(connection, _FIND_DUE, columns)


def _due_runs(connection: Conn, statement: LiteralString, columns: Mapping[str, object]) -> list[DueRun]:
    with connection.cursor(row_factory=class_row(DueRun), binary=True) as cursor:
        return cursor.execute(statement, columns).fetchall()


def _wishes(swept: Sequence[DueRun], claim: RemoteClaim) -> list[Claim]:
    return [Claim(run.run_id, run.attempt + 1, run.job_version, _came_by(claim)) for run in swept]


def _came_by(claim: RemoteClaim) -> str:
    return f"sweep/{claim.number}"
