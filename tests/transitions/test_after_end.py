"""Ends of runs: their completion event, and the jobs that they trigger."""

import contextlib
import json
from dataclasses import replace
from datetime import timedelta
from uuid import UUID

import pytest

from tests.fixtures.acts import EXECUTOR, about, ending
from tests.fixtures.database import ClockedDatabase, Database
from tests.scheduler.firing import fire_due
from tidewheel.intake.apply import apply_requests
from tidewheel.intake.request import ReceivedRequest, read_request
from tidewheel.jobs.parsing import parse_request
from tidewheel.jobs.values import format_timestamp
from tidewheel.runs import AttemptOutcome, RunState
from tidewheel.schemas.codec import decode, encode_json
from tidewheel.schemas.generated.records import RequestOrigin, RunCompleted
from tidewheel.transitions.finish import finish_runs
from tidewheel.transitions.finished import RunEnd


@pytest.fixture
def fragile(clocked: ClockedDatabase) -> ClockedDatabase:
    clocked.submit(schedule="@every 1h", overlap="allow_all", pause_on_failure=3)
    return clocked


def finish(database: ClockedDatabase, *states: RunState) -> None:
    for state in states:
        database.end(ending(database.begun(), state, error_type="E"))


def test_consecutive_failures_without_a_success_request_one_pause(fragile: ClockedDatabase) -> None:
    finish(fragile, RunState.FAILED, RunState.FAILED, RunState.SUCCEEDED, RunState.FAILED, RunState.TIMED_OUT)
    assert fragile.own_requests() == []
    finish(fragile, RunState.FAILED, RunState.FAILED)
    [request] = fragile.own_requests()
    assert (request["key"], str(request["reason"])[:21]) == ("job", "3 failures in a row, ")


def test_failures_in_one_batch_count_in_order(fragile: ClockedDatabase) -> None:
    attempts = [fragile.begun() for _ in range(4)]
    states = [RunState.FAILED, RunState.SUCCEEDED, RunState.FAILED, RunState.FAILED]
    fragile.end(*(ending(one, state, error_type="E") for one, state in zip(attempts, states, strict=True)))
    assert fragile.value("SELECT consecutive_failures FROM jobs") == 2


def test_pause_request_pauses_the_job_and_resume_resets_the_count(fragile: ClockedDatabase) -> None:
    finish(fragile, *[RunState.FAILED] * 3)
    [request] = fragile.own_requests()
    for _ in range(2):  # a repeat, as Kafka may bring it
        fragile.accept(request)
    assert fragile.rows("SELECT paused, pause_reason FROM jobs") == [(True, request["reason"])]
    paused = [event.reason for event in fragile.lifecycle() if event.type.endswith("job.paused.v1")]
    assert paused == [request["reason"]]
    fragile.apply(about("job.resume"))
    assert fragile.value("SELECT consecutive_failures FROM jobs") == 0
    fragile.advance(timedelta(seconds=1))
    finish(fragile, RunState.FAILED, RunState.FAILED)
    assert len(fragile.own_requests()) == 1


def test_job_without_pause_on_failure_counts_nothing(clocked: ClockedDatabase) -> None:
    clocked.submit(overlap="allow_all")
    finish(clocked, RunState.FAILED)
    assert clocked.value("SELECT consecutive_failures FROM jobs") == 0


@pytest.mark.parametrize("mended", ["resume", "edit", "without the policy"])
def test_late_pause_request_does_not_pause_an_edited_job(fragile: ClockedDatabase, mended: str) -> None:
    finish(fragile, *[RunState.FAILED] * 3)
    [request] = fragile.own_requests()
    if mended == "resume":
        fragile.apply_batch(about("job.pause"), about("job.resume"))
    elif mended == "edit":
        fragile.submit(schedule="@every 2h", overlap="allow_all", pause_on_failure=3)
    else:
        fragile.submit(schedule="@every 1h", overlap="allow_all")
        fragile.execute("UPDATE jobs SET consecutive_failures = 3")
    assert fragile.accept(request).unchanged
    assert not fragile.value("SELECT paused FROM jobs")


