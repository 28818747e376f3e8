"""Remote executors: programs in other languages that claim, send heartbeats and report over HTTP.

Any HTTP response may be lost, so every call can be repeated. An outcome that was recorded before is superseded. The
lease, which is their row in `executors`, and the fence protect their attempts as everywhere.

A claim carries a rising number, stored with the executor in the claim's own transaction. A repeat of the same number
starts nothing and returns the attempts of the first. An older one is refused: it is delayed, or a process that kept its
id over a restart counts from one again. The claim locks the executor's row, so that a repeat waits for the first, and
no reaper ends the lease meanwhile.
"""

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import LiteralString, Protocol, cast
from uuid import UUID, uuid4

import psycopg
from psycopg.rows import class_row

from tidewheel.errors import Unavailable, UnknownExecutor, refuse
from tidewheel.executor.outcome import Outcome, Output
from tidewheel.executor.record_outcomes import record_outcomes
from tidewheel.executor.sweep import DueRun
from tidewheel.postgres.notify import Channel
from tidewheel.postgres.pg_binary import integers, uuids
from tidewheel.postgres.session import Conn, Session, at_commit, is_data_fault, is_refused, read_ids, read_rows
from tidewheel.postgres.statements import Statements
from tidewheel.process.failpoint import failpoint
from tidewheel.process.metrics import metrics
from tidewheel.runs import OWNED, Lane, Move, sources
from tidewheel.schemas.generated.records import JobDefinition, RunRequest
from tidewheel.transitions.cancellation import Signal
from tidewheel.transitions.claim import Claim, Started, claim_runs, read_claims, share_old_claims
from tidewheel.transitions.installation import Installation
from tidewheel.transitions.messages import DEFINITIONS, build_requests, build_requests_within, read_definitions
from tidewheel.transitions.requeue import append_started
from tidewheel.transitions.run_keys import LimitedTenants

_LOG = logging.getLogger("tidewheel.executor")

_SQL = Statements("tidewheel.executor")

# A signal that was sent with so many heartbeats and never answered belongs to no attempt there.
_STRAY_AFTER = timedelta(seconds=60)
_ANSWER_BYTES = 4 << 20  # of messages in a claim's response, which holds them four times
MAX_EXECUTORS = 1_000  # of one key, or of the token: a row each until its lease ends
REFUSED = "refused"
"""The answer to a report that the database refuses alone."""


Fence = tuple[UUID, int]


@dataclass(frozen=True, slots=True)
class RemoteClaim:
    """One claim of a remote executor."""

    executor_id: UUID
    number: int  # higher than that of its last claim; the same number repeats that claim's response
    claims: Sequence[Claim] = ()
    sweep: int = 0  # the number of due runs of its queues that it requests instead, without messages
    min_age: timedelta = timedelta(seconds=1)  # for which those must have been due
    key_id: str | None = None  # the API key of the caller; None for the token of all


@dataclass(frozen=True, slots=True)
class RemoteClaimResult:
    """Attempts that a remote executor owns now, and the messages of those that were swept.

    A missing run was lost, buffered behind its job's active run, or left. If signals were written, the caller notifies
    executors after the commit.
    """

    started: Sequence[Started]
    requests: Mapping[UUID, RunRequest]
    signalled: bool = False


@dataclass(frozen=True, slots=True)
class StopSignal:
    """A request that an attempt stops."""

    run_id: UUID
    attempt: int
    kind: Signal


class AttemptReport(Protocol):
    """The end of an attempt, as a remote executor reports it."""

    @property
    def fence(self) -> Fence:
        """Run and attempt."""
        ...

    def read(self, definition: JobDefinition) -> tuple[Outcome, Output | None]:
        """Return the outcome and the output."""
        ...


@dataclass(frozen=True, slots=True)
class _Reporter:
    """An executor that reports, and the API key of the call; None for the token of all."""

    executor_id: UUID
    key_id: str | None


