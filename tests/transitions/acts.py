"""What tests do to a database and what they look at, in the words of the product."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from typing import TypeVar
from uuid import UUID, uuid4

from psycopg import sql
from psycopg.rows import class_row

from tests.fixtures.database import Database
from tidewheel.intake.apply import apply_requests
from tidewheel.intake.request import ReceivedRequest
from tidewheel.jobs.parsing import parse_request
from tidewheel.postgres.session import Conn
from tidewheel.runs import AttemptOutcome, RunState
from tidewheel.schemas.codec import decode
from tidewheel.schemas.generated.records import DeadLetter, LifecycleEvent, Reply, ReplyStatus, RunCompleted, RunRequest
from tidewheel.transitions.claim import Claim, Claimed, Started, claim_runs
from tidewheel.transitions.finish import finish_runs
from tidewheel.transitions.finished import Ended, RunEnd
from tidewheel.transitions.requeue import Requeue, Requeued, requeue_runs

R = TypeVar("R")

EXECUTOR = UUID("00000000-0000-4000-8000-00000000000e")
HANDLER = "send-email"
NEVER = datetime(9999, 1, 1, tzinfo=UTC)  # stands for infinity, which psycopg has no value for


@dataclass(frozen=True)
class OpenRun:
    """An open run's row, as far as tests look at it."""

    run_id: UUID
    job_id: UUID
    state: str
    cause: str
    job_version: int
    attempt: int
    failed_attempts: int
    lost_attempts: int
    scheduled_at: datetime
    publish_at: datetime
    started_at: datetime | None
    executor_id: UUID | None
    claimed_from: str | None


def ask(database: Database, *documents: Mapping[str, object]) -> list[Reply]:
    """Apply requests as one batch, in a transaction of their own."""
    with database.transaction() as connection:
        return ask_within(connection, database, *documents)


def ask_within(connection: Conn, database: Database, *documents: Mapping[str, object]) -> list[Reply]:
    """Apply requests as one batch, in the caller's transaction."""
    batch = [ReceivedRequest(parse_request(document)) for document in documents]
    return apply_requests(connection, database.installation, batch)


def submission(key: str = "job", **job: object) -> dict[str, object]:
    """A `job.submit` of a manual job with a handler, unless told otherwise."""
    return {"type": "job.submit", "job": {"key": key, "schedule": "manual", "target": HANDLER} | job}


def submit(database: Database, key: str = "job", **job: object) -> Reply:
    """Submit one job, which is accepted."""
    [reply] = ask(database, submission(key, **job))
    assert reply.status is ReplyStatus.ACCEPTED, reply.errors
    return reply


def trigger(database: Database, key: str = "job", **fields: object) -> UUID:
    """Trigger a job; returns the run."""
    [reply] = ask(database, {"type": "job.trigger", "key": key} | fields)
    assert reply.status is ReplyStatus.ACCEPTED, reply.errors
    return UUID(reply.run_id)


def about(kind: str, key: str = "job", **fields: object) -> dict[str, object]:
    """A request about a job, such as `about("job.pause")`."""
    return {"type": kind, "key": key} | fields


def wish(database: Database, run_id: UUID) -> Claim:
    """The claim that a run's message asks for."""
    run = open_run(database, run_id)
    return Claim(run_id, run.attempt + 1, run.job_version, "test/0/0@0")


def claim(database: Database, *run_ids: UUID, executor_id: UUID = EXECUTOR) -> Claimed:
    """Claim runs as their messages ask, in a transaction of their own."""
    claims = [wish(database, run_id) for run_id in run_ids]
    with database.transaction() as connection:
        return claim_runs(connection, database.installation, claims, executor_id=executor_id)


def begin(database: Database, run_id: UUID, executor_id: UUID = EXECUTOR) -> Started:
    """Claim one run, which is won."""
    [started] = claim(database, run_id, executor_id=executor_id).started
    return started


