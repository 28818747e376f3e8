"""Read one run with its attempts, deadlines, stages, retry chain and stored output.

PostgreSQL keeps the last 64 KiB of each attempt's output and a count of all bytes written. A reader that polls again
takes the difference of the counts as the new bytes. New bytes that are no longer stored were dropped in between.
"""

import json
import re
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, LiteralString, NamedTuple, cast
from uuid import UUID

from psycopg.rows import class_row

from tidewheel.control.reads.stored import documents_as, read_definition
from tidewheel.control.reads.waits import read_waits
from tidewheel.errors import UnknownRun, refuse
from tidewheel.jobs.payload import JSON_CONTENT
from tidewheel.jobs.values import RESERVED
from tidewheel.nouns.operation import Call
from tidewheel.nouns.runs.model import (
    Attempt,
    Clock,
    LogPiece,
    PastAttempt,
    PayloadFacts,
    RelatedRun,
    RetryChain,
    RunDetail,
    RunStage,
    StageName,
)
from tidewheel.postgres.session import Conn, read_row, read_rows, rows_of
from tidewheel.postgres.statements import Statements
from tidewheel.runs import FINAL, OWNED, AttemptOutcome, RunState

if TYPE_CHECKING:
    from tidewheel.schemas.generated.records import JobDefinition


_SQL = Statements("tidewheel.control")

_MESSAGE = re.compile(r".+/\d+/\d+@(\d+)", re.ASCII)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LATEST = 253_402_300_799_999  # milliseconds of the last instant that Python has
_COUNTED = (AttemptOutcome.FAILED, AttemptOutcome.TIMED_OUT)
_COLUMNS = frozenset(each.name for each in fields(RunDetail))
_PAGE = 20  # attempts in one read, 64 KiB each
FOLLOW_SECONDS = 0.5


def show_run(connection: Conn, tenant: str, run_id: UUID) -> RunDetail:
    """Return one run, or raise UnknownRun."""
    row = _row(connection, _SQL["show_run"], tenant, run_id)
    definition = read_definition(row["definition"], f"run {run_id}")
    attempts = tuple(past_attempts(connection, run_id))
    if row["finished_at"] is not None and len(attempts) == row["attempt"]:
        row |= counts_of(attempts)
    instant = {"job_id": row["job_id"], "scheduled_at": row["scheduled_at"]}
    related = read_rows(connection, class_row(RelatedRun), _SQL["read_retry_chain"], instant)
    return with_stages(
        _detail(
            row,
            why=read_waits(connection, [run_id]).get(run_id) if row["finished_at"] is None else None,
            max_attempts=_max_attempts(definition),
            late=None if row["late_ms"] is None else timedelta(milliseconds=row["late_ms"]),
            retry_chain=retry_chain_of(run_id, row["parent_run_id"], row["root_run_id"], related),
            attempts=attempts,
            payload=_payload(row["payload_bytes"], row["payload_content_type"], definition),
        )
    )


def show_failed_run(connection: Conn, tenant: str, run_id: UUID) -> RunDetail:
    """Return what is left of a failed run whose day retention has dropped, or raise UnknownRun."""
    row = _row(connection, _SQL["show_failed_run"], tenant, run_id)
    most = _max_attempts(read_definition(row["definition"], f"run {run_id}"))
    found = _detail(row, handler=row["handler"] or "", max_attempts=most, copied=True)
    return with_stages(replace(found, attempts=(_last_attempt(found, row["trace"]),)) if row["trace"] else found)


def _last_attempt(run: RunDetail, trace: str) -> PastAttempt:
    """Return the attempt whose error a failed run has: one with a trace has ended the run."""
    ended_at = run.finished_at or run.created_at
    return PastAttempt(
        run.attempt, run.status, None, run.started_at, ended_at, run.error_type, run.error_message, None, trace
    )


def with_stages(run: RunDetail) -> RunDetail:
    """Return a run with the stages that it has passed."""
    return replace(run, stages=tuple(_stages(run)))


def counts_of(attempts: Sequence[Attempt]) -> dict[str, Any]:
    """Return how many of all attempts of a run count against its limit, and how many were lost."""
    outcomes = Counter(each.outcome for each in attempts)
    return {"failed_attempts": sum(outcomes[each] for each in _COUNTED), "lost_attempts": outcomes[AttemptOutcome.LOST]}


