"""Read one run with its attempts, deadlines, stages and retry chain, and what a retry depends on."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, LiteralString, NamedTuple
from uuid import UUID

from psycopg.rows import class_row

from tidewheel.control.reads.stored import documents_as, read_definition
from tidewheel.control.reads.waits import read_waits
from tidewheel.errors import UnknownRun
from tidewheel.jobs.payload import JSON_CONTENT
from tidewheel.nouns.runs.model import (
    Attempt,
    ClaimMessage,
    Clock,
    PastAttempt,
    PayloadFacts,
    RelatedRun,
    RetryChain,
    RunDetail,
    RunStage,
    StageName,
)
from tidewheel.postgres.session import Conn, rows_of
from tidewheel.postgres.statements import Statements
from tidewheel.runs import OWNED, AttemptOutcome, RunState

if TYPE_CHECKING:
    from tidewheel.schemas.generated.records import JobDefinition

_SQL = Statements("tidewheel.control")
_SHOW_FAILED_RUN = _SQL["show_failed_run"]
_SHOW_RUN = _SQL["show_run"]
_READ_PAST_ATTEMPTS = _SQL["read_past_attempts"]
_READ_RETRY_CHAIN = _SQL["read_retry_chain"]
_READ_RETRY_FACTS = _SQL["read_retry_facts"]

_MESSAGE = re.compile(r"(?P<topic>.+)/(?P<partition>\d+)/(?P<offset>\d+)@(?P<timestamp>-?\d+)", re.ASCII)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LATEST = 253_402_300_799_999  # milliseconds of the last instant that Python has
_COUNTED = (AttemptOutcome.FAILED, AttemptOutcome.TIMED_OUT)
_COLUMNS = frozenset(each.name for each in fields(RunDetail))


def show_run(connection: Conn, tenant: str, run_id: UUID) -> RunDetail:
    """Return one run, or raise UnknownRun."""
    row = _row(connection, _SHOW_RUN, tenant, run_id)
    definition = read_definition(row["definition"], f"run {run_id}")
    attempts = tuple(past_attempts(connection, run_id))
    if row["finished_at"] is not None and len(attempts) == row["attempt"]:
        row |= counts_of(attempts)
    chain = (row["parent_run_id"], row["root_run_id"], _read_retry_chain(connection, row))
    return with_stages(
        _detail(
            row,
            why=read_waits(connection, [run_id]).get(run_id) if row["finished_at"] is None else None,
            max_attempts=_max_attempts(definition),
            late=None if row["late_ms"] is None else timedelta(milliseconds=row["late_ms"]),
            retry_chain=retry_chain_of(run_id, *chain),
            attempts=attempts,
            payload=_payload(row["payload_bytes"], row["payload_content_type"], definition),
        )
    )


def show_failed_run(connection: Conn, tenant: str, run_id: UUID) -> RunDetail:
    """Return what is left of a failed run whose day retention has dropped, or raise UnknownRun."""
    row = _row(connection, _SHOW_FAILED_RUN, tenant, run_id)
    most = _max_attempts(read_definition(row["definition"], f"run {run_id}"))
    return with_stages(_detail(row, handler=row["handler"] or "", max_attempts=most, copied=True))


def with_stages(run: RunDetail) -> RunDetail:
    """Return a run with the stages that it has passed."""
    return replace(run, stages=tuple(_stages(run)))


def counts_of(attempts: Sequence[Attempt]) -> dict[str, Any]:
    """Return how many of all attempts of a run count against its limit, and how many were lost."""
    outcomes = Counter(each.outcome for each in attempts)
    return {"failed_attempts": sum(outcomes[each] for each in _COUNTED), "lost_attempts": outcomes[AttemptOutcome.LOST]}


def past_attempts(connection: Conn, run_id: UUID) -> list[PastAttempt]:
    """Return the ended attempts of a run, the oldest first, at most the last hundred."""
    with connection.cursor(row_factory=class_row(PastAttempt), binary=True) as cursor:
        return cursor.execute(_READ_PAST_ATTEMPTS, {"run_id": run_id}).fetchall()


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
    with connection.cursor(row_factory=rows_of(RetryFacts._make), binary=True) as cursor:
        return cursor.execute(_READ_RETRY_FACTS, {"run_ids": list(run_ids)}).fetchall()


def claim_message(attempt: int, text: str) -> ClaimMessage:
    """Parse the stored text of `claimed_from`.

    >>> claim_message(1, "tidewheel.runs.standard/3/41@1700000000000").timestamp
    datetime.datetime(2023, 11, 14, 22, 13, 20, tzinfo=datetime.timezone.utc)
    >>> claim_message(2, "sweep").topic
    """
    found = _MESSAGE.fullmatch(text)
    if found is None:
        return ClaimMessage(attempt, None, None, None, None, text)
    stamp = int(found["timestamp"])
    at = _EPOCH + timedelta(milliseconds=stamp) if 0 < stamp <= _LATEST else None
    return ClaimMessage(attempt, found["topic"], int(found["partition"]), int(found["offset"]), at, text)


def claims_of(run: RunDetail) -> tuple[ClaimMessage, ...]:
    """Return the messages by which the attempts of a run were claimed."""
    found = {each.attempt: each.claimed_from for each in run.attempts}
    found.setdefault(run.attempt, run.claimed_from)
    return tuple(claim_message(attempt, text) for attempt, text in found.items() if text is not None)


def _row(connection: Conn, statement: LiteralString, tenant: str, run_id: UUID) -> dict[str, Any]:
    with connection.cursor(row_factory=documents_as(RunDetail), binary=True) as cursor:
        row = cursor.execute(statement, {"run_id": run_id, "tenant": tenant}).fetchone()
    if row is None:
        raise UnknownRun(str(run_id))
    return row


def _detail(row: dict[str, Any], **computed: Any) -> RunDetail:  # noqa: ANN401 - fields of the record
    """Return the record of a row, with the fields that are computed."""
    return RunDetail(**{name: value for name, value in row.items() if name in _COLUMNS} | computed)


def _max_attempts(definition: "JobDefinition | None") -> int:
    return 0 if definition is None else definition.retry.max_attempts


def _payload(size: int | None, content_type: str | None, definition: "JobDefinition | None") -> PayloadFacts | None:
    of_job = JSON_CONTENT if definition is None else definition.payload_content_type
    if size is not None:
        return PayloadFacts(size, content_type or of_job, is_own=True)
    return None if definition is None else PayloadFacts(len(definition.payload), of_job, is_own=False)


def _read_retry_chain(connection: Conn, row: dict[str, Any]) -> list[RelatedRun]:
    columns = {"job_id": row["job_id"], "scheduled_at": row["scheduled_at"]}
    with connection.cursor(row_factory=class_row(RelatedRun), binary=True) as cursor:
        return cursor.execute(_READ_RETRY_CHAIN, columns).fetchall()


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
    message = None if claimed_from is None else claim_message(attempt, claimed_from)
    yield _stage("published", attempt, None if message is None else message.timestamp, "broker")
    yield _stage("claimed", attempt, claimed_at)
    yield RunStage("begun", attempt, None, "executor", known=False)


def _stage(name: StageName, attempt: int | None, at: datetime | None, clock: Clock = "database") -> RunStage:
    return RunStage(name, attempt, at, clock, at is not None)
