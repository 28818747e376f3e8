"""Actions on a database and views of its rows, in the words of the product."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar
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
from tidewheel.schemas.requests import read_document
from tidewheel.transitions.claim import Claim, Claimed, Started, claim_runs
from tidewheel.transitions.finish import finish_runs
from tidewheel.transitions.finished import Ended, RunEnd
from tidewheel.transitions.requeue import Requeue, Requeued, requeue_runs

R = TypeVar("R")

EXECUTOR = UUID("00000000-0000-4000-8000-00000000000e")
HANDLER = "send-email"
NEVER = datetime(9999, 1, 1, tzinfo=UTC)  # in place of infinity, for which psycopg has no value


@dataclass(frozen=True)
class OpenRun:
    """The columns of an open run that tests read."""

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


def apply_batch(database: Database, *documents: Mapping[str, object]) -> list[Reply]:
    """Apply requests as one batch, in one transaction."""
    with database.transaction() as connection:
        return apply_batch_within(connection, database, *documents)


def apply_batch_within(connection: Conn, database: Database, *documents: Mapping[str, object]) -> list[Reply]:
    """Apply requests as one batch, in the caller's transaction."""
    batch = [ReceivedRequest(parse_request(document)) for document in documents]
    return apply_requests(connection, database.installation, batch)


def submission(key: str = "job", **job: object) -> dict[str, object]:
    """A `job.submit` of a manual job with a handler, with the given fields on top."""
    return {"type": "job.submit", "job": {"key": key, "schedule": "manual", "target": HANDLER} | job}


def submit(database: Database, key: str = "job", **job: object) -> Reply:
    """Submit one job; fail unless it is accepted."""
    [reply] = apply_batch(database, submission(key, **job))
    assert reply.status is ReplyStatus.ACCEPTED, reply.errors
    return reply


def trigger(database: Database, key: str = "job", **fields: object) -> UUID:
    """Trigger a job; return the run."""
    [reply] = apply_batch(database, {"type": "job.trigger", "key": key} | fields)
    assert reply.status is ReplyStatus.ACCEPTED, reply.errors
    return UUID(reply.run_id)


def about(kind: str, key: str = "job", **fields: object) -> dict[str, object]:
    """Return a request about a job, such as `about("job.pause")`."""
    return {"type": kind, "key": key} | fields


def requested_claim(database: Database, run_id: UUID) -> Claim:
    """Return the claim that a run's message requests."""
    run = open_run(database, run_id)
    return Claim(run_id, run.attempt + 1, run.job_version, "test/0/0@0")


def claim(database: Database, *run_ids: UUID, executor_id: UUID = EXECUTOR) -> Claimed:
    """Claim runs as their messages request, in one transaction."""
    claims = [requested_claim(database, run_id) for run_id in run_ids]
    with database.transaction() as connection:
        return claim_runs(connection, database.installation, claims, executor_id=executor_id)


def begin(database: Database, run_id: UUID, executor_id: UUID = EXECUTOR) -> Started:
    """Claim one run; fail unless the claim is won."""
    [started] = claim(database, run_id, executor_id=executor_id).started
    return started


def begun(database: Database, key: str = "job", **fields: object) -> Started:
    """Trigger a job and claim the run."""
    return begin(database, trigger(database, key, **fields))


def end(database: Database, *ends: RunEnd) -> Ended:
    """End runs, in one transaction."""
    with database.transaction() as connection:
        return finish_runs(connection, database.installation, ends)


def ending(started: Started, state: RunState, *, executor_id: UUID = EXECUTOR, **fields: object) -> RunEnd:
    """Return the end of an attempt's run, as its executor reports it."""
    return RunEnd(started.run_id, started.attempt, state, executor_id)._replace(**fields)


def succeed(database: Database, started: Started) -> Ended:
    """End an attempt's run as succeeded."""
    return end(database, ending(started, RunState.SUCCEEDED))