def past_attempts(connection: Conn, run_id: UUID) -> list[PastAttempt]:
    """Return the ended attempts of a run, oldest first, at most the last hundred."""
    return read_rows(connection, class_row(PastAttempt), _SQL["read_past_attempts"], {"run_id": run_id})


def answer_of(handler: str, result: bytes | None) -> str:
    """Return the status of an HTTP call or the record on Kafka that a result names, else nothing.

    >>> answer_of("tidewheel.http", b'{"status":204}'), answer_of("orders", b'{"status":204}')
    ('204', '')
    >>> answer_of("tidewheel.kafka", b'{"topic":"orders","partition":3,"offset":88}')
    'orders/3/88'
    """
    if result is None or handler not in {f"{RESERVED}http", f"{RESERVED}kafka"}:
        return ""
    match json.loads(result):
        case {"status": int(status)}:
            return str(status)
        case {"topic": topic, "partition": int(partition), "offset": int(offset)}:
            return f"{topic}/{partition}/{offset}"
        case _:
            return ""


def retry_chain_of(run_id: UUID, parent: UUID | None, root: UUID | None, related: Iterable[RelatedRun]) -> RetryChain:
    """Return a run's retry chain from its first run, and the runs of its instant as they were created."""
    known = {one.run_id: one for one in related}
    previous: list[RelatedRun] = []
    at = parent
    while at is not None and (one := known.get(at)) is not None:
        previous.insert(0, one)
        at = one.parent_run_id
    descendants = {run_id}
    following: list[RelatedRun] = []
    for one in known.values():
        if one.parent_run_id in descendants:
            descendants.add(one.run_id)
            following.append(one)
    return RetryChain(parent, root, tuple(previous), tuple(following))


class RetryFacts(NamedTuple):
    """The facts about a stored run; `dead_letter` is one that is not redriven."""

    run_id: UUID
    is_deleted: bool  # its job is: no new run can be made
    is_part: bool  # of an occurrence of a workflow
    retries: int
    open_retries: Sequence[UUID] | None
    dead_letter: int | None


def count_open_retries(facts: Sequence[RetryFacts]) -> int:
    """Return how many runs that have not ended are in the retry chains of some runs."""
    return len({run_id for each in facts for run_id in each.open_retries or ()})


def read_retry_facts(connection: Conn, run_ids: Sequence[UUID]) -> Sequence[RetryFacts]:
    """Return the facts about these runs; none about one that is no longer stored."""
    return read_rows(connection, rows_of(RetryFacts._make), _SQL["read_retry_facts"], {"run_ids": list(run_ids)})


def _row(connection: Conn, statement: LiteralString, tenant: str, run_id: UUID) -> dict[str, Any]:
    row = read_row(connection, documents_as(RunDetail), statement, {"run_id": run_id, "tenant": tenant})
    if row is None:
        raise UnknownRun(str(run_id))
    return row


def _detail(row: dict[str, Any], **computed: Any) -> RunDetail:  # noqa: ANN401 - fields of the record
    return RunDetail(**{name: value for name, value in row.items() if name in _COLUMNS} | computed)


def _max_attempts(definition: "JobDefinition | None") -> int:
    return 0 if definition is None else definition.retry.max_attempts


def _payload(size: int | None, content_type: str | None, definition: "JobDefinition | None") -> PayloadFacts | None:
    of_job = JSON_CONTENT if definition is None else definition.payload_content_type
    if size is not None:
        return PayloadFacts(size, content_type or of_job, is_own=True)
    return None if definition is None else PayloadFacts(len(definition.payload), of_job, is_own=False)


def _stages(run: RunDetail) -> Iterator[RunStage]:
    yield _stage("due", None, run.scheduled_at)
    yield _stage("written", None, run.created_at)
    for each in run.attempts:
        yield from _begin(each.attempt, each.claimed_from, each.started_at)
        yield _stage("ended", each.attempt, each.finished_at)
    ended = {each.attempt for each in run.attempts}
    is_claimed = run.status in {*OWNED, RunState.WAITING} or (
        run.finished_at is not None and run.started_at is not None
    )
    if is_claimed and run.attempt not in ended:
        yield from _begin(run.attempt, run.claimed_from, run.started_at)
    if run.finished_at is not None:
        if run.attempt not in ended:
            yield _stage("ended", run.attempt or None, run.finished_at)
        yield RunStage("announced", None, None, "broker", known=False)


