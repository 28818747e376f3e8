"""`next_in`: the end of a run sets when its fixed_delay job runs next, within the bounds of the job."""

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.control.cli.command import json_output, tidewheel
from tests.fixtures.acts import about, ending
from tests.fixtures.database import ClockedDatabase
from tests.fixtures.examples import examples
from tests.scheduler.test_fixed_delay import start
from tidewheel.control.client.client import Client
from tidewheel.errors import InvalidInput
from tidewheel.runs import AttemptOutcome, RunState
from tidewheel.schemas.generated.records import Reply
from tidewheel.transitions.after_end import apply_deferred_effects
from tidewheel.transitions.claim import Started
from tidewheel.transitions.finish import finish_runs

SECOND = timedelta(seconds=1)
SCHEDULE = {"fixed_delay": "60s", "min": "10s", "max": "1h"}
SPANS = st.integers(1_000_000, 400 * 86_400_000_000).map(lambda us: timedelta(microseconds=us))
ENDS = st.sampled_from([RunState.SUCCEEDED, RunState.FAILED, RunState.TIMED_OUT])


@pytest.fixture
def chain(clocked: ClockedDatabase) -> ClockedDatabase:
    clocked.stop_clock()
    clocked.submit(schedule=SCHEDULE)
    return clocked


def finish(database: ClockedDatabase, started: Started, seconds: float, state: RunState = RunState.SUCCEEDED) -> None:
    database.end(ending(started, state, error_type="E", next_in=seconds * SECOND))


def seconds_left(database: ClockedDatabase) -> float | None:
    text = "SELECT CASE WHEN due_at < 'infinity' THEN extract(epoch FROM due_at - tidewheel_now()) END FROM timers"
    left = database.value(text)
    return None if left is None else float(left)