def test_pause_of_an_operator_is_not_changed(fragile: ClockedDatabase) -> None:
    finish(fragile, *[RunState.FAILED] * 3)
    [request] = fragile.own_requests()
    until = fragile.now() + timedelta(hours=1)
    fragile.apply(about("job.pause", until=until.isoformat()))
    assert fragile.accept(request).unchanged
    assert fragile.value("SELECT paused_until FROM jobs") == until


def test_expired_pause_resets_the_count(fragile: ClockedDatabase) -> None:
    fragile.stop_clock()
    finish(fragile, *[RunState.FAILED] * 2)
    until = fragile.now() + timedelta(minutes=1)
    fragile.apply(about("job.pause", until=until.isoformat()))
    fragile.advance(timedelta(minutes=1))
    fire_due(fragile)
    assert fragile.rows("SELECT paused, consecutive_failures FROM jobs") == [(False, 0)]


@pytest.fixture
def watched(clocked: ClockedDatabase) -> ClockedDatabase:
    clocked.stop_clock()
    clocked.submit(on_failure="alert", retry={"max_attempts": 1})
    clocked.submit("alert", labels={"team": "ops"})
    return clocked


@pytest.mark.parametrize("state", [RunState.FAILED, RunState.TIMED_OUT])
def test_final_failure_triggers_the_on_failure_job_once(watched: ClockedDatabase, state: RunState) -> None:
    started = watched.begun()
    watched.end(ending(started, state, reason="start_to_close", error_type="E", error_message="it broke"))
    [request] = watched.own_requests()
    replies = [watched.apply(request) for _ in range(2)]  # a repeat, as Kafka may bring it
    assert len({reply.run_id for reply in replies}) == 1
    [run] = watched.job_runs()
    assert str(run.run_id) == replies[0].run_id
    [message] = [each for each in watched.requests() if each.run_id == str(run.run_id)]
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
    started = watched.begun()
    failure = ending(started, RunState.FAILED, error_type="E")
    with contextlib.suppress(ConnectionError), watched.transaction() as connection:
        finish_runs(connection, watched.installation, [failure])
        raise ConnectionError
    assert watched.own_requests() == []
    watched.end(failure)
    watched.end(failure)
    [request] = watched.own_requests()
    assert request["request_id"] == f"on-failure/{started.run_id}"


def test_other_ends_and_retried_failures_trigger_no_on_failure_job(watched: ClockedDatabase) -> None:
    watched.succeed(watched.begun())
    assert watched.own_requests() == []
    for state in (RunState.CANCELLED, RunState.SKIPPED):
        watched.end(RunEnd(watched.trigger(), 0, state))
        assert watched.own_requests() == [], state
    watched.requeue(watched.begun(), AttemptOutcome.FAILED)
    assert watched.own_requests() == []


@pytest.mark.parametrize("target", ["alert", "job"])
def test_on_failure_jobs_do_not_trigger_each_other_in_a_circle(watched: ClockedDatabase, target: str) -> None:
    """The job that watches fails too, and names itself, or the one that it watches."""
    watched.submit("alert", on_failure=target)
    watched.end(ending(watched.begun(), RunState.FAILED))
    [request] = watched.own_requests()
    reply = watched.apply(request)
    watched.end(ending(watched.begin(UUID(reply.run_id)), RunState.FAILED))
    assert watched.own_requests() == [request]
    assert len(watched.dead_letters()) == 2


def test_missing_on_failure_job_is_refused_and_harms_no_run(watched: ClockedDatabase) -> None:
    watched.apply(about("job.delete", "alert"))
    watched.end(ending(watched.begun(), RunState.FAILED))
    [request] = watched.own_requests()
    assert watched.apply(request).code == "unknown_job"


def test_on_failure_request_is_json_where_events_are_json(watched: ClockedDatabase) -> None:
    in_json = replace(watched.installation, content_type="application/json", encode_event=encode_json)
    started = watched.begun(traceparent=f"00-{'ab' * 16}-{'cd' * 8}-01")
    watched.within(finish_runs, in_json, [ending(started, RunState.FAILED, error_message="né")])
    [(value,)] = watched.rows("SELECT value FROM outbox WHERE topic = %s", [watched.installation.topics.requests])
    parsed, encoding = read_request(value)
    [reply] = watched.within(apply_requests, in_json, [ReceivedRequest(parsed)])
    assert (encoding, reply.status, parsed.traceparent) == ("json", "accepted", f"00-{'ab' * 16}-{'cd' * 8}-01")


TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def headers(database: Database) -> dict[str, dict[bytes, bytes]]:
    topic = database.installation.topics.completions
    rows = database.rows("SELECT headers, value FROM outbox WHERE topic = %s", [topic])
    return {decode(value, RunCompleted).run_id: dict(zip(h[::2], h[1::2], strict=True)) for h, value in rows}


def test_each_completion_of_a_batch_has_its_own_headers(database: Database) -> None:
    database.submit(retry={"max_attempts": 1})
    plain, second, failed = database.begun(), database.begun(), database.begun()
    traced = database.begin(database.trigger(traceparent=TRACE))
    database.end(
        *(ending(one, RunState.SUCCEEDED) for one in (plain, second, traced)),
        ending(failed, RunState.FAILED, error_type="E"),
    )
    events = {event.run_id: event for event in database.completions()}
    for run_id, told in headers(database).items():
        event = events[run_id]
        expected = {
            b"ce_id": event.event_id.encode(),
            b"ce_type": f"io.tidewheel.run.{event.status}.v1".encode(),
            b"ce_source": database.installation.source.encode(),
            b"ce_time": format_timestamp(event.finished_at).encode(),
            b"ce_subject": run_id.encode(),
            b"ce_specversion": b"1.0",
            b"content-type": b"application/avro",
        }
        assert told == expected | ({b"traceparent": TRACE.encode()} if run_id == str(traced.run_id) else {})
    assert {event.status for event in events.values()} == {"succeeded", "failed"}
    assert len({event.event_id for event in events.values()}) == 4


@pytest.mark.parametrize("state", [RunState.SUCCEEDED, RunState.FAILED])
def test_json_completion_holds_the_same_fields(database: Database, state: RunState) -> None:
    database.submit(labels={"team": "billing"}, retry={"max_attempts": 1})
    started = database.begun()
    in_json = replace(database.installation, content_type="application/json", encode_event=encode_json)
    database.within(finish_runs, in_json, [ending(started, state, result=b"1", error_type="E", reason="so")])
    topic = database.installation.topics.completions
    [(value, parts)] = database.rows("SELECT value, headers FROM outbox WHERE topic = %s", [topic])
    assert value[:1] == b"{"
    assert parts[parts.index(b"content-type") + 1] == b"application/json"
    event = decode(value, RunCompleted)
    assert (event.run_id, event.status, event.executor_id) == (str(started.run_id), state, str(EXECUTOR))
    assert (event.labels, event.reason, event.started_at) == ({"team": "billing"}, "so", started.started_at)
    assert (event.result, event.error is None) == ((b"1", True) if state is RunState.SUCCEEDED else (None, False))


def test_completions_name_the_executor_of_each_run(with_job: Database) -> None:
    held, waiting = with_job.begun(), with_job.trigger()
    with_job.end(ending(held, RunState.SUCCEEDED), RunEnd(waiting, 0, RunState.CANCELLED, reason="asked"))
    told = {event.run_id: (event.executor_id, event.started_at, event.reason) for event in with_job.completions()}
    assert told == {
        str(held.run_id): (str(EXECUTOR), held.started_at, None),
        str(waiting): (None, None, "asked"),
    }


@pytest.mark.parametrize("state", [RunState.SUCCEEDED, RunState.FAILED])
def test_completion_names_the_request_that_created_its_run(with_job: Database, state: RunState) -> None:
    origin = RequestOrigin(topic="tidewheel.requests", partition=3, offset=7)
    wanted = parse_request({"type": "job.trigger", "key": "job", "request_id": "r-1"})
    [reply] = with_job.within(apply_requests, with_job.installation, [ReceivedRequest(wanted, origin)])
    with_job.end(ending(with_job.begin(UUID(reply.run_id)), state))
    own = with_job.begun()
    with_job.end(ending(own, state))
    found = {event.run_id: (event.request_id, event.origin) for event in with_job.completions()}
    assert found == {reply.run_id: ("r-1", origin), str(own.run_id): (None, None)}