@dataclass(frozen=True, slots=True)
class _OwnedAttempt:
    """An attempt that its executor still owns."""

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
class _RemoteAttempt:
    """An attempt to record; its message is built again only if the run's end needs it."""

    started: Started
    definition: JobDefinition
    output: Output | None
    request: RunRequest | None = None

    @property
    def run_id(self) -> UUID:
        return self.started.run_id

    @property
    def heartbeat_seconds(self) -> float | None:
        return None if self.definition.heartbeat_ms is None else self.definition.heartbeat_ms / 1000

    def seal_output(self) -> bool:
        return False  # the output comes with the report, and may have been flushed by another process


class RemoteExecutors:
    """Serves remote executors on one thread; `stop` ends its waiting for locked rows."""

    def __init__(self, session: Session, installation: Installation, *, notify: Callable[[Channel], None]) -> None:
        self._session, self._installation, self._notify = session, installation, notify
        self._limited = LimitedTenants()

    def register(
        self,
        name: str,
        queues: Sequence[str],
        handlers: Sequence[str],
        slots: int,
        *,
        lease: timedelta,
        key_id: str | None = None,
        acts_for: str | None = None,
    ) -> UUID:
        """Register an executor that must send a heartbeat within `lease`; return its id.

        Its further calls are accepted with this API key alone, or None for the token of all. It starts the runs of the
        tenant alone that it acts for; None for all.
        """
        executor_id = uuid4()
        facts = {"name": name, "queues": list(queues), "handlers": list(handlers), "slots": slots, "lease": lease}
        of_key = {"key_id": key_id, "acts_for": acts_for, "most": MAX_EXECUTORS}
        with self._session.transaction() as connection:
            added = connection.execute(
                _SQL["add_remote_executor"], {"executor_id": executor_id, **facts, **of_key}
            ).rowcount
        if not added:
            problem = f"{MAX_EXECUTORS:,} executors are registered with this key or token, which is the limit"
            refuse("name", problem, "unregister executors when they stop, or give others their own key")
        _LOG.info("executor %s, %s, serves %s with %d slots", executor_id, name, list(queues), slots)
        return executor_id

    def heartbeat(self, executor_id: UUID, *, stopping: bool, key_id: str | None = None) -> list[StopSignal]:
        """Renew the lease of an executor's attempts; return those that must stop.

        Raises:
            UnknownExecutor: Its lease was ended, and its attempts with it; or it never existed, or has another key.
        """
        columns = {
            "executor_id": executor_id, "stopping": stopping, "key_id": key_id, "stray_after": _STRAY_AFTER
        }  # fmt: skip
        signals: list[StopSignal] = []
        strays: list[Fence] = []
        with self._session.transaction() as connection:
            if connection.execute(_SQL["heartbeat_remote_executor"], columns).fetchone() is None:
                raise UnknownExecutor(executor_id)
            for run_id, attempt, kind, stray in connection.execute(_SQL["read_signals"], columns, binary=True):
                assert isinstance(run_id, UUID)  # noqa: S101 - the column's type
                assert isinstance(attempt, int)  # noqa: S101 - the column's type
                signals.append(StopSignal(run_id, attempt, Signal(str(kind))))
                if stray:
                    strays.append((run_id, attempt))
            _drop_handled_signals(connection, executor_id, strays)
        return signals

    def claim(self, claim: RemoteClaim) -> RemoteClaimResult:
        """Claim runs for an executor."""
        with self._session.transaction() as connection:
            claimed = claim_remotely(connection, self._installation, claim, self._limited.read(connection))
        failpoint("claim.after_commit")
        if claimed.signalled:
            self._notify(Channel.SIGNALS)
        return claimed

    def finish(
        self, executor_id: UUID, reports: Sequence[AttemptReport], *, key_id: str | None = None
    ) -> dict[Fence, str]:
        """Record the ends of attempts; return an answer for each.

        It is `recorded`, or `superseded` if this executor no longer owns the attempt, and nothing was changed. It is
        `busy` if another transaction holds the row, and `refused` if the database refuses this report alone. The
        executor repeats both.

        Raises:
            Unavailable: The database refuses every report.
        """
        refusals: list[Exception] = []
        left = list({report.fence: report for report in reports}.values())
        answers = self._record_batch(_Reporter(executor_id, key_id), left, refusals)
        if refusals and set(answers.values()) == {REFUSED}:
            raise Unavailable(str(refusals[0])) from refusals[0]
        self._notify(Channel.OUTBOX)
        return answers

    def leave(self, executor_id: UUID, *, key_id: str | None = None) -> None:
        """Remove an executor; attempts it still owns go back when its lease ends."""
        columns = {"executor_id": executor_id, "key_id": key_id, "stopping": True, "states": OWNED}
        with self._session.transaction() as connection:
            if connection.execute(_SQL["heartbeat_remote_executor"], columns).fetchone() is not None:
                connection.execute(_SQL["delete_executor"], columns)

    def _record_batch(
        self, reporter: _Reporter, reports: Sequence[AttemptReport], refusals: list[Exception]
    ) -> dict[Fence, str]:
        """Record reports, one by one if the database refuses them together; add the refusals of single ones."""
        try:
            return self._record_together(reporter, reports)
        except (Unavailable, psycopg.Error) as error:
            if not (is_refused(error) or is_data_fault(error)):
                raise
            if len(reports) == 1:
                metrics.count("outcomes_set_aside")
                _LOG.error("the outcome of run %s cannot be recorded: %s", reports[0].fence[0], error)
                refusals.append(error)
                return {reports[0].fence: REFUSED}
        answers: dict[Fence, str] = {}
        for report in reports:
            answers |= self._record_batch(reporter, [report], refusals)
        return answers

    def _record_together(self, reporter: _Reporter, reports: Sequence[AttemptReport]) -> dict[Fence, str]:
        with self._session.transaction() as connection:
            answers = self._record(connection, reporter, reports)
            failpoint("completion.before_commit")
        failpoint("completion.after_commit")
        return answers

    def _record(self, connection: Conn, reporter: _Reporter, reports: Sequence[AttemptReport]) -> dict[Fence, str]:
        fences = [report.fence for report in reports]
        owned = _read_owned(connection, reporter, fences)
        stored = read_definitions(connection, [(row.job_id, row.job_version) for row in owned.values()])
        items: list[tuple[_RemoteAttempt, Outcome]] = []
        for report in reports:
            if (row := owned.get(report.fence)) is not None:
                definition = DEFINITIONS.of(stored[row.job_id, row.job_version])
                outcome, output = report.read(definition)
                items.append((_RemoteAttempt(_started(row), definition, output), outcome))
        done = record_outcomes(connection, self._installation, items, reporter.executor_id)
        _drop_handled_signals(connection, reporter.executor_id, fences)
        answers = dict.fromkeys(fences, "superseded")
        for item, _ in items:
            if item.run_id not in done.superseded:
                answers[item.run_id, item.started.attempt] = "busy" if item.run_id in done.busy else "recorded"
        return answers


