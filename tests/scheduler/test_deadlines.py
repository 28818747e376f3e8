"""Overdue runs without owner are ended or requeued, and every record names the timeout."""

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from tests.fixtures.acts import EXECUTOR
from tests.fixtures.database import ClockedDatabase, Database
from tests.scheduler.firing import HOUR, MINUTE, SECOND, fire_due
from tests.transitions.overlapping import JOB, holding, make
from tests.transitions.stepping import in_background, until_blocked
from tidewheel.runs import AttemptOutcome
from tidewheel.scheduler.deadlines import Deadlines
from tidewheel.transitions.requeue import Wait, wait_runs

HTTP = {"type": "http", "url": "https://example.org/", "async": True, "async_timeout": "1h"}
KAFKA = {"type": "kafka", "topic": "orders", "await_reply": True, "reply_timeout": "1h"}
SLOW: dict[str, Any] = {"retry": {"max_attempts": 2, "initial": "30m", "jitter": "0%"}}


def deadlines(database: Database) -> Deadlines:
    return Deadlines(database.session(), database.installation)


def look(database: Database) -> int:
    return deadlines(database).step()[0]


def wait_for_answer(database: Database, run_id: UUID, heartbeat: timedelta | None = None) -> None:
    with database.transaction() as connection:
        attempt = database.value("SELECT attempt FROM job_runs WHERE run_id = %s", [run_id])
        assert not wait_runs(connection, [Wait(run_id, attempt, EXECUTOR, HOUR, heartbeat)]).busy


def check_records_name(database: Database, which: str) -> None:
    """Completion, dead letter, row and copy of the one failed run all name the timeout that struck."""
    [completion], [letter] = database.completions(), database.dead_letters()
    assert (completion.status, completion.reason) == ("timed_out", which)
    assert completion.error is not None
    assert completion.error.type == f"timeout_{which}"
    assert completion.error.message.startswith(f"{which} of ")
    assert (letter.status, letter.error, letter.reason) == ("timed_out", completion.error, completion.error.message)
    assert database.final_state(UUID(completion.run_id)) == ("timed_out", which)
    assert database.rows("SELECT state, error_type FROM failed_runs") == [("timed_out", f"timeout_{which}")]


def test_unstarted_run_ends_by_schedule_to_start(still: ClockedDatabase) -> None:
    still.submit(schedule_to_start="1m", schedule_to_close="1h")
    run_id = still.trigger()
    still.advance(MINUTE - timedelta(milliseconds=1))
    assert look(still) == 0
    still.advance(timedelta(milliseconds=1))
    assert not still.claim(run_id).started
    assert look(still) == 1
    check_records_name(still, "schedule_to_start")
    assert still.attempts(run_id) == []
    assert still.count("job_runs") == 0


def test_started_run_is_not_ended_by_schedule_to_start(still: ClockedDatabase) -> None:
    still.submit(schedule_to_start="1m")
    first = still.begun()
    still.requeue(first, AttemptOutcome.RELEASED)
    still.advance(HOUR)
    assert look(still) == 0
    assert still.begin(first.run_id).attempt == 2


def test_schedule_to_start_counts_from_publish_at(still: ClockedDatabase) -> None:
    still.submit(schedule_to_start="1m", schedule_to_close="2m")
    still.trigger(delay="1h")
    still.advance(HOUR)
    assert look(still) == 0
    still.advance(MINUTE)
    assert look(still) == 1
    check_records_name(still, "schedule_to_start")


@pytest.mark.parametrize("outcome", [AttemptOutcome.FAILED, AttemptOutcome.RELEASED, AttemptOutcome.LOST])
def test_run_between_attempts_ends_by_schedule_to_close(still: ClockedDatabase, outcome: AttemptOutcome) -> None:
    still.submit(schedule_to_start="1s", schedule_to_close="1m")
    started = still.begun()
    still.requeue(started, outcome, delay=HOUR)
    still.advance(MINUTE)
    assert look(still) == 1
    check_records_name(still, "schedule_to_close")
    assert still.attempts(started.run_id) == [(1, outcome)]
    [completion] = still.completions()
    assert (completion.attempt, completion.started_at, completion.sequence) == (1, None, 3)


def test_run_owned_by_executor_is_not_timed_out(still: ClockedDatabase) -> None:
    still.submit(schedule_to_close="1m")
    started = still.begun()
    still.advance(HOUR)
    assert look(still) == 0
    assert still.open_run(started.run_id).state == "running"


def test_buffered_run_is_timed_out_and_others_keep_their_order(still: ClockedDatabase) -> None:
    still.submit(schedule_to_start="1m")
    holder, second = holding(still), make(still, "buffer_all")
    still.claim(second)
    assert still.open_run(second).state == "buffered"
    still.advance(30 * SECOND)
    third = make(still, "buffer_all")
    still.claim(third)
    still.advance(31 * SECOND)
    assert look(still) == 1
    check_records_name(still, "schedule_to_start")
    still.succeed(holder)
    assert still.active_run_of(JOB) == third


@pytest.mark.parametrize(("target", "which"), [(HTTP, "async_timeout"), (KAFKA, "reply_timeout")])
def test_missing_external_result_fails_attempts_then_ends_run(
    still: ClockedDatabase, target: dict[str, object], which: str
) -> None:
    still.submit(target=target, **SLOW)
    first = still.begun()
    wait_for_answer(still, first.run_id)
    still.advance(HOUR - SECOND)
    assert look(still) == 0
    still.advance(SECOND)
    assert look(still) == 1
    run = still.open_run(first.run_id)
    assert (run.state, run.failed_attempts, run.executor_id) == ("retrying", 1, None)
    assert run.publish_at == still.now() + timedelta(minutes=30)
    error = still.rows("SELECT outcome, executor_id, error_type FROM ended_attempts")
    assert error == [("timed_out", EXECUTOR, f"timeout_{which}")]
    assert [request.attempt for request in still.requests()] == [1, 2]
    still.advance(HOUR)
    still.begin(first.run_id)
    wait_for_answer(still, first.run_id)
    still.advance(HOUR)
    assert look(still) == 1
    check_records_name(still, which)
    assert still.attempts(first.run_id) == [(1, "timed_out"), (2, "timed_out")]