def _begin(attempt: int, claimed_from: str | None, claimed_at: datetime | None) -> Iterator[RunStage]:
    yield _stage("published", attempt, _published_at(claimed_from or ""), "broker")
    yield _stage("claimed", attempt, claimed_at)
    yield RunStage("begun", attempt, None, "executor", known=False)


def _published_at(claimed_from: str) -> datetime | None:
    """Return the broker's timestamp in the stored coordinates of a message.

    >>> _published_at("tidewheel.runs.standard/3/41@1700000000000")
    datetime.datetime(2023, 11, 14, 22, 13, 20, tzinfo=datetime.timezone.utc)
    >>> _published_at("sweep")
    """
    found = _MESSAGE.fullmatch(claimed_from)
    stamp = int(found[1]) if found else 0
    return _EPOCH + timedelta(milliseconds=stamp) if 0 < stamp <= _LATEST else None


def _stage(name: StageName, attempt: int | None, at: datetime | None, clock: Clock = "database") -> RunStage:
    return RunStage(name, attempt, at, clock, at is not None)


@dataclass(frozen=True, slots=True)
class _LogRow:
    state: str
    newest: int
    attempt: int | None
    outcome: str | None
    output_bytes: int | None
    output: bytes | None


class LogFollower(Iterator[LogPiece]):
    """Iterate over the output of a run, each byte once, until it ends; see `Runs.follow_logs`."""

    def __init__(self, call: Call, run_id: UUID, attempt: int | None = None, *, after: int = 0) -> None:
        self._call = call
        self._columns = {"tenant": call.tenant, "run_id": run_id, "attempt": attempt, "limit": _PAGE}
        self._attempt, self._read = (attempt or 0) if after else 0, after
        self._state, self.newest = RunState.QUEUED, 0
        self._ready: deque[LogPiece] = deque()

    def read(self) -> list[LogPiece]:
        """Return a page of new output, the older attempts first; empty if there is none."""
        columns = {**self._columns, "read_attempt": self._attempt, "read_bytes": self._read}
        with self._call.snapshot() as connection:
            rows = read_rows(connection, class_row(_LogRow), _SQL["read_logs"], columns)
        if not rows:
            raise UnknownRun(str(self._columns["run_id"]))
        self._state, self.newest = RunState(rows[0].state), rows[0].newest
        return [self._piece(row.attempt, row) for row in rows if row.attempt is not None]

    def page(self) -> list[LogPiece] | None:
        """Return the output since the last page, which may be empty; None when no more can follow."""
        found, attempt = self.read(), self._columns["attempt"]
        is_over = self._state in FINAL or (attempt is not None and self.newest > cast("int", attempt))
        return found or (None if is_over else [])

    def __next__(self) -> LogPiece:
        """Return the next piece of output; wait for it while the run goes on."""
        while not self._ready:
            if (page := self.page()) is None:
                raise StopIteration
            self._ready.extend(page)
            if not page:
                self._call.sleep(FOLLOW_SECONDS)
        return self._ready.popleft()

    def _piece(self, attempt: int, row: _LogRow) -> LogPiece:
        output, written = row.output or b"", row.output_bytes or 0
        new = written - (self._read if attempt == self._attempt else 0)
        self._attempt, self._read = attempt, written
        return LogPiece(attempt, row.outcome, new - len(output), output)


def read_logs(call: Call, run_id: UUID, attempt: int | None = None, *, after: int = 0) -> list[LogPiece]:
    """Return the stored output of attempts, or what one has written after some bytes; see `Runs.logs`."""
    reader = LogFollower(call, run_id, attempt, after=after)
    pieces: list[LogPiece] = []
    while page := reader.read():
        pieces += page
    if attempt is not None and not 1 <= attempt <= reader.newest:
        problem = f"there is no attempt {attempt}; the newest is {reader.newest}"
        refuse("attempt", problem, "leave it out to read all attempts")
    return pieces
