"""`create_runs` and what new runs carry: ids, priorities, and runs written ahead that are taken back."""

from datetime import datetime, timedelta
from uuid import UUID

import psycopg
import pytest

from tests.fixtures.acts import EXECUTOR, HANDLER, ending
from tests.fixtures.database import ClockedDatabase, Database
from tests.scheduler.firing import fire_due
from tests.transitions.stepping import in_background, until_blocked
from tidewheel.control.client.enqueue import enqueue
from tidewheel.ids import JobId, job_id, run_id
from tidewheel.outbox import slice_lane_of, slice_of
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
    assert write(database, first, second, now=now, repeats=True) == write(database, now=now) == set()
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


AHEAD = timedelta(seconds=5)


@pytest.fixture
def ahead(clocked: ClockedDatabase) -> ClockedDatabase:
    """A job that fires each second, five of its runs written ahead of their time."""
    clocked.stop_clock()
    clocked.submit(schedule="@every 1s", overlap="allow_all")
    fire_due(clocked, lookahead=AHEAD)
    assert len(clocked.job_runs()) == 5
    return clocked


def taken_back(database: ClockedDatabase) -> dict[UUID, object]:
    with database.transaction() as connection:
        return dict(retract_runs(connection, [JOB], now=database.now()))


def test_retracted_runs_leave_no_row_and_their_messages_claim_nothing(ahead: ClockedDatabase) -> None:
    first = ahead.job_runs()[0]
    wanted = ahead.requested_claim(first.run_id)
    assert taken_back(ahead) == {JOB: first.scheduled_at}
    assert ahead.count("runs") == 0
    ahead.advance(AHEAD)
    with ahead.transaction() as connection:
        assert claim_runs(connection, ahead.installation, [wanted], executor_id=EXECUTOR).started == []


def test_due_run_is_not_retracted(ahead: ClockedDatabase) -> None:
    now = ahead.advance(timedelta(seconds=2))
    assert taken_back(ahead) == {JOB: now + timedelta(seconds=1)}
    assert [run.scheduled_at for run in ahead.job_runs()] == [now - timedelta(seconds=1), now]


def test_triggered_and_started_runs_are_not_retracted(ahead: ClockedDatabase) -> None:
    """Also when the clock has gone back since they began, and one of them waits for another executor."""
    triggered = ahead.trigger(delay="1h")
    running, released = ahead.job_runs()[:2]
    ahead.advance(timedelta(seconds=2))
    ahead.begin(running.run_id)
    ahead.requeue(ahead.begin(released.run_id), AttemptOutcome.RELEASED)
    ahead.advance(timedelta(seconds=-2))
    taken_back(ahead)
    assert {run.run_id for run in ahead.job_runs()} == {triggered, running.run_id, released.run_id}


def test_retraction_waits_for_a_concurrent_claim_which_wins(ahead: ClockedDatabase) -> None:
    """The claim's row is locked: taking back waits for it and then finds a run that has begun."""
    first = ahead.job_runs()[0]
    wanted = ahead.requested_claim(first.run_id)
    before = ahead.now()
    ahead.advance(timedelta(seconds=1))
    claiming, taking = ahead.connection(), ahead.connection()
    assert len(claim_runs(claiming, ahead.installation, [wanted], executor_id=EXECUTOR).started) == 1
    waiting = in_background(lambda: retract_runs(taking, [JOB], now=before))
    until_blocked(ahead, taking)
    claiming.commit()
    assert first.scheduled_at not in waiting.result(30).values()
    taking.commit()
    assert [run.run_id for run in ahead.job_runs()] == [first.run_id]


def test_ended_schedule_finishes_its_job(clocked: ClockedDatabase) -> None:
    now = clocked.stop_clock()
    clocked.submit(schedule={"once": (now + timedelta(seconds=1)).isoformat()})
    clocked.advance(timedelta(seconds=2))
    fire_due(clocked)
    assert clocked.count("timers") == 0
    assert clocked.value("SELECT finished_at FROM jobs") == clocked.now()
    assert len(clocked.claim(*(run.run_id for run in clocked.job_runs())).started) == 1
    assert [event.type for event in clocked.lifecycle()] == ["io.tidewheel.job.created.v1"]
