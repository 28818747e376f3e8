"""Executors in other languages: entering, beating, finishing and leaving for them, over one thread's session.

They run attempts elsewhere and say so over HTTP, where any answer may be lost: so every call can be repeated, and an
outcome that was written before is superseded. What guards their attempts is the same as everywhere: the lease, which is
their row in `executors`, and the fence.

Claiming for executors in other languages, whose answers may be lost on their way.

A claim carries a number that rises, stored with the executor in the claim's own transaction: a second one of the same
number starts nothing but tells what the first has started, and an older one that was long under way starts nothing at
all. The executor's row is locked meanwhile, so that a repeat waits for the first, and no reaper ends the lease.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import LiteralString, Protocol, cast
from uuid import UUID, uuid4

from psycopg.rows import class_row

from tidewheel.errors import UnknownExecutor
from tidewheel.executor.attempt_output import Output
from tidewheel.executor.outcome import Outcome
from tidewheel.executor.record import record
from tidewheel.executor.sweep import DueRun
from tidewheel.postgres.notify import Channel
from tidewheel.postgres.pg_arrays import integers, uuids
from tidewheel.postgres.session import Conn, Session
from tidewheel.postgres.statements import Statements
from tidewheel.process.failpoint import failpoint
from tidewheel.process.metrics import metrics
from tidewheel.process.service import Shutdown
from tidewheel.runs import OWNED, Lane, Move, sources
from tidewheel.schemas.generated.records import JobDefinition, RunRequest
from tidewheel.transitions.cancel_signals import Signal
from tidewheel.transitions.claim import Claim, Started, claim_runs, read_claims
from tidewheel.transitions.installation import Installation
from tidewheel.transitions.run_messages import Definitions, build_requests, read_definitions

_SQL = Statements("tidewheel.executor")
_LOCK = _SQL["lock_remote"]
_COUNT_CLAIM = _SQL["count_claim"]
_FIND_DUE = _SQL["find_due_handled"]
_FIND_SWEEP_CLAIM = _SQL["find_sweep_claim"]


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
    claimed = claim_runs(connection, installation, wishes, executor_id=claim.executor_id)
    failpoint("claim.before_commit")
    way = "sweep" if claim.sweep else "message"
    metrics.count("claims", len(claimed.started), "won", way)
    metrics.count("claims", len(wishes) - len(claimed.started), "lost", way)
    return RemotelyClaimed(claimed.started, requests, claimed.signalled)


def _told_again(connection: Conn, claim: RemoteClaim) -> RemotelyClaimed:
    swept: list[DueRun] = []
    if claim.sweep:
        columns = {"executor_id": claim.executor_id, "claimed_from": _claimed_from(claim), "states": OWNED}
        swept = _due_runs(connection, _FIND_SWEEP_CLAIM, columns)
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
    return [Claim(run.run_id, run.attempt + 1, run.job_version, _claimed_from(claim)) for run in swept]


def _claimed_from(claim: RemoteClaim) -> str:
    return f"sweep/{claim.number}"


_LOG = logging.getLogger("tidewheel.executor")

_ENTER = _SQL["enter_remote"]
_BEAT = _SQL["beat_remote"]
_READ_OWNED_ATTEMPTS = _SQL["read_owned_attempts"]
_READ_SIGNALS = _SQL["read_signals"]
_DROP_ANSWERED = _SQL["drop_answered"]
_LEAVE = _SQL["leave_executor"]

_STRAY_AFTER = timedelta(
    seconds=60
)  # a signal that was told at so many beats and never answered is of no attempt there
_BUSY_SECONDS = 0.05  # a row that somebody else has locked is looked at again this soon
_TRIES = 20

_DEFINITIONS = Definitions()

Fence = tuple[UUID, int]


@dataclass(frozen=True, slots=True)
class Told:
    """A signal: an attempt that is to stop."""

    run_id: UUID
    attempt: int
    kind: Signal


class Report(Protocol):
    """How an attempt ended, as its executor tells it."""

    @property
    def fence(self) -> Fence:
        """Run and attempt."""
        ...

    def read(self, definition: JobDefinition) -> tuple[Outcome, Output | None]:
        """The outcome, and what was written meanwhile."""
        ...


@dataclass(frozen=True, slots=True)
class _InHand:
    """An attempt that is still its executor's."""

    job_id: UUID
    job_version: int
    run_id: UUID
    attempt: int
    failed_attempts: int
    lost_attempts: int
    publish_at: datetime
    started_at: datetime
    schedule_to_close_at: datetime | None


@dataclass(frozen=True, slots=True)
class _Attempted:
    """An attempt as `record` wants it; its message is built again only where the run's end needs it."""

    started: Started
    definition: JobDefinition
    output: Output | None
    request: RunRequest | None = None
    unflushed: bool = False

    @property
    def run_id(self) -> UUID:
        return self.started.run_id

    @property
    def heartbeat_seconds(self) -> float | None:
        return None if self.definition.heartbeat_ms is None else self.definition.heartbeat_ms / 1000