def test_missing_heartbeats_time_out_wait_earlier(still: ClockedDatabase) -> None:
    still.submit(target=HTTP, heartbeat="1m", retry={"max_attempts": 1})
    started = still.begun()
    wait_for_answer(still, started.run_id, MINUTE)
    still.advance(MINUTE)
    assert look(still) == 1
    check_records_name(still, "heartbeat")
    assert still.attempts(started.run_id) == [(1, "timed_out")]


def test_schedule_to_close_runs_during_external_wait(still: ClockedDatabase) -> None:
    still.submit(target=HTTP, heartbeat="1m", schedule_to_close="10s")
    wait_for_answer(still, still.begun().run_id, MINUTE)
    still.advance(10 * SECOND)
    assert look(still) == 1
    check_records_name(still, "schedule_to_close")


def test_at_most_once_run_is_not_requeued(still: ClockedDatabase) -> None:
    still.submit(target=HTTP, delivery="at_most_once")
    wait_for_answer(still, still.begun().run_id)
    still.advance(HOUR)
    assert look(still) == 1
    check_records_name(still, "async_timeout")


def test_locked_run_is_not_timed_out(still: ClockedDatabase) -> None:
    """A heartbeat, an answer or a cancel that has the row has come first, though the deadline has passed."""
    still.submit(target=HTTP)
    run_id = still.begun().run_id
    wait_for_answer(still, run_id)
    still.advance(HOUR)
    holding_it = still.connection()
    holding_it.execute("SELECT FROM job_runs WHERE run_id = %s FOR UPDATE", [run_id])
    watching = deadlines(still)
    moved, pause = watching.step()
    assert moved == 0
    assert 0 < pause < 1
    holding_it.execute("UPDATE job_runs SET deadline_at = deadline_at + interval '1 min' WHERE run_id = %s", [run_id])
    holding_it.commit()
    assert look(still) == 0
    assert still.open_run(run_id).state == "waiting"


def test_timed_out_fixed_delay_run_waits_for_a_concurrent_edit_unlocked(still: ClockedDatabase) -> None:
    """Lock order: timers, then jobs, then open runs, as a deletion of the job."""
    still.submit(schedule={"fixed_delay": "1h"}, schedule_to_start="1m", pause_on_failure=3)
    fire_due(still)
    [run] = still.job_runs()
    still.advance(MINUTE)
    editing = still.connection()
    editing.execute("SELECT FROM timers FOR UPDATE")
    session = still.session()
    connection = session.connection()
    looking = in_background(lambda: Deadlines(session, still.installation).step())
    until_blocked(still, connection)
    editing.execute("SELECT FROM job_runs WHERE run_id = %s FOR UPDATE NOWAIT", [run.run_id])
    editing.rollback()
    assert looking.result(30)[0] == 1
    check_records_name(still, "schedule_to_start")
    assert still.rows("SELECT hold_reason, scheduled_at FROM timers") == [(None, still.now() + HOUR)]
    assert still.value("SELECT consecutive_failures FROM jobs") == 1


def test_probe_waits_for_next_deadline_or_one_second(still: ClockedDatabase) -> None:
    watching = deadlines(still)
    assert watching.step() == (0, 1.0)
    still.submit(schedule_to_start="1m")
    still.trigger()
    still.advance(MINUTE - timedelta(milliseconds=400))
    moved, pause = watching.step()
    assert moved == 0
    assert 0 < pause <= 1.0
    assert deadlines(still).step() == (0, 0.4)


def test_unreadable_run_does_not_block_other_timeouts(still: ClockedDatabase) -> None:
    still.submit("bad", schedule_to_start="1m")
    bad = still.trigger("bad")
    still.execute("UPDATE job_versions SET definition = 'garbage'")
    still.submit("good", schedule_to_start="1m")
    good = [still.trigger("good") for _ in range(3)]
    still.advance(MINUTE)
    watching = deadlines(still)
    assert watching.step() == (3, 0.0)
    assert [still.final_state(run_id)[0] for run_id in good] == ["timed_out"] * 3
    assert still.open_run(bad).state == "queued"
    assert watching.step() == (0, 1.0)


@pytest.mark.landing
def test_timeouts_are_applied_batch_by_batch(still: ClockedDatabase) -> None:
    still.submit(schedule_to_start="1m")
    still.apply_batch(*({"type": "job.trigger", "key": "job"} for _ in range(700)))
    still.advance(MINUTE)
    watching = deadlines(still)
    assert [watching.step()[0] for _ in range(3)] == [500, 200, 0]
    assert still.count("job_runs") == 0


def test_concurrent_schedulers_time_a_run_out_once(still: ClockedDatabase) -> None:
    still.submit(schedule_to_start="1m")
    still.apply_batch(*({"type": "job.trigger", "key": "job"} for _ in range(100)))
    still.advance(MINUTE)
    both = [in_background(deadlines(still).step) for _ in range(2)]
    assert sum(one.result(30)[0] for one in both) + look(still) == 100
    assert len({event.run_id for event in still.completions()}) == len(still.completions()) == 100
