"""`create_runs`: run, inputs and message are written together or not at all, and once.

Also if the run has ended.
"""

from datetime import datetime, timedelta
from uuid import UUID

import psycopg
import pytest

from tests.fixtures.acts import EXECUTOR, HANDLER, ending
from tests.fixtures.database import Database
from tests.transitions.stepping import in_background, until_blocked
from tidewheel.ids import JobId, job_id, run_id
from tidewheel.outbox import slice_lane_of, slice_of
from tidewheel.runs import Cause, RunState
from tidewheel.transitions.claim import Claim, claim_runs
from tidewheel.transitions.create import NewRun, RunInputs, create_runs
from tidewheel.transitions.finish import finish_runs

JOB = job_id("default", "job")


@pytest.fixture
def now(database: Database) -> datetime:
    database.submit()
    return database.now()


def new_run(database: Database, at: datetime, **fields: object) -> NewRun:
    [(definition, shard)] = database.rows(
        "SELECT v.definition, j.shard FROM job_versions AS v JOIN jobs AS j USING (job_id)"
    )
    run = NewRun(
        run_id=run_id(JOB, at, Cause.TIMER),
        job_id=JobId(JOB),
        tenant="default",
        job_version=1,
        shard=shard,
        cause=Cause.TIMER,
        queue="default",
        lane="standard",
        handler=HANDLER,
        overlap="allow_all",
        scheduled_at=at,
        publish_at=at,
        definition=definition,
    )
    return run._replace(**fields)


def write(database: Database, *runs: NewRun, now: datetime, repeats: bool = False) -> set[UUID]:
    with database.transaction() as connection:
        return create_runs(connection, database.installation, runs, now=now, repeats=repeats)


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
    [(key, publish_at, slice_lane)] = database.rows(
        "SELECT key, publish_at, slice_lane FROM outbox WHERE topic LIKE '%.runs.%'"
    )
    expected = slice_lane_of(slice_of(run.shard, database.installation.shards), "standard")
    assert (key, publish_at, slice_lane) == (str(run.run_id).encode(), at, expected)
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
    assert write(database, first, second, now=now, repeats=True) == set()
    assert len(database.job_runs()) == len(database.requests()) == database.count("runs") == 2


def test_second_concurrent_writer_of_an_occurrence_creates_nothing(database: Database, now: datetime) -> None:
    run = new_run(database, now)
    first, second = database.connection(), database.connection()
    create_runs(first, database.installation, [run], now=now, repeats=True)
    waiting = in_background(lambda: create_runs(second, database.installation, [run], now=now, repeats=True))
    until_blocked(database, second)
    first.commit()
    assert waiting.result(30) == set()
    second.commit()
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


def test_creating_no_runs_writes_nothing(database: Database, now: datetime) -> None:
    assert write(database, now=now) == set()
