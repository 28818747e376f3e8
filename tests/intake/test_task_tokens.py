"""Task tokens: their owner completes an attempt once, and sends its heartbeats."""

from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from tests.fixtures.acts import EXECUTOR, cancelling, ending, refusal
from tests.fixtures.database import Database
from tests.intake.waiting import beat, beating, complete, completing, token_of, wait_for, waiting
from tests.transitions.stepping import batch_behind
from tidewheel.ids import RunId
from tidewheel.intake import locks as busy
from tidewheel.runs import RunState
from tidewheel.schemas.generated.records import Reply
from tidewheel.task_tokens import task_token
from tidewheel.transitions.attempts import ProgressReport, save_progress
from tidewheel.transitions.finish import finish_runs


def is_over(reply: Reply, found: str | None) -> None:
    assert (reply.code, reply.run_status, refusal(reply).path) == ("attempt_over", found, "token")


@pytest.fixture
def with_heartbeat(database: Database) -> Database:
    database.submit(heartbeat="10m", start_to_close="1h")
    return database


def deadline(database: Database, run_id: UUID) -> datetime:
    found = database.value("SELECT deadline_at FROM job_runs WHERE run_id = %s", [run_id])
    assert isinstance(found, datetime)
    return found


def stored(database: Database, run_id: UUID) -> tuple[object, ...]:
    [row] = database.rows(
        "SELECT progress, progress_attempt, checkpoint, checkpoint_attempt FROM run_inputs WHERE run_id = %s", [run_id]
    )
    return tuple(row)


def save(database: Database, *beats: ProgressReport) -> set[UUID]:
    return database.within(save_progress, beats).stored


@pytest.mark.parametrize(
    ("job", "said"),
    [
        ({}, {"permanent": True}),
        ({"retry": {"max_attempts": 1}}, {}),
        ({"retry": {"non_retryable": ["NoPaper"]}}, {"error_type": "NoPaper"}),
        ({"delivery": "at_most_once"}, {}),
    ],
)
def test_last_failure_ends_the_run(database: Database, job: dict[str, Any], said: dict[str, Any]) -> None:
    database.submit(**job)
    started = waiting(database)
    reply = complete(database, started, status="failed", error_message="no", **said)
    assert (reply.status, reply.run_status) == ("accepted", "failed")
    [letter] = database.dead_letters()
    assert letter.error is not None
    assert (letter.error.type, letter.error.message) == (said.get("error_type", "ReportedFailure"), "no")
    assert database.job_runs() == []


def test_completion_before_the_wait_is_recorded_is_applied(with_job: Database) -> None:
    started = with_job.begun()
    assert complete(with_job, started).run_status == "succeeded"
    wait_for(with_job, started, timeout=with_job.installation.misfire_after)  # changes nothing any more
    assert with_job.final_state(started.run_id) == ("succeeded", None)
    assert len(with_job.completions()) == 1


@pytest.mark.parametrize("said", [{}, {"status": "failed"}])
def test_completed_run_under_cancellation_becomes_cancelled(with_job: Database, said: dict[str, Any]) -> None:
    started = with_job.begun()
    with_job.apply(cancelling(started.run_id))
    reply = complete(with_job, started, **said)
    assert (reply.status, reply.run_status) == ("accepted", "cancelled")
    assert with_job.final_state(started.run_id)[0] == "cancelled"
    assert with_job.count("signals") == 0


def test_cancelled_waiting_run_ends_at_once_and_invalidates_its_token(with_job: Database) -> None:
    started = waiting(with_job)
    assert with_job.accept(cancelling(started.run_id, reason="too slow")).run_status == "waiting"
    assert with_job.final_state(started.run_id) == ("cancelled", "too slow")
    is_over(complete(with_job, started), "cancelled")
    is_over(beat(with_job, started), "cancelled")
    assert [event.status for event in with_job.completions()] == ["cancelled"]


def test_duplicate_completion_changes_nothing(with_job: Database) -> None:
    started = waiting(with_job)
    complete(with_job, started, result=1)
    is_over(complete(with_job, started, status="failed"), "succeeded")
    is_over(beat(with_job, started, progress=1), "succeeded")
    assert with_job.count("run_inputs") == 0
    assert [event.result for event in with_job.completions()] == [b"1"]


def test_token_of_an_earlier_attempt_does_not_end_the_next(with_job: Database) -> None:
    started = waiting(with_job)
    complete(with_job, started, status="failed")
    is_over(complete(with_job, started), "retrying")
    with_job.execute("UPDATE job_runs SET publish_at = tidewheel_now()")
    again = with_job.begin(started.run_id)
    is_over(complete(with_job, started), "running")
    assert again.attempt == 2
    assert complete(with_job, again).run_status == "succeeded"


def test_token_of_an_unknown_or_unclaimed_attempt_is_rejected(with_job: Database) -> None:
    unknown = with_job.installation.task_tokens.sign(RunId(with_job.begun().run_id), 7)
    is_over(with_job.apply(completing(unknown)), "running")
    gone = with_job.trigger()
    is_over(with_job.apply(completing(with_job.installation.task_tokens.sign(gone, 1))), "queued")


def test_completion_with_a_forged_token_changes_nothing(with_job: Database) -> None:
    started = waiting(with_job)
    forged = task_token(b"another installation", started.run_id, 1)
    for request in (completing(forged), beating(forged)):
        assert with_job.refuse(request).path == "token"
    assert with_job.open_run(started.run_id).state == "waiting"