@given(SPANS, st.lists(SPANS, min_size=3, max_size=3), ENDS, st.sets(st.sampled_from(["min", "max"])))
@settings(examples(60, quick=8), suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
def test_next_run_is_due_as_asked_within_the_bounds(
    chain: ClockedDatabase, asked: timedelta, spans: list[timedelta], state: RunState, given_bounds: set[str]
) -> None:
    least, every, most = sorted(spans)
    bounds = {name: span for name, span in (("min", least), ("max", most)) if name in given_bounds}
    chain.apply_batch(about("job.delete"))
    chain.advance(SECOND)
    chain.submit(schedule={"fixed_delay": every} | bounds)
    started = start(chain)
    chain.advance(7 * SECOND)
    chain.end(ending(started, state, error_type="E", next_in=asked))
    expected = min(max(asked, bounds.get("min", every)), bounds.get("max", every))
    assert chain.rows("SELECT due_at, scheduled_at, hold_reason FROM timers") == [
        (chain.now() + expected, chain.now() + expected, None)
    ]


def test_superseded_attempt_and_a_repeated_end_set_nothing(chain: ClockedDatabase) -> None:
    first = start(chain)
    chain.requeue(first, AttemptOutcome.LOST)
    [run] = chain.job_runs()
    chain.execute("UPDATE job_runs SET publish_at = tidewheel_now()")
    second = chain.begin(run.run_id)
    finish(chain, first, 600)
    assert seconds_left(chain) is None, "the attempt that owns the run goes on"
    finish(chain, second, 30)
    chain.advance(5 * SECOND)
    for zombie in (first, second):
        finish(chain, zombie, 600)
    assert seconds_left(chain) == 25


@pytest.mark.parametrize("key", ["description", "schedule"])
def test_job_that_was_changed_meanwhile_has_its_own_delay(chain: ClockedDatabase, key: str) -> None:
    started = start(chain)
    delay, about_it = ("60s", "x") if key == "description" else ("50s", None)
    chain.submit(schedule={**SCHEDULE, "fixed_delay": delay}, description=about_it)
    finish(chain, started, 30)
    assert seconds_left(chain) == (60 if key == "description" else 50)


def test_edit_to_a_shorter_bound_ends_a_longer_interval(chain: ClockedDatabase) -> None:
    finish(chain, start(chain), 3000)
    chain.submit(schedule={"fixed_delay": "60s"})
    assert seconds_left(chain) == 60


def test_deleted_job_and_one_with_another_schedule_ignore_it(chain: ClockedDatabase) -> None:
    started = start(chain)
    chain.apply_batch(about("job.delete"))
    finish(chain, started, 30)
    assert chain.count("timers") == 0
    chain.advance(SECOND)
    chain.submit(schedule=SCHEDULE)
    started = start(chain)
    chain.submit(schedule={"interval": "40s"})
    finish(chain, started, 30)
    assert seconds_left(chain) == 40


def test_runs_of_triggers_set_nothing(chain: ClockedDatabase) -> None:
    chain.succeed(start(chain))
    run = chain.trigger()
    chain.execute("UPDATE job_runs SET publish_at = tidewheel_now()")
    finish(chain, chain.begin(run), 30)
    assert seconds_left(chain) == 60


def test_pause_keeps_what_was_set(chain: ClockedDatabase) -> None:
    started = start(chain)
    chain.apply_batch(about("job.pause"))
    finish(chain, started, 30)
    assert seconds_left(chain) is None
    chain.advance(10 * SECOND)
    chain.apply_batch(about("job.resume"))
    assert seconds_left(chain) == 20


def reschedule(database: ClockedDatabase, next_in: object, **fields: Any) -> Reply:  # noqa: ANN401 - of a request
    [reply] = database.apply_batch(about("job.reschedule", next_in=next_in, **fields))
    return reply


@given(SPANS, st.integers(0, 4_000_000_000).map(lambda us: timedelta(microseconds=us)))
@settings(examples(60, quick=8), suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
def test_operator_sets_the_interval_within_the_bounds_and_not_into_the_past(
    chain: ClockedDatabase, asked: timedelta, later: timedelta
) -> None:
    chain.apply_batch(about("job.delete"))
    chain.advance(SECOND)
    chain.submit(schedule=SCHEDULE | {"fixed_delay": "1h"})
    chain.succeed(start(chain))
    ended = chain.now()
    chain.advance(min(later, timedelta(minutes=59)))
    expected = max(ended + min(max(asked, 10 * SECOND), timedelta(hours=1)), chain.now())
    reply = reschedule(chain, asked)
    assert (reply.status, reply.next_run_at, reply.unchanged) == (
        "accepted",
        expected,
        expected == ended + timedelta(hours=1),
    )
    assert chain.rows("SELECT due_at, scheduled_at, hold_reason FROM timers") == [(expected, expected, None)]
    assert reschedule(chain, asked).unchanged or expected == chain.now()


def test_interval_of_an_operator_holds_once_and_the_audit_accepts_it(chain: ClockedDatabase) -> None:
    began = chain.now()
    chain.succeed(start(chain))
    with Client(chain.url) as client:
        client.reschedule("job", timedelta(seconds=30), reason="orders wait")
        assert client.next("job").occurrences[0].at == chain.now() + 30 * SECOND
    chain.advance(30 * SECOND)
    chain.succeed(start(chain))
    assert seconds_left(chain) == 60
    chain.advance(timedelta(hours=1))
    found = json_output(chain, "admin", "audit", "--from", began - SECOND, "--to", chain.now())
    assert found["findings"] == []
    assert tidewheel(chain, "job", "reschedule", "job", "30s").refusals == [
        "key: its next run is due now; send this after the end of that run"
    ]


def test_operator_is_refused_where_an_end_sets_the_next_time(chain: ClockedDatabase) -> None:
    def problem() -> str:
        reply = reschedule(chain, "30s")
        assert (reply.status, reply.next_run_at) == ("rejected", None)
        return reply.errors[0].problem

    assert problem() == "its next run is due now"
    started = start(chain)
    assert problem() == "its run has not ended"
    chain.succeed(started)
    chain.apply_batch(about("job.pause"))
    assert problem() == "the job is paused"
    chain.submit(schedule={"fixed_delay": "60s"})
    assert problem() == "the job allows no other interval than 1m"
    for schedule, remedy in (({"interval": "60s"}, "job.move"), ("manual", "job.trigger")):
        chain.submit(schedule=schedule)
        assert problem() == "the schedule of the job is no fixed_delay"
        assert remedy in reschedule(chain, "30s").errors[0].remedy
    chain.apply_batch(about("job.delete"))
    assert problem() == "tenant 'default' has no job 'job'"


def test_operator_is_refused_without_a_stored_run(chain: ClockedDatabase) -> None:
    def refused(key: str) -> bool:
        [reply] = chain.apply_batch(about("job.reschedule", key, next_in="30s"))
        return reply.errors[0].problem == "no run of the job is stored, so there is no end to count from"

    chain.submit("later", schedule=SCHEDULE, start_at=(chain.now() + timedelta(hours=1)).isoformat())
    assert refused("later")
    chain.succeed(start(chain))
    chain.apply_batch(about("job.delete"))
    chain.advance(SECOND)
    chain.submit(schedule=SCHEDULE, start_at=(chain.now() + timedelta(hours=1)).isoformat())
    assert refused("job"), "a run of the deleted job does not count"
    with Client(chain.url) as client:
        assert "as next_in has set" not in client.next("job").words


def test_interval_of_an_operator_lies_between_start_at_and_end_at(chain: ClockedDatabase) -> None:
    chain.succeed(start(chain))
    ended = chain.now()
    chain.advance(SECOND)
    bounds = {"start_at": ended + 20 * SECOND, "end_at": ended + 90 * SECOND}
    chain.submit(schedule=SCHEDULE, **{name: at.isoformat() for name, at in bounds.items()})
    assert reschedule(chain, "10s").next_run_at == bounds["start_at"]
    assert reschedule(chain, "90s").next_run_at == bounds["end_at"]
    [error] = reschedule(chain, "91s").errors
    assert (error.path, error.remedy) == ("next_in", "send a shorter one, or submit the job with a later end_at")
    assert seconds_left(chain) == 89


def test_command_prints_the_instant_and_not_what_was_asked_for(chain: ClockedDatabase) -> None:
    chain.succeed(start(chain))
    [line] = tidewheel(chain, "job", "reschedule", "job", "3h").lines
    assert "3h" not in line
    assert seconds_left(chain) == 3600
    assert (chain.now() + timedelta(hours=1)).strftime("%H:%M:%S") in line


@pytest.mark.parametrize(("version", "left"), [("same", 30), ("edited", 60)])
def test_end_in_a_clients_transaction_sets_it_with_its_deferred_effect(
    chain: ClockedDatabase, version: str, left: float
) -> None:
    started = start(chain)
    with chain.transaction() as connection:
        ended = ending(started, RunState.SUCCEEDED, next_in=30 * SECOND)
        finish_runs(connection, chain.installation, [ended], lasting=True)
    assert seconds_left(chain) is None
    if version == "edited":
        chain.submit(schedule=SCHEDULE, description="another")
    chain.within(apply_deferred_effects, chain.installation)
    assert seconds_left(chain) == left
    assert chain.count("deferred_effects") == 0


@pytest.mark.parametrize("status", ["succeeded", "failed"])
def test_outside_system_sets_it_with_the_end(chain: ClockedDatabase, status: str) -> None:
    chain.apply_batch(about("job.delete"))
    chain.advance(SECOND)
    chain.submit(schedule=SCHEDULE, retry={"max_attempts": 1})
    started = start(chain)
    token = chain.installation.task_tokens.sign(started.run_id, started.attempt)
    [reply] = chain.apply_batch({"type": "run.complete", "token": token, "status": status, "next_in": "30s"})
    assert (reply.run_status, seconds_left(chain)) == (status, 30)


def test_it_holds_for_one_interval_and_explain_and_the_audit_know_it(chain: ClockedDatabase) -> None:
    began = chain.now()
    finish(chain, start(chain), 30)
    due = chain.now() + 30 * SECOND
    with Client(chain.url) as client:
        assert client.next("job").occurrences[0].at == due
        assert client.explain("job", due).outcome == "scheduled"
    chain.stop_clock(due)
    chain.succeed(start(chain))
    assert seconds_left(chain) == 60
    chain.advance(timedelta(hours=1))
    found = json_output(chain, "admin", "audit", "--from", began - SECOND, "--to", chain.now())
    assert found["findings"] == []


def test_bounds_that_do_not_hold_the_delay_are_refused_by_name(chain: ClockedDatabase) -> None:
    with Client(chain.url) as client:
        for name, span in (("min", "2m"), ("max", "59s")):
            with pytest.raises(InvalidInput) as refused:
                client.submit({"key": "b", "schedule": {"fixed_delay": "60s", name: span}, "target": "h"})
            assert refused.value.errors[0].path == f"job.schedule.{name}"
