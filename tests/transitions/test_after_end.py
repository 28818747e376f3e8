"""Effects of failures: one pause request after N in a row, one trigger for each final failure."""

import contextlib
import json
from dataclasses import replace
from datetime import timedelta
from uuid import UUID

import pytest

from tests.fixtures.database import ClockedDatabase
from tests.scheduler.firing import fire_due
from tests.transitions.acts import (
    apply_batch,
    begin,
    begun,
    dead_letters,
    end,
    ending,
    job_runs,
    lifecycle,
    own_requests,
    requests,
    requeue,
    submit,
    trigger,
)
from tidewheel.intake.apply import apply_requests
from tidewheel.intake.request import ReceivedRequest
from tidewheel.jobs.values import format_timestamp
from tidewheel.runs import AttemptOutcome, RunState
from tidewheel.schemas.codec import encode_json
from tidewheel.schemas.requests import read_request
from tidewheel.transitions.finish import finish_runs
from tidewheel.transitions.finished import RunEnd


@pytest.fixture
def fragile(clocked: ClockedDatabase) -> ClockedDatabase:
    submit(clocked, schedule="@every 1h", overlap="allow_all", pause_on_failure=3)
    return clocked


def finish(database: ClockedDatabase, *states: RunState) -> None:
    for state in states:
        end(database, ending(begun(database), state, error_type="E"))


def test_consecutive_failures_request_one_pause(fragile: ClockedDatabase) -> None:
    finish(fragile, RunState.FAILED, RunState.TIMED_OUT)
    assert own_requests(fragile) == []
    finish(fragile, RunState.FAILED, RunState.FAILED)
    [request] = own_requests(fragile)
    assert (request["key"], str(request["reason"])[:21]) == ("job", "3 failures in a row, ")


def test_success_resets_consecutive_failures(fragile: ClockedDatabase) -> None:
    finish(fragile, RunState.FAILED, RunState.FAILED, RunState.SUCCEEDED, RunState.FAILED, RunState.FAILED)
    assert own_requests(fragile) == []
    finish(fragile, RunState.FAILED)
    assert len(own_requests(fragile)) == 1


def test_failures_in_one_batch_count_in_order(fragile: ClockedDatabase) -> None:
    attempts = [begun(fragile) for _ in range(4)]
    states = [RunState.FAILED, RunState.SUCCEEDED, RunState.FAILED, RunState.FAILED]
    end(fragile, *(ending(one, state, error_type="E") for one, state in zip(attempts, states, strict=True)))
    assert fragile.value("SELECT consecutive_failures FROM jobs") == 2


def test_pause_request_pauses_the_job_and_resume_resets_the_count(fragile: ClockedDatabase) -> None:
    finish(fragile, *[RunState.FAILED] * 3)
    [request] = own_requests(fragile)
    for _ in range(2):  # a repeat, as Kafka may bring it
        assert apply_batch(fragile, request)[0].status == "accepted"
    assert fragile.rows("SELECT paused, pause_reason FROM jobs") == [(True, request["reason"])]
    assert [event.reason for event in lifecycle(fragile) if event.type.endswith("job.paused.v1")] == [request["reason"]]
    apply_batch(fragile, {"type": "job.resume", "key": "job"})
    assert fragile.value("SELECT consecutive_failures FROM jobs") == 0
    fragile.advance(timedelta(seconds=1))
    finish(fragile, RunState.FAILED, RunState.FAILED)
    assert len(own_requests(fragile)) == 1


def test_job_without_pause_on_failure_counts_nothing(clocked: ClockedDatabase) -> None:
    submit(clocked, overlap="allow_all")
    finish(clocked, RunState.FAILED)
    assert clocked.value("SELECT consecutive_failures FROM jobs") == 0


@pytest.mark.parametrize("mended", ["resume", "edit", "without the policy"])
def test_late_pause_request_does_not_pause_an_edited_job(fragile: ClockedDatabase, mended: str) -> None:
    finish(fragile, *[RunState.FAILED] * 3)
    [request] = own_requests(fragile)
    if mended == "resume":
        apply_batch(fragile, {"type": "job.pause", "key": "job"}, {"type": "job.resume", "key": "job"})
    elif mended == "edit":
        submit(fragile, schedule="@every 2h", overlap="allow_all", pause_on_failure=3)
    else:
        submit(fragile, schedule="@every 1h", overlap="allow_all")
        fragile.execute("UPDATE jobs SET consecutive_failures = 3")
    assert apply_batch(fragile, request)[0].unchanged
    assert not fragile.value("SELECT paused FROM jobs")


def test_pause_of_an_operator_is_not_changed(fragile: ClockedDatabase) -> None:
    finish(fragile, *[RunState.FAILED] * 3)
    [request] = own_requests(fragile)
    until = fragile.now() + timedelta(hours=1)
    apply_batch(fragile, {"type": "job.pause", "key": "job", "until": until.isoformat()})
    assert apply_batch(fragile, request)[0].unchanged
    assert fragile.value("SELECT paused_until FROM jobs") == until


def test_expired_pause_resets_the_count(fragile: ClockedDatabase) -> None:
    fragile.stop_clock()
    finish(fragile, *[RunState.FAILED] * 2)
    until = fragile.now() + timedelta(minutes=1)
    apply_batch(fragile, {"type": "job.pause", "key": "job", "until": until.isoformat()})
    fragile.advance(timedelta(minutes=1))
    fire_due(fragile)
    assert fragile.rows("SELECT paused, consecutive_failures FROM jobs") == [(False, 0)]