def test_external_completion_waits_for_a_concurrent_end_and_is_rejected(
    with_job: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(busy, "_LOCK_TIMEOUT", "30s")  # however slow this machine is
    started = with_job.begun()
    end, completion = [ending(started, RunState.SUCCEEDED)], completing(token_of(with_job, started))
    [reply] = batch_behind(with_job, lambda connection: finish_runs(connection, with_job.installation, end), completion)
    is_over(reply, "succeeded")
    assert len(with_job.completions()) == 1


def test_late_executor_report_after_an_external_completion_is_ignored(with_job: Database) -> None:
    started = with_job.begun()
    complete(with_job, started, result="outside")
    assert with_job.succeed(started).superseded == {started.run_id}
    assert [event.result for event in with_job.completions()] == [b'"outside"']


def test_heartbeat_extends_the_deadline_of_a_waiting_run(with_heartbeat: Database) -> None:
    started = waiting(with_heartbeat, heartbeat=timedelta(minutes=1))
    before = deadline(with_heartbeat, started.run_id)
    asked = with_heartbeat.now()
    reply = beat(with_heartbeat, started)
    assert (reply.status, reply.run_id, reply.run_status) == ("accepted", str(started.run_id), "waiting")
    assert deadline(with_heartbeat, started.run_id) >= asked + timedelta(minutes=10) > before


@pytest.mark.parametrize("job", [{}, {"schedule_to_close": "2m"}], ids=["external", "schedule_to_close"])
def test_heartbeat_extends_no_other_deadline(database: Database, job: dict[str, Any]) -> None:
    database.submit(heartbeat="10m", **job)
    started = waiting(database, timeout=timedelta(minutes=5), heartbeat=timedelta(seconds=5))
    beat(database, started)
    assert database.value("SELECT deadline_at = least(external_deadline_at, schedule_to_close_at) FROM job_runs")


def test_job_without_a_heartbeat_timeout_keeps_its_deadline(with_job: Database) -> None:
    started = waiting(with_job)
    before = deadline(with_job, started.run_id)
    assert beat(with_job, started, progress=1).status == "accepted"
    assert deadline(with_job, started.run_id) == before


def test_heartbeat_saves_progress_and_checkpoint_and_keeps_absent_fields(with_heartbeat: Database) -> None:
    started = waiting(with_heartbeat)
    beat(with_heartbeat, started, progress={"done": 1}, checkpoint={"page": 3})
    assert stored(with_heartbeat, started.run_id) == (b'{"done":1}', 1, b'{"page":3}', 1)
    beat(with_heartbeat, started, progress={"done": 2})
    beat(with_heartbeat, started)
    assert stored(with_heartbeat, started.run_id) == (b'{"done":2}', 1, b'{"page":3}', 1)


def test_next_attempt_gets_the_checkpoint_and_no_progress(with_heartbeat: Database) -> None:
    started = waiting(with_heartbeat)
    beat(with_heartbeat, started, progress=50, checkpoint={"page": 3})
    complete(with_heartbeat, started, status="failed")
    assert [request.checkpoint for request in with_heartbeat.requests()] == [None, b'{"page":3}']
    with_heartbeat.execute("UPDATE job_runs SET publish_at = tidewheel_now()")
    again = with_heartbeat.begin(started.run_id)
    beat(with_heartbeat, again)
    assert stored(with_heartbeat, started.run_id) == (None, 2, b'{"page":3}', 1)


def test_heartbeat_reply_reports_a_requested_cancel(with_heartbeat: Database) -> None:
    started = with_heartbeat.begun()
    assert beat(with_heartbeat, started).run_status == "running"
    with_heartbeat.apply_batch({"type": "run.cancel", "run_id": str(started.run_id)})
    assert beat(with_heartbeat, started, checkpoint=1).run_status == "cancelling"


def test_heartbeats_of_many_runs_are_saved_within_their_fence(with_heartbeat: Database) -> None:
    mine, another, over = with_heartbeat.begun(), with_heartbeat.begun(), with_heartbeat.begun()
    with_heartbeat.succeed(over)
    beats = [
        ProgressReport(mine.run_id, 1, EXECUTOR, progress=b"1"),
        ProgressReport(another.run_id, 1, uuid4(), progress=b"2"),
        ProgressReport(over.run_id, 1, EXECUTOR, progress=b"3"),
    ]
    assert save(with_heartbeat, *beats) == {mine.run_id}
    assert with_heartbeat.rows("SELECT run_id, progress FROM run_inputs") == [(mine.run_id, b"1")]


def test_late_heartbeat_of_an_earlier_attempt_changes_nothing(with_heartbeat: Database) -> None:
    started = waiting(with_heartbeat)
    complete(with_heartbeat, started, status="failed")
    with_heartbeat.execute("UPDATE job_runs SET publish_at = tidewheel_now()")
    again = with_heartbeat.begin(started.run_id)
    assert save(with_heartbeat, ProgressReport(again.run_id, 2, EXECUTOR, checkpoint=b"2")) == {started.run_id}
    assert save(with_heartbeat, ProgressReport(again.run_id, 1, EXECUTOR, checkpoint=b"1")) == set()
    assert stored(with_heartbeat, started.run_id) == (None, 2, b"2", 2)


def test_forged_report_uses_up_no_request_id(with_job: Database) -> None:
    started = waiting(with_job)
    forged = completing(task_token(b"another key", started.run_id, 1), request_id="order-7")
    assert with_job.apply_batch(forged)[0].code == "invalid"
    assert with_job.count("requests") == 0
    assert complete(with_job, started, request_id="order-7").status == "accepted"


def test_request_id_of_a_report_is_a_name_within_its_attempt(database: Database) -> None:
    database.submit(retry={"initial": "1ms"})
    first, second = waiting(database), waiting(database)
    for started in (first, second):
        assert complete(database, started, request_id="order-7").status == "accepted"
        assert complete(database, started, request_id="order-7").status == "accepted"
    assert complete(database, first, request_id="order-7", status="failed").code == "request_conflict"
    database.trigger(request_id="order-7")
