"""`run.heartbeat`: an attempt outside goes on, how far it is, and what the next one is to know."""

from datetime import datetime, timedelta
from uuid import UUID

import pytest

from tests.fixtures.database import Database
from tests.intake.waiting import beat, complete, token_of, waiting
from tests.transitions.acts import EXECUTOR, ask, begin, begun, requests, some_executor, submit, succeed
from tidewheel.transitions.attempts import ProgressReport, save_progress


@pytest.fixture
def with_job(database: Database) -> Database:
    submit(database, heartbeat="10m", start_to_close="1h")
    return database


def deadline(database: Database, run_id: UUID) -> datetime:
    found = database.value("SELECT deadline_at FROM open_runs WHERE run_id = %s", [run_id])
    assert isinstance(found, datetime)
    return found


def stored(database: Database, run_id: UUID) -> tuple[object, ...]:
    [row] = database.rows(
        "SELECT progress, progress_attempt, checkpoint, checkpoint_attempt FROM run_inputs WHERE run_id = %s", [run_id]
    )
    return tuple(row)


def save(database: Database, *beats: ProgressReport) -> set[UUID]:
    with database.transaction() as connection:
        return save_progress(connection, beats)


def test_heartbeat_extends_the_deadline_of_a_waiting_run(with_job: Database) -> None:
    started = waiting(with_job, heartbeat=timedelta(minutes=1))
    before = deadline(with_job, started.run_id)
    asked = with_job.now()
    reply = beat(with_job, started)
    assert (reply.status, reply.run_id, reply.run_status) == ("accepted", str(started.run_id), "waiting")
    assert deadline(with_job, started.run_id) >= asked + timedelta(minutes=10) > before


def test_heartbeat_does_not_extend_the_external_timeout(with_job: Database) -> None:
    started = waiting(with_job, timeout=timedelta(minutes=5), heartbeat=timedelta(minutes=1))
    beat(with_job, started)
    [(until, external_deadline_at)] = with_job.rows("SELECT deadline_at, external_deadline_at FROM open_runs")
    assert until == external_deadline_at


def test_heartbeat_does_not_extend_schedule_to_close(database: Database) -> None:
    submit(database, heartbeat="10m", schedule_to_close="2m")
    started = waiting(database, heartbeat=timedelta(seconds=5))
    beat(database, started)
    [(until, schedule_to_close_at)] = database.rows("SELECT deadline_at, schedule_to_close_at FROM open_runs")
    assert until == schedule_to_close_at


def test_job_without_a_heartbeat_timeout_keeps_its_deadline(database: Database) -> None:
    submit(database)
    started = waiting(database)
    before = deadline(database, started.run_id)
    assert beat(database, started, progress=1).status == "accepted"
    assert deadline(database, started.run_id) == before


def test_heartbeat_saves_progress_and_checkpoint_and_keeps_absent_fields(with_job: Database) -> None:
    started = waiting(with_job)
    beat(with_job, started, progress={"done": 1}, checkpoint={"page": 3})
    assert stored(with_job, started.run_id) == (b'{"done":1}', 1, b'{"page":3}', 1)
    beat(with_job, started, progress={"done": 2})
    beat(with_job, started)
    assert stored(with_job, started.run_id) == (b'{"done":2}', 1, b'{"page":3}', 1)


def test_next_attempt_gets_the_checkpoint_and_no_progress(with_job: Database) -> None:
    started = waiting(with_job)
    beat(with_job, started, progress=50, checkpoint={"page": 3})
    complete(with_job, started, status="failed")
    assert [request.checkpoint for request in requests(with_job)] == [None, b'{"page":3}']
    with_job.execute("UPDATE open_runs SET publish_at = tidewheel_now()")
    again = begin(with_job, started.run_id)
    beat(with_job, again)
    assert stored(with_job, started.run_id) == (None, 2, b'{"page":3}', 1)


def test_heartbeat_reply_reports_a_requested_cancel(with_job: Database) -> None:
    started = begun(with_job)
    assert beat(with_job, started).run_status == "running"
    ask(with_job, {"type": "run.cancel", "run_id": str(started.run_id)})
    assert beat(with_job, started, checkpoint=1).run_status == "cancelling"


def test_heartbeat_of_a_terminal_run_is_rejected_and_saves_nothing(with_job: Database) -> None:
    started = begun(with_job)
    succeed(with_job, started)
    reply = beat(with_job, started, progress=1)
    assert (reply.status, reply.code, reply.run_status) == ("rejected", "attempt_over", "succeeded")
    assert with_job.count("run_inputs") == 0


def test_a_forged_token_is_refused(with_job: Database) -> None:
    token = token_of(with_job, waiting(with_job))
    forged = ("B" if token[0] == "A" else "A") + token[1:]
    [reply] = ask(with_job, {"type": "run.heartbeat", "token": forged})
    assert (reply.code, [error.path for error in reply.errors]) == ("invalid", ["token"])


def test_heartbeats_of_many_runs_are_saved_within_their_fence(with_job: Database) -> None:
    mine, another, over = begun(with_job), begun(with_job), begun(with_job)
    succeed(with_job, over)
    beats = [
        ProgressReport(mine.run_id, 1, EXECUTOR, progress=b"1"),
        ProgressReport(another.run_id, 1, some_executor(), progress=b"2"),
        ProgressReport(over.run_id, 1, EXECUTOR, progress=b"3"),
    ]
    assert save(with_job, *beats) == {mine.run_id}
    assert with_job.rows("SELECT run_id, progress FROM run_inputs") == [(mine.run_id, b"1")]


def test_late_heartbeat_of_an_earlier_attempt_changes_nothing(with_job: Database) -> None:
    started = waiting(with_job)
    complete(with_job, started, status="failed")
    with_job.execute("UPDATE open_runs SET publish_at = tidewheel_now()")
    again = begin(with_job, started.run_id)
    assert save(with_job, ProgressReport(again.run_id, 2, EXECUTOR, checkpoint=b"2")) == {started.run_id}
    assert save(with_job, ProgressReport(again.run_id, 1, EXECUTOR, checkpoint=b"1")) == set()
    assert stored(with_job, started.run_id) == (None, 2, b"2", 2)