def begun(database: Database, key: str = "job", **fields: object) -> Started:
    """Trigger a job and claim the run."""
    return begin(database, trigger(database, key, **fields))


def end(database: Database, *ends: RunEnd) -> Ended:
    """End runs, in a transaction of their own."""
    with database.transaction() as connection:
        return finish_runs(connection, database.installation, ends)


def ending(started: Started, state: RunState, *, executor_id: UUID = EXECUTOR, **fields: object) -> RunEnd:
    """The end of an attempt's run, as its executor reports it."""
    return RunEnd(started.run_id, started.attempt, state, executor_id)._replace(**fields)


def succeed(database: Database, started: Started) -> Ended:
    """End an attempt's run as succeeded."""
    return end(database, ending(started, RunState.SUCCEEDED))


def requeue(database: Database, started: Started, outcome: AttemptOutcome, delay: timedelta = timedelta(0)) -> Requeued:
    """End an attempt whose run goes on."""
    with database.transaction() as connection:
        wanted = Requeue(started.run_id, started.attempt, EXECUTOR, outcome, delay, error_type="ValueError")
        return requeue_runs(connection, database.installation, [wanted])


def open_runs(database: Database) -> list[OpenRun]:
    """All open runs, oldest instant first."""
    with database.transaction() as connection, connection.cursor(row_factory=class_row(OpenRun)) as cursor:
        columns: dict[str, sql.Composable] = {each.name: sql.Identifier(each.name) for each in fields(OpenRun)}
        columns["publish_at"] = sql.SQL("least(publish_at, {}) AS publish_at").format(NEVER)
        query = sql.SQL("SELECT {} FROM open_runs ORDER BY scheduled_at, run_id")
        return cursor.execute(query.format(sql.SQL(", ").join(columns.values()))).fetchall()


def open_run(database: Database, run_id: UUID) -> OpenRun:
    """One open run."""
    [run] = [run for run in open_runs(database) if run.run_id == run_id]
    return run


def final_state(database: Database, run_id: UUID) -> tuple[str, str | None]:
    """A run's state in job_runs, and the reason."""
    [(state, reason)] = database.rows("SELECT state, reason FROM job_runs WHERE run_id = %s", [run_id])
    return state, reason


def messages(database: Database, topic: str, record: type[R]) -> list[R]:
    """What the outbox holds for a topic, decoded, in the order in which it would leave."""
    values = database.rows("SELECT value FROM outbox WHERE topic = %s ORDER BY publish_at, id", [topic])
    return [decode(value, record) for (value,) in values]


def completions(database: Database) -> list[RunCompleted]:
    """Completion events on their way."""
    return messages(database, database.installation.topics.completions, RunCompleted)


def lifecycle(database: Database) -> list[LifecycleEvent]:
    """Lifecycle events on their way."""
    return messages(database, database.installation.topics.events, LifecycleEvent)


def dead_letters(database: Database) -> list[DeadLetter]:
    """Dead letters of runs on their way."""
    return messages(database, database.installation.topics.dead_letters, DeadLetter)


def requests(database: Database, lane: str = "standard", queue: str = "default") -> list[RunRequest]:
    """Run requests on their way."""
    return messages(database, database.installation.topics.runs(queue, lane), RunRequest)


def attempts(database: Database, run_id: UUID) -> list[tuple[int, str]]:
    """The attempts of a run that are over: number and outcome."""
    found = database.rows("SELECT attempt, outcome FROM attempts WHERE run_id = %s ORDER BY attempt", [run_id])
    return [(attempt, outcome) for attempt, outcome in found]


def turn_of(database: Database, job_id: UUID) -> UUID | None:
    """Which run holds a job's turn."""
    found: Sequence[tuple[UUID]] = database.rows("SELECT run_id FROM active_runs WHERE job_id = %s", [job_id])
    return found[0][0] if found else None


def some_executor() -> UUID:
    """The id of an executor that nobody else is."""
    return uuid4()
