"""`requeue_runs`: an attempt ends, its run goes on with its inputs, and only failures count."""

from datetime import timedelta
from uuid import uuid4

import pytest

from tests.fixtures.acts import EXECUTOR
from tests.fixtures.database import Database
from tidewheel.outbox import slice_lane_of, slice_of
from tidewheel.runs import AttemptOutcome

COUNTED = [
    pytest.param(AttemptOutcome.FAILED, "retrying", 1, 0, id="failed"),
    pytest.param(AttemptOutcome.TIMED_OUT, "retrying", 1, 0, id="timed out"),
    pytest.param(AttemptOutcome.LOST, "retrying", 0, 1, id="lost"),
    pytest.param(AttemptOutcome.RELEASED, "queued", 0, 0, id="released"),
    pytest.param(AttemptOutcome.SNOOZED, "queued", 0, 0, id="snoozed"),
]


@pytest.mark.parametrize(("outcome", "state", "failed_attempts", "lost"), COUNTED)
def test_only_failures_count_against_max_attempts(
    database: Database, outcome: AttemptOutcome, state: str, failed_attempts: int, lost: int
) -> None:
    database.submit()
    started = database.begun()
    database.requeue(started, outcome)
    run = database.open_run(started.run_id)
    assert (run.state, run.attempt, run.failed_attempts, run.lost_attempts) == (state, 1, failed_attempts, lost)
    assert (run.executor_id, run.started_at) == (None, None)
    assert database.attempts(started.run_id) == [(1, outcome)]
    assert database.completions() == []
    again = database.begin(started.run_id)
    assert (again.attempt, again.failed_attempts, again.lost_attempts) == (2, failed_attempts, lost)


def test_failed_and_lost_attempts_add_up(database: Database) -> None:
    database.submit()
    run_id = database.trigger()
    for outcome in (AttemptOutcome.FAILED, AttemptOutcome.LOST, AttemptOutcome.SNOOZED, AttemptOutcome.FAILED):
        database.requeue(database.begin(run_id), outcome)
    run = database.open_run(run_id)
    assert (run.attempt, run.failed_attempts, run.lost_attempts) == (4, 2, 1)


def test_next_attempt_has_its_publish_time_in_row_and_outbox(database: Database) -> None:
    database.submit()
    started = database.begun()
    before = database.now()
    database.requeue(started, AttemptOutcome.FAILED, timedelta(hours=3))
    run = database.open_run(started.run_id)
    assert before + timedelta(hours=3) <= run.publish_at <= database.now() + timedelta(hours=3)
    first, second = database.requests()
    assert (first.attempt, second.attempt) == (1, 2)
    assert second.publish_at == run.publish_at
    [(leaves_at,)] = database.rows("SELECT max(publish_at) FROM outbox")
    assert leaves_at == run.publish_at
    assert run.scheduled_at == first.scheduled_at == second.scheduled_at


@pytest.mark.parametrize("outcome", [AttemptOutcome.FAILED, AttemptOutcome.LOST, AttemptOutcome.RELEASED])
def test_retry_of_a_trigger_keeps_its_payload(database: Database, outcome: AttemptOutcome) -> None:
    database.submit(payload={"to": "everybody"}, labels={"team": "billing"})
    context = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    started = database.begun(payload={"to": "ann"}, labels={"one": "1"}, traceparent=context)
    database.requeue(started, outcome)
    first, second = database.requests()
    assert second.payload == first.payload == b'{"to":"ann"}'
    assert second.payload_content_type == "application/json"
    assert (second.labels, second.traceparent) == ({"one": "1"}, context)
    assert second.definition == first.definition


def test_binary_payload_is_kept_byte_for_byte(database: Database) -> None:
    database.submit()
    started = database.begun(payload_base64="AAEC/w==")
    database.requeue(started, AttemptOutcome.FAILED)
    assert [(r.payload, r.payload_content_type) for r in database.requests()] == [
        (b"\x00\x01\x02\xff", "application/octet-stream")
    ] * 2


def test_retry_keeps_its_job_version_across_an_edit(database: Database) -> None:
    database.submit(payload=1)
    started = database.begun()
    database.submit(payload=2)
    database.requeue(started, AttemptOutcome.FAILED)
    assert [request.job_version for request in database.requests()] == [1, 1]
    assert len({request.definition for request in database.requests()}) == 1
    assert database.begin(started.run_id).attempt == 2


def test_retry_message_goes_to_its_lane_and_queue(database: Database) -> None:
    database.submit(lane="critical", queue="reports")
    started = database.begun()
    database.requeue(started, AttemptOutcome.FAILED)
    assert [request.attempt for request in database.requests("critical", "reports")] == [1, 2]
    number = slice_of(database.value("SELECT shard FROM jobs"), database.installation.shards)
    found = database.rows("SELECT DISTINCT slice_lane FROM outbox WHERE topic LIKE '%.runs.%'")
    assert found == [(slice_lane_of(number, "critical"),)]


def test_zombie_failure_requeues_nothing(database: Database) -> None:
    database.submit()
    zombie = database.begun()
    database.requeue(zombie, AttemptOutcome.LOST)
    current = database.begin(zombie.run_id)
    refused = database.requeue(zombie, AttemptOutcome.FAILED)
    assert (refused.runs, refused.busy) == ({}, set())
    run = database.open_run(zombie.run_id)
    assert (run.state, run.attempt, run.failed_attempts, run.executor_id) == ("running", current.attempt, 0, EXECUTOR)


def test_attempt_of_another_executor_is_not_requeued(database: Database) -> None:
    database.submit()
    run_id = database.trigger()
    started = database.begin(run_id, uuid4())
    refused = database.requeue(started, AttemptOutcome.LOST)
    assert (refused.runs, refused.busy) == ({}, set())
    assert database.open_run(run_id).state == "running"


def test_locked_run_is_busy_for_a_requeue(database: Database) -> None:
    database.submit()
    started = database.begun()
    holding = database.connection()
    holding.execute("SELECT FROM job_runs WHERE run_id = %s FOR UPDATE", [started.run_id])
    refused = database.requeue(started, AttemptOutcome.FAILED)
    assert (refused.runs, refused.busy) == ({}, {started.run_id})
    holding.rollback()
    assert set(database.requeue(started, AttemptOutcome.FAILED).runs) == {started.run_id}


def test_cancelling_run_ends_instead_of_being_requeued(database: Database) -> None:
    database.submit()
    started = database.begun()
    database.apply_batch({"type": "run.cancel", "run_id": str(started.run_id)})
    refused = database.requeue(started, AttemptOutcome.FAILED)
    assert (refused.runs, refused.busy) == ({}, set())
    assert database.rows("SELECT state FROM runs WHERE run_id = %s", [started.run_id]) == [("cancelled",)]


def test_finished_run_is_not_requeued(database: Database) -> None:
    database.submit()
    started = database.begun()
    database.succeed(started)
    refused = database.requeue(started, AttemptOutcome.RELEASED)
    assert (refused.runs, refused.busy) == ({}, set())