class RemoteExecutors:
    """What is done for executors in other languages, by one thread.

    Args:
        session: That thread's.
        installation: For what starts and ends write.
        poke: Wakes relays and executors after a commit.
        stop: Ends its waiting for rows that somebody has locked.
    """

    def __init__(
        self, session: Session, installation: Installation, *, poke: Callable[[Channel], None], stop: Shutdown
    ) -> None:
        self._session, self._installation, self._poke, self._stop = session, installation, poke, stop

    def register(
        self, name: str, queues: Sequence[str], handlers: Sequence[str], slots: int, *, lease: timedelta
    ) -> UUID:
        """Enter an executor that is to beat within `lease`; returns the id under which all it does is written."""
        executor_id = uuid4()
        facts = {"name": name, "queues": list(queues), "handlers": list(handlers), "slots": slots, "lease": lease}
        with self._session.transaction() as connection:
            connection.execute(_ENTER, {"executor_id": executor_id, **facts})
        _LOG.info("executor %s, %s, serves %s with %d slots", executor_id, name, list(queues), slots)
        return executor_id

    def beat(self, executor_id: UUID, *, stopping: bool) -> list[Told]:
        """Keep the lease of an executor's attempts; returns which of them are to stop.

        Raises:
            UnknownExecutor: Its lease was ended, and its attempts with it; or there never was one.
        """
        columns = {"executor_id": executor_id, "stopping": stopping, "stray_after": _STRAY_AFTER}
        told: list[Told] = []
        strays: list[Fence] = []
        with self._session.transaction() as connection:
            if connection.execute(_BEAT, columns).fetchone() is None:
                raise UnknownExecutor(executor_id)
            for run_id, attempt, kind, stray in connection.execute(_READ_SIGNALS, columns, binary=True):
                assert isinstance(run_id, UUID)  # noqa: S101 - the column's type
                assert isinstance(attempt, int)  # noqa: S101 - the column's type
                told.append(Told(run_id, attempt, Signal(str(kind))))
                if stray:
                    strays.append((run_id, attempt))
            _drop_answered(connection, executor_id, strays)
        return told

    def claim(self, claim: RemoteClaim) -> RemotelyClaimed:
        """Claim runs for an executor.

        Raises:
            UnknownExecutor: Its lease was ended.
        """
        with self._session.transaction() as connection:
            claimed = claim_remotely(connection, self._installation, claim)
        failpoint("claim.after_commit")
        if claimed.signalled:
            self._poke(Channel.SIGNALS)
        return claimed

    def finish(self, executor_id: UUID, reports: Sequence[Report]) -> dict[Fence, str]:
        """Write how attempts ended.

        Returns:
            For each: `recorded`; `superseded` where the attempt is no longer this executor's, and nothing was changed;
            `busy` where somebody has its row, to be told again.
        """
        answers: dict[Fence, str] = {}
        left = list({report.fence: report for report in reports}.values())
        for tried in range(_TRIES):
            if tried:
                self._stop.wait(_BUSY_SECONDS)
            with self._session.transaction() as connection:
                answers |= self._record(connection, executor_id, left)
                failpoint("completion.before_commit")
            failpoint("completion.after_commit")
            left = [report for report in left if answers[report.fence] == "busy"]
            if not left or self._stop.requested():
                break
        self._poke(Channel.OUTBOX)
        return answers

    def leave(self, executor_id: UUID) -> None:
        """An executor goes; what it has in hand all the same is found when its lease ends."""
        with self._session.transaction() as connection:
            connection.execute(_LEAVE, {"executor_id": executor_id, "states": OWNED})

    def _record(self, connection: Conn, executor_id: UUID, reports: Sequence[Report]) -> dict[Fence, str]:
        fences = [report.fence for report in reports]
        in_hand = _read_owned_attempts(connection, executor_id, fences)
        stored = read_definitions(connection, [(row.job_id, row.job_version) for row in in_hand.values()])
        items: list[tuple[_Attempted, Outcome]] = []
        for report in reports:
            if (row := in_hand.get(report.fence)) is not None:
                definition = _DEFINITIONS.of(stored[row.job_id, row.job_version])
                outcome, output = report.read(definition)
                items.append((_Attempted(_started(row), definition, output), outcome))
        done = record(connection, self._installation, items, executor_id)
        _drop_answered(connection, executor_id, fences)
        answers = dict.fromkeys(fences, "superseded")
        for item, _ in items:
            if item.run_id not in done.superseded:
                answers[item.run_id, item.started.attempt] = "busy" if item.run_id in done.busy else "recorded"
        return answers


def _read_owned_attempts(connection: Conn, executor_id: UUID, fences: Sequence[Fence]) -> dict[Fence, _InHand]:
    columns = {**_columns(fences), "executor_id": executor_id, "states": OWNED}
    with connection.cursor(row_factory=class_row(_InHand), binary=True) as cursor:
        return {(row.run_id, row.attempt): row for row in cursor.execute(_READ_OWNED_ATTEMPTS, columns)}


def _started(row: _InHand) -> Started:
    return Started(
        row.run_id,
        row.attempt,
        row.failed_attempts,
        row.lost_attempts,
        row.publish_at,
        row.started_at,
        row.schedule_to_close_at,
    )


def _drop_answered(connection: Conn, executor_id: UUID, fences: Sequence[Fence]) -> None:
    if fences:
        columns = {**_columns(fences), "executor_id": executor_id, "terminate": Signal.TERMINATE}
        connection.execute(_DROP_ANSWERED, columns)


def _columns(fences: Sequence[Fence]) -> dict[str, object]:
    return {"run_ids": uuids(run_id for run_id, _ in fences), "attempts": integers(number for _, number in fences)}