def test_pause_request_is_json_where_events_are_json(fragile: ClockedDatabase) -> None:
    attempts = [begun(fragile) for _ in range(3)]
    installation = replace(fragile.installation, content_type="application/json")
    with fragile.transaction() as connection:
        finish_runs(connection, installation, [ending(one, RunState.FAILED, error_type="E") for one in attempts])
    [value] = [
        row[0] for row in fragile.rows("SELECT value FROM outbox WHERE topic = %s", [installation.topics.requests])
    ]
    request, encoding = read_request(value)
    assert (encoding, request.type) == ("json", "job.pause")


@pytest.fixture
def watched(clocked: ClockedDatabase) -> ClockedDatabase:
    clocked.stop_clock()
    submit(clocked, on_failure="alert", retry={"max_attempts": 1})
    submit(clocked, "alert", labels={"team": "ops"})
    return clocked


@pytest.mark.parametrize("state", [RunState.FAILED, RunState.TIMED_OUT])
def test_final_failure_triggers_the_on_failure_job_once(watched: ClockedDatabase, state: RunState) -> None:
    started = begun(watched)
    end(watched, ending(started, state, reason="start_to_close", error_type="E", error_message="it broke"))
    [request] = own_requests(watched)
    replies = [apply_batch(watched, request)[0] for _ in range(2)]  # a repeat, as Kafka may bring it
    assert len({reply.run_id for reply in replies}) == 1
    [run] = job_runs(watched)
    assert str(run.run_id) == replies[0].run_id
    [message] = [each for each in requests(watched) if each.run_id == str(run.run_id)]
    assert message.labels == {"tidewheel.on_failure_of": str(started.run_id)}
    assert json.loads(message.payload or b"") == {
        "run_id": str(started.run_id),
        "job_key": "job",
        "status": state,
        "reason": "start_to_close",
        "error": {"type": "E", "message": "it broke"},
        "attempt": 1,
        "scheduled_at": format_timestamp(started.publish_at),
        "finished_at": format_timestamp(watched.now()),
    }


def test_repeated_end_after_a_rollback_triggers_the_same_run(watched: ClockedDatabase) -> None:
    started = begun(watched)
    failure = ending(started, RunState.FAILED, error_type="E")
    with contextlib.suppress(ConnectionError), watched.transaction() as connection:
        finish_runs(connection, watched.installation, [failure])
        raise ConnectionError
    assert own_requests(watched) == []
    end(watched, failure)
    end(watched, failure)
    [request] = own_requests(watched)
    assert request["request_id"] == f"on-failure/{started.run_id}"


@pytest.mark.parametrize("state", [RunState.SUCCEEDED, RunState.CANCELLED, RunState.SKIPPED])
def test_other_ends_trigger_no_on_failure_job(watched: ClockedDatabase, state: RunState) -> None:
    if state is RunState.SUCCEEDED:
        end(watched, ending(begun(watched), state))
    else:
        end(watched, RunEnd(trigger(watched), 0, state))
    assert own_requests(watched) == []


def test_retried_failure_triggers_no_on_failure_job(watched: ClockedDatabase) -> None:
    requeue(watched, begun(watched), AttemptOutcome.FAILED)
    assert own_requests(watched) == []


@pytest.mark.parametrize("target", ["alert", "job"])
def test_on_failure_jobs_do_not_trigger_each_other_in_a_circle(watched: ClockedDatabase, target: str) -> None:
    """The job that watches fails too, and names itself, or the one that it watches."""
    submit(watched, "alert", on_failure=target)
    end(watched, ending(begun(watched), RunState.FAILED))
    [request] = own_requests(watched)
    reply = apply_batch(watched, request)[0]
    end(watched, ending(begin(watched, UUID(reply.run_id)), RunState.FAILED))
    assert own_requests(watched) == [request]
    assert len(dead_letters(watched)) == 2


def test_missing_on_failure_job_is_refused_and_harms_no_run(watched: ClockedDatabase) -> None:
    apply_batch(watched, {"type": "job.delete", "key": "alert"})
    end(watched, ending(begun(watched), RunState.FAILED))
    [request] = own_requests(watched)
    reply = apply_batch(watched, request)[0]
    assert (reply.status, reply.code) == ("rejected", "unknown_job")


def test_on_failure_request_is_json_where_events_are_json(watched: ClockedDatabase) -> None:
    in_json = replace(watched.installation, content_type="application/json", encode_event=encode_json)
    started = begun(watched, traceparent=f"00-{'ab' * 16}-{'cd' * 8}-01")
    with watched.transaction() as connection:
        finish_runs(connection, in_json, [ending(started, RunState.FAILED, error_message="né")])
    [(value,)] = watched.rows("SELECT value FROM outbox WHERE topic = %s", [watched.installation.topics.requests])
    parsed, encoding = read_request(value)
    with watched.transaction() as connection:
        [reply] = apply_requests(connection, in_json, [ReceivedRequest(parsed)])
    assert (encoding, reply.status, parsed.traceparent) == ("json", "accepted", f"00-{'ab' * 16}-{'cd' * 8}-01")
