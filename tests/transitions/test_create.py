"""`create_runs` and what new runs carry: ids, priorities, and runs written ahead that are taken back."""

from datetime import datetime, timedelta
from uuid import UUID

import psycopg
import pytest

from tests.fixtures.acts import EXECUTOR, HANDLER, ending
from tests.fixtures.database import ClockedDatabase, Database
from tests.scheduler.firing import fire_due
from tests.transitions.stepping import behind, in_background, until_blocked
from tidewheel.control.client.enqueue import enqueue
from tidewheel.ids import JobId, job_id, run_id
from tidewheel.outbox import slice_lane_of, slice_of
from tidewheel.postgres.session import Conn
from tidewheel.runs import AttemptOutcome, Cause, RunState
from tidewheel.transitions.claim import Claim, claim_runs
from tidewheel.transitions.create import create_runs
from tidewheel.transitions.finish import finish_runs
from tidewheel.transitions.new_runs import NewRun, RunInputs
from tidewheel.transitions.timers import retract_runs

JOB = job_id("default", "job")


@pytest.fixture
def now(database: Database) -> datetime:
    database.submit()
    return database.now()


def new_run(database: Database, at: datetime, **fields: object) -> NewRun:
    [(definition, shard)] = database.rows(
        "SELECT v.definition, j.shard FROM job_versions AS v JOIN jobs AS j USING (job_id)"
    )
    made_of, job, cause = run_id(JOB, at, Cause.TIMER), JobId(JOB), Cause.TIMER
    where = "default", "standard", HANDLER, "allow_all"
    return NewRun(made_of, job, "default", 1, shard, cause, *where, at, at, definition)._replace(**fields)


def write(database: Database, *runs: NewRun, now: datetime, repeats: bool = False) -> set[UUID]:
    return database.within(create_runs, database.installation, runs, now=now, repeats=repeats)


def test_run_and_message_agree(database: Database, now: datetime) -> None:
    at = now + timedelta(seconds=5)
    run = new_run(database, at)
    assert write(database, run, now=now) == {run.run_id}
    [row] = database.rows("SELECT run_id, job_id, cause, scheduled_at, state, attempt, created_at FROM runs")
    assert row == (run.run_id, JOB, "timer", at, "queued", 0, now)
    [opened] = database.job_runs()
    assert (opened.run_id, opened.state, opened.publish_at) == (run.run_id, "queued", at)
    [message] = database.requests()
    assert (message.run_id, message.attempt, message.job_version) == (str(run.run_id), 1, 1)
    assert (message.scheduled_at, message.publish_at, message.definition) == (at, at, run.definition)
    rows = database.rows("SELECT key, publish_at, slice_lane FROM outbox WHERE topic LIKE '%.runs.%'")
    expected = slice_lane_of(slice_of(run.shard, database.installation.shards), "standard")
    assert rows == [(str(run.run_id).encode(), at, expected)]
    assert database.count("run_inputs") == 0


def test_duplicate_occurrence_is_refused_as_a_whole(database: Database, now: datetime) -> None:
    first, second = (new_run(database, now + timedelta(seconds=n)) for n in (1, 2))
    write(database, first, now=now)
    with pytest.raises(psycopg.errors.UniqueViolation):
        write(database, second, first, now=now)
    assert [run.run_id for run in database.job_runs()] == [first.run_id]


def test_repeats_creates_only_new_runs(database: Database, now: datetime) -> None:
    first, second = (new_run(database, now + timedelta(seconds=n)) for n in (1, 2))
    write(database, first, now=now)
    assert write(database, first, second, second, now=now, repeats=True) == {second.run_id}
    assert write(database, first, second, now=now, repeats=True) == write(database, now=now) == set()
    assert len(database.job_runs()) == len(database.requests()) == database.count("runs") == 2


def test_second_concurrent_writer_of_an_occurrence_creates_nothing(database: Database, now: datetime) -> None:
    run = new_run(database, now)

    def create(connection: Conn) -> set[UUID]:
        return create_runs(connection, database.installation, [run], now=now, repeats=True)

    assert behind(database, create, create) == set()
    assert len(database.job_runs()) == len(database.requests()) == 1


def test_run_that_has_finished_is_not_created_again(database: Database, now: datetime) -> None:
    finished, new = (new_run(database, now - timedelta(seconds=n)) for n in (2, 1))
    finished = finished._replace(inputs=RunInputs(payload=b"1"))
    write(database, finished, now=now)
    database.succeed(database.begin(finished.run_id))
    assert write(database, finished, new, now=now, repeats=True) == {new.run_id}
    assert write(database, finished, new, now=now, repeats=True) == set()
    assert [run.run_id for run in database.job_runs()] == [new.run_id]
    assert (len(database.requests()), database.count("run_inputs"), database.count("finished_runs")) == (2, 1, 1)


def test_repeat_of_an_open_run_does_not_wait_for_its_end(database: Database, now: datetime) -> None:
    """A client's own transaction may end it and stay open for minutes."""
    run = new_run(database, now)
    write(database, run, now=now)
    started = database.begin(run.run_id)
    ending_it, repeating = database.connection(), database.connection()
    finish_runs(ending_it, database.installation, [ending(started, RunState.SUCCEEDED)])
    assert create_runs(repeating, database.installation, [run], now=now, repeats=True) == set()
    ending_it.commit()
    repeating.commit()
    assert (database.job_runs(), len(database.requests()), database.count("finished_runs")) == ([], 1, 1)