_COPY_ENDS = """
INSERT INTO finished_runs (run_id, job_id, tenant, job_version, shard, cause, queue, lane, scheduled_at, publish_at,
                           created_at, finished_at, state, attempt, reason)
SELECT gen_random_uuid(), job_id, tenant, job_version, shard, cause, queue, lane, scheduled_at, publish_at, created_at,
       finished_at + each * interval '1 microsecond', state, attempt, repeat('x', %(size)s)
  FROM finished_runs, generate_series(1, %(runs)s) AS each
"""


def copy_ends(database: Database, runs: int, *, size: int = 1000) -> None:
    """Add so many copies of each end, with a reason of so many bytes."""
    database.execute(_COPY_ENDS, {"runs": runs, "size": size})


def requeue(database: Database, started: Started, outcome: AttemptOutcome, delay: timedelta = timedelta(0)) -> Requeued:
    """End an attempt and requeue its run."""
    with database.transaction() as connection:
        wanted = Requeue(started.run_id, started.attempt, EXECUTOR, outcome, delay, error_type="ValueError")
        return requeue_runs(connection, database.installation, [wanted])


def job_runs(database: Database) -> list[OpenRun]:
    """Return all open runs, by scheduled time."""
    with database.transaction() as connection, connection.cursor(row_factory=class_row(OpenRun)) as cursor:
        columns: dict[str, sql.Composable] = {each.name: sql.Identifier(each.name) for each in fields(OpenRun)}
        columns["publish_at"] = sql.SQL("least(publish_at, {}) AS publish_at").format(NEVER)
        query = sql.SQL("SELECT {} FROM job_runs ORDER BY scheduled_at, run_id")
        return cursor.execute(query.format(sql.SQL(", ").join(columns.values()))).fetchall()


def open_run(database: Database, run_id: UUID) -> OpenRun:
    """Return one open run."""
    [run] = [run for run in job_runs(database) if run.run_id == run_id]
    return run


def final_state(database: Database, run_id: UUID) -> tuple[str, str | None]:
    """Return a run's state and reason in runs."""
    [(state, reason)] = database.rows("SELECT state, reason FROM runs WHERE run_id = %s", [run_id])
    return state, reason


def messages(database: Database, topic: str, record: type[R]) -> list[R]:
    """Return the decoded outbox messages of a topic, in publish order."""
    values = database.rows("SELECT value FROM outbox WHERE topic = %s ORDER BY publish_at, id", [topic])
    return [decode(value, record) for (value,) in values]


def own_requests(database: Database) -> list[dict[str, Any]]:
    """Return the documents of the requests in the outbox."""
    topic = database.installation.topics.requests
    values = database.rows("SELECT value FROM outbox WHERE topic = %s ORDER BY publish_at, id", [topic])
    return [read_document(value)[0] for (value,) in values]


def completions(database: Database) -> list[RunCompleted]:
    """Return the completion events in the outbox."""
    return messages(database, database.installation.topics.completions, RunCompleted)


def lifecycle(database: Database) -> list[LifecycleEvent]:
    """Return the lifecycle events in the outbox."""
    return messages(database, database.installation.topics.events, LifecycleEvent)


def dead_letters(database: Database) -> list[DeadLetter]:
    """Return the dead letters of runs in the outbox."""
    return messages(database, database.installation.topics.dead_letters, DeadLetter)


def requests(database: Database, lane: str = "standard", queue: str = "default") -> list[RunRequest]:
    """Return the run requests in the outbox."""
    return messages(database, database.installation.topics.runs(queue, lane), RunRequest)


def attempts(database: Database, run_id: UUID) -> list[tuple[int, str]]:
    """Return the ended attempts of a run: number and outcome."""
    found = database.rows("SELECT attempt, outcome FROM ended_attempts WHERE run_id = %s ORDER BY attempt", [run_id])
    return [(attempt, outcome) for attempt, outcome in found]


def active_run_of(database: Database, job_id: UUID) -> UUID | None:
    """Return a job's active run."""
    found: Sequence[tuple[UUID]] = database.rows("SELECT run_id FROM active_runs WHERE job_id = %s", [job_id])
    return found[0][0] if found else None


def some_executor() -> UUID:
    """Return the id of a new executor."""
    return uuid4()