def claim_remotely(
    connection: Conn, installation: Installation, claim: RemoteClaim, limited: Collection[str]
) -> RemoteClaimResult:
    """Claim runs for a remote executor, in the caller's transaction; `limited` as for `claim_runs`."""
    columns = {"executor_id": claim.executor_id, "key_id": claim.key_id}
    row = connection.execute(_SQL["lock_remote_executor"], columns, binary=True).fetchone()
    if row is None:
        raise UnknownExecutor(claim.executor_id)
    queues, handlers, last, acts_for, shares_old_claims = cast(
        "tuple[list[str], list[str], int, str | None, bool]", row
    )
    if not shares_old_claims:
        share_old_claims(connection)
    if claim.number < last:
        problem = f"{claim.number} is below {last}, the number of the executor's last claim"
        refuse("claim_id", problem, "continue from that number, or register again after a restart")
    if claim.number == last:
        return _repeat_response(connection, claim)
    swept = _find_due(connection, claim, queues, handlers, acts_for) if claim.sweep else []
    requests = build_requests_within(connection, swept, _ANSWER_BYTES)
    named = claim.claims if claim.key_id is None else _allowed(connection, claim.claims, queues, acts_for)
    claims = [*named, *_swept_claims([run for run in swept if run.run_id in requests], claim)]
    connection.execute(_SQL["store_claim_seq"], {"executor_id": claim.executor_id, "claim_seq": claim.number})
    claimed = claim_runs(connection, installation, claims, executor_id=claim.executor_id, limited=limited)
    append_started(connection, installation, claimed.started, claim.executor_id)
    failpoint("claim.before_commit")
    source = "sweep" if claim.sweep else "message"
    at_commit(connection, partial(_count_claims, len(claimed.started), len(claims), source))
    return RemoteClaimResult(claimed.started, requests, claimed.signalled)