@pytest.mark.parametrize("outcome", ["commit", "rollback"])
def test_repeat_that_waits_for_the_end_of_its_run_creates_no_second_one(
    database: Database, now: datetime, outcome: str
) -> None:
    """The repeat saw neither the open run nor the finished one before it waited."""
    run, other = (new_run(database, now - timedelta(seconds=n), inputs=RunInputs(payload=b"1")) for n in (2, 1))
    first, second = database.connection(), database.connection()
    create_runs(first, database.installation, [run], now=now)
    claims = [Claim(run.run_id, 1, 1, "t/0/0@0")]
    [started] = claim_runs(first, database.installation, claims, executor_id=EXECUTOR).started
    finish_runs(first, database.installation, [ending(started, RunState.SUCCEEDED)])
    waiting = in_background(lambda: create_runs(second, database.installation, [run, other], now=now, repeats=True))
    until_blocked(database, second)
    getattr(first, outcome)()
    new = [other] if outcome == "commit" else [run, other]
    assert waiting.result(30) == {each.run_id for each in new}
    second.commit()
    assert {each.run_id for each in database.job_runs()} == {each.run_id for each in new}
    assert len(database.requests()) == database.count("run_inputs") == 2
    assert [message.run_id for message in database.requests()].count(str(run.run_id)) == 1
    assert database.count("finished_runs") == (outcome == "commit")


def test_run_inputs_are_stored_and_sent(database: Database, now: datetime) -> None:
    inputs = RunInputs(payload=b"\x00", payload_content_type="application/octet-stream", labels={"a": "b"})
    write(database, new_run(database, now, inputs=inputs, request_id="r"), now=now)
    [row] = database.rows(
        "SELECT payload, payload_content_type, labels, request_id, i.created_at"
        "  FROM run_inputs AS i JOIN runs USING (run_id)"
    )
    assert row == (b"\x00", "application/octet-stream", {"a": "b"}, "r", now)
    [message] = database.requests()
    assert (message.payload, message.labels) == (b"\x00", {"a": "b"})


def priorities(database: Database, run_id: UUID) -> list[object]:
    """Return the priority of an open run, then of its messages in the order in which they were written."""
    row = database.value("SELECT priority FROM job_runs WHERE run_id = %s", [run_id])
    read = "SELECT tenant, priority FROM outbox WHERE key = convert_to(%s::text, 'UTF8') ORDER BY publish_at, id"
    messages = database.rows(read, [run_id])
    assert {tenant for tenant, _ in messages} == {"default"}
    return [row, *(priority for _, priority in messages)]


def test_run_and_its_next_attempt_have_its_jobs_priority_or_its_triggers(database: Database) -> None:
    database.submit("plain")
    database.submit(priority=2)
    assert priorities(database, database.trigger("plain")) == [5, 5]
    assert priorities(database, database.trigger()) == [2, 2]
    urgent = database.trigger(priority=0)
    assert priorities(database, urgent) == [0, 0]
    database.requeue(database.begin(urgent), AttemptOutcome.FAILED)
    assert priorities(database, urgent) == [0, 0, 0]
    with psycopg.connect(database.url) as own:
        run = enqueue(own, "job", priority=9)
    assert priorities(database, run) == [9, 9]


def test_higher_priority_gets_the_next_place_of_a_key(database: Database) -> None:
    database.submit(concurrency_key="acme", priority=0)
    first = database.begin(database.trigger())
    low, high = database.trigger(), database.trigger(priority=9)
    database.claim(low, high)
    assert {database.open_run(run).state for run in (low, high)} == {RunState.BUFFERED}
    database.succeed(first)
    assert [database.open_run(run).state for run in (low, high)] == [RunState.BUFFERED, RunState.QUEUED]
    assert priorities(database, high) == [9, 9, 9]
    database.succeed(database.begin(high))
    assert database.open_run(low).state == RunState.QUEUED


def test_waiting_run_ages(clocked: ClockedDatabase) -> None:
    """A run of priority 0 goes before one of priority 9 that is due more than 270 s later."""
    clocked.submit(concurrency_key="acme", priority=0)
    first = clocked.begin(clocked.trigger())
    low = clocked.trigger()
    clocked.claim(low)
    clocked.advance(timedelta(seconds=271))
    high = clocked.trigger(priority=9)
    clocked.claim(high)
    clocked.succeed(first)
    assert [clocked.open_run(run).state for run in (low, high)] == [RunState.QUEUED, RunState.BUFFERED]


def test_triggered_and_started_runs_are_not_retracted(still: ClockedDatabase) -> None:
    """Also when the clock has gone back since they began, and one of them waits for another executor."""
    still.submit(schedule="@every 1s", overlap="allow_all")
    fire_due(still, lookahead=timedelta(seconds=5))
    running, released, first, *_ = still.job_runs()
    triggered = still.trigger(delay="1h")
    still.advance(timedelta(seconds=2))
    still.begin(running.run_id)
    still.requeue(still.begin(released.run_id), AttemptOutcome.RELEASED)
    still.advance(timedelta(seconds=-2))
    assert still.within(retract_runs, [JOB], now=still.now()) == {JOB: first.scheduled_at}
    assert {run.run_id for run in still.job_runs()} == {triggered, running.run_id, released.run_id}
