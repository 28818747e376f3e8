"""`requeue_runs`: an attempt ends, its run goes on, charged for what it must, with the payload it came with."""

from datetime import timedelta

import pytest

from tests.fixtures.database import Database
from tests.transitions.acts import (
    EXECUTOR,
    ask,
    attempts,
    begin,
    begun,
    completions,
    open_run,
    requests,
    requeue,
    some_executor,
    submit,
    succeed,
    trigger,
)
from tidewheel.runs import AttemptOutcome

COUNTED = [
    pytest.param(AttemptOutcome.FAILED, "retrying", 1, 0, id="failed"),
    pytest.param(AttemptOutcome.TIMED_OUT, "retrying", 1, 0, id="timed out"),
    pytest.param(AttemptOutcome.LOST, "retrying", 0, 1, id="lost"),
    pytest.param(AttemptOutcome.RELEASED, "queued", 0, 0, id="handed back"),
    pytest.param(AttemptOutcome.SNOOZED, "queued", 0, 0, id="snoozed"),
]


@pytest.mark.parametrize(("outcome", "state", "failed_attempts", "lost"), COUNTED)
def test_what_went_wrong_is_charged_and_nothing_else_is(
    database: Database, outcome: AttemptOutcome, state: str, failed_attempts: int, lost: int
) -> None:
    submit(database)
    started = begun(database)
    requeue(database, started, outcome)
    run = open_run(database, started.run_id)
    assert (run.state, run.attempt, run.failed_attempts, run.lost_attempts) == (state, 1, failed_attempts, lost)
    assert (run.executor_id, run.started_at) == (None, None)
    assert attempts(database, started.run_id) == [(1, outcome)]
    assert completions(database) == []
    again = begin(database, started.run_id)
    assert (again.attempt, again.failed_attempts, again.lost_attempts) == (2, failed_attempts, lost)


def test_charges_and_losses_add_up_over_a_runs_life(database: Database) -> None:
    submit(database)
    run_id = trigger(database)
    for outcome in (AttemptOutcome.FAILED, AttemptOutcome.LOST, AttemptOutcome.SNOOZED, AttemptOutcome.FAILED):
        requeue(database, begin(database, run_id), outcome)
    run = open_run(database, run_id)
    assert (run.attempt, run.failed_attempts, run.lost_attempts) == (4, 2, 1)


def test_the_next_attempt_waits_in_row_and_outbox_for_its_time(database: Database) -> None:
    submit(database)
    started = begun(database)
    before = database.now()
    requeue(database, started, AttemptOutcome.FAILED, timedelta(hours=3))
    run = open_run(database, started.run_id)
    assert before + timedelta(hours=3) <= run.publish_at <= database.now() + timedelta(hours=3)
    first, second = requests(database)
    assert (first.attempt, second.attempt) == (1, 2)
    assert second.publish_at == run.publish_at
    [(leaves_at,)] = database.rows("SELECT max(publish_at) FROM outbox")
    assert leaves_at == run.publish_at
    assert run.scheduled_at == first.scheduled_at == second.scheduled_at


@pytest.mark.parametrize("outcome", [AttemptOutcome.FAILED, AttemptOutcome.LOST, AttemptOutcome.RELEASED])
def test_a_next_attempt_of_a_trigger_carries_the_triggers_own_payload(
    database: Database, outcome: AttemptOutcome
) -> None:
    submit(database, payload={"to": "everybody"}, labels={"team": "billing"})
    context = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    started = begun(database, payload={"to": "ann"}, labels={"one": "1"}, traceparent=context)
    requeue(database, started, outcome)
    first, second = requests(database)
    assert second.payload == first.payload == b'{"to":"ann"}'
    assert second.payload_content_type == "application/json"
    assert (second.labels, second.traceparent) == ({"one": "1"}, context)
    assert second.definition == first.definition


def test_a_payload_of_bytes_is_carried_byte_for_byte(database: Database) -> None:
    submit(database)
    started = begun(database, payload_base64="AAEC/w==")
    requeue(database, started, AttemptOutcome.FAILED)
    assert [(r.payload, r.payload_content_type) for r in requests(database)] == [
        (b"\x00\x01\x02\xff", "application/octet-stream")
    ] * 2


def test_a_retry_keeps_the_version_it_was_made_from_across_an_edit(database: Database) -> None:
    submit(database, payload=1)
    started = begun(database)
    submit(database, payload=2)
    requeue(database, started, AttemptOutcome.FAILED)
    assert [request.job_version for request in requests(database)] == [1, 1]
    assert len({request.definition for request in requests(database)}) == 1
    assert begin(database, started.run_id).attempt == 2


def test_a_message_goes_to_its_own_lane_and_queue_again(database: Database) -> None:
    submit(database, lane="critical", queue="reports")
    started = begun(database)
    requeue(database, started, AttemptOutcome.FAILED)
    assert [request.attempt for request in requests(database, "critical", "reports")] == [1, 2]
    assert {name for (name,) in database.rows("SELECT lane FROM outbox WHERE topic LIKE '%.runs.%'")} == {"critical"}


def test_a_zombies_failure_moves_nothing(database: Database) -> None:
    submit(database)
    zombie = begun(database)
    requeue(database, zombie, AttemptOutcome.LOST)
    current = begin(database, zombie.run_id)
    refused = requeue(database, zombie, AttemptOutcome.FAILED)
    assert (refused.runs, refused.busy) == ({}, set())
    run = open_run(database, zombie.run_id)
    assert (run.state, run.attempt, run.failed_attempts, run.executor_id) == ("running", current.attempt, 0, EXECUTOR)


def test_an_attempt_in_other_hands_does_not_go_back(database: Database) -> None:
    submit(database)
    run_id = trigger(database)
    started = begin(database, run_id, some_executor())
    refused = requeue(database, started, AttemptOutcome.LOST)
    assert (refused.runs, refused.busy) == ({}, set())
    assert open_run(database, run_id).state == "running"


def test_a_row_that_somebody_holds_is_busy(database: Database) -> None:
    submit(database)
    started = begun(database)
    holding = database.connection()
    holding.execute("SELECT FROM open_runs WHERE run_id = %s FOR UPDATE", [started.run_id])
    refused = requeue(database, started, AttemptOutcome.FAILED)
    assert (refused.runs, refused.busy) == ({}, {started.run_id})
    holding.rollback()
    assert set(requeue(database, started, AttemptOutcome.FAILED).runs) == {started.run_id}


def test_a_run_that_is_being_cancelled_ends_instead_of_going_back(database: Database) -> None:
    submit(database)
    started = begun(database)
    ask(database, {"type": "run.cancel", "run_id": str(started.run_id)})
    refused = requeue(database, started, AttemptOutcome.FAILED)
    assert (refused.runs, refused.busy) == ({}, set())
    assert database.rows("SELECT state FROM job_runs WHERE run_id = %s", [started.run_id]) == [("cancelled",)]


def test_a_run_that_is_over_does_not_go_back(database: Database) -> None:
    submit(database)
    started = begun(database)
    succeed(database, started)
    refused = requeue(database, started, AttemptOutcome.RELEASED)
    assert (refused.runs, refused.busy) == ({}, set())