def _count_claims(won: int, tried: int, source: str) -> None:
    metrics.count("claims", won, "won", source)
    metrics.count("claims", tried - won, "lost", source)


def _repeat_response(connection: Conn, claim: RemoteClaim) -> RemoteClaimResult:
    swept: list[DueRun] = []
    if claim.sweep:
        columns = {"executor_id": claim.executor_id, "claimed_from": _source_of(claim), "states": OWNED}
        swept = _due_runs(connection, _SQL["find_sweep_claim"], columns)
    claims = [*claim.claims, *_swept_claims(swept, claim)]
    started = read_claims(connection, claims, executor_id=claim.executor_id) if claims else []
    return RemoteClaimResult(started, build_requests(connection, swept))


def _allowed(connection: Conn, claims: Sequence[Claim], queues: list[str], acts_for: str | None) -> list[Claim]:
    """Return those claims whose runs are of these queues, and of this tenant: a message may be of any."""
    columns = {"run_ids": uuids(claim.run_id for claim in claims), "queues": queues, "acts_for": acts_for}
    allowed = set(read_ids(connection, _SQL["find_allowed_runs"], columns))
    return [claim for claim in claims if claim.run_id in allowed]


def _find_due(
    connection: Conn, claim: RemoteClaim, queues: list[str], handlers: list[str], acts_for: str | None
) -> list[DueRun]:
    served = [(queue, lane) for lane in Lane for queue in queues]
    columns = {
        "queues": [queue for queue, _ in served],
        "lanes": [lane for _, lane in served],
        "handlers": handlers,
        "limit": claim.sweep,
        "min_age": claim.min_age,
        "acts_for": acts_for,
        "sources": sources(Move.CLAIM),
    }
    return _due_runs(connection, _SQL["find_due_handled"], columns)


def _due_runs(connection: Conn, statement: LiteralString, columns: Mapping[str, object]) -> list[DueRun]:
    return read_rows(connection, class_row(DueRun), statement, columns)


def _swept_claims(swept: Sequence[DueRun], claim: RemoteClaim) -> list[Claim]:
    return [
        Claim(run.run_id, run.attempt + 1, run.job_version, _source_of(claim), publish_at=run.publish_at)
        for run in swept
    ]


def _source_of(claim: RemoteClaim) -> str:
    return f"sweep/{claim.number}"


def _read_owned(connection: Conn, reporter: _Reporter, fences: Sequence[Fence]) -> dict[Fence, _OwnedAttempt]:
    columns = {**_columns(fences), "executor_id": reporter.executor_id, "key_id": reporter.key_id, "states": OWNED}
    with connection.cursor(row_factory=class_row(_OwnedAttempt), binary=True) as cursor:
        return {(row.run_id, row.attempt): row for row in cursor.execute(_SQL["read_owned_attempts"], columns)}


def _started(row: _OwnedAttempt) -> Started:
    return Started(
        row.run_id,
        row.attempt,
        row.failed_attempts,
        row.lost_attempts,
        row.publish_at,
        row.started_at,
        row.schedule_to_close_at,
    )


def _drop_handled_signals(connection: Conn, executor_id: UUID, fences: Sequence[Fence]) -> None:
    if fences:
        columns = {**_columns(fences), "executor_id": executor_id, "terminate": Signal.TERMINATE}
        connection.execute(_SQL["drop_handled_signals"], columns)


def _columns(fences: Sequence[Fence]) -> dict[str, object]:
    return {"run_ids": uuids(run_id for run_id, _ in fences), "attempts": integers(number for _, number in fences)}
