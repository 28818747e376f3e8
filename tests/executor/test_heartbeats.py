"""Heartbeats, timeouts, and the watchdog of handlers that block."""

import json
import logging
from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from prometheus_client import REGISTRY

from tests.executor import handlers as acts
from tests.executor import long_handlers, noisy_handlers
from tests.executor.handlers import GATES, handlers
from tests.executor.running import Executing
from tests.fixtures.database import Database
from tests.fixtures.services import Fleet, until
from tidewheel.clock import monotonic_seconds
from tidewheel.local.stack import StackInfo

pytestmark = pytest.mark.kafka
KNOWN: dict[str, Any] = {"known": handlers(acts, long_handlers)}
SOON: dict[str, Any] = {"retry": {"max_attempts": 50, "backoff": "fixed", "initial": "10ms", "jitter": "0%"}}


def saved_progress(database: Database, run_id: UUID) -> tuple[object, object, int | None]:
    """Progress and checkpoint of a run as they are kept, and of which attempt the progress is."""
    found = database.rows("SELECT progress, checkpoint, progress_attempt FROM run_inputs WHERE run_id = %s", [run_id])
    progress, checkpoint, attempt = found[0] if found else (None, None, None)
    return json.loads(progress or b"null"), json.loads(checkpoint or b"null"), attempt


@pytest.fixture(scope="module")
def served(shared_database: Database, info: StackInfo) -> Iterator[Executing]:
    """One executor for the tests that need no settings of their own."""
    made = Executing(shared_database, info.kafka).with_topics()
    with made.running(**KNOWN):
        yield made


def test_missed_heartbeat_times_out_and_the_next_attempt_resumes(served: Executing, gate: str) -> None:
    names = ("long.fall-silent", "long.fall-silent-on-thread")
    runs = {name: served.trigger(name, gate, heartbeat="1s", **SOON) for name in names}
    for name, run_id in runs.items():
        ended = served.ended(run_id)
        assert (ended.state, ended.attempt, ended.result) == ("succeeded", 2, b'{"done":3}'), name
        assert served.database.attempts(run_id) == [(1, "timed_out"), (2, "succeeded")], name
        [first] = served.database.rows(
            "SELECT error_type, error_message FROM attempts WHERE run_id = %s AND attempt = 1", [run_id]
        )
        assert first == ("timeout_heartbeat", "heartbeat of 1 s has passed"), name
    until(lambda: GATES[gate].stopped, "the thread has seen that it is given up")


@pytest.mark.landing
def test_heartbeats_keep_an_attempt_alive(served: Executing, gate: str) -> None:
    both = [served.trigger(f"long.{name}", gate, heartbeat="3s") for name in ("beat", "beat-on-thread")]
    until(lambda: len(GATES[gate].entered) == 2, "both run")
    since = monotonic_seconds()
    until(lambda: monotonic_seconds() - since > 3.5, "they would have been timed out")
    GATES[gate].opened.set()
    assert [served.ended(run_id).state for run_id in both] == ["succeeded"] * 2
    assert [served.database.attempts(run_id) for run_id in both] == [[(1, "succeeded")]] * 2


def test_waiting_for_a_thread_misses_no_heartbeat(executing: Executing, gate: str) -> None:
    with executing.running(threads=1, **KNOWN):
        executing.held(gate, "acts.wait-on-thread")
        waiting = executing.trigger("acts.echo-on-thread", 1, heartbeat="1s")
        until(lambda: executing.database.open_run(waiting).state == "running", "the other is claimed")
        since = monotonic_seconds()
        until(lambda: monotonic_seconds() - since > 1.5, "it would have been timed out")
        GATES[gate].opened.set()
        assert executing.ended(waiting).attempt == 1


def test_handler_that_ends_in_time_needs_no_heartbeat(served: Executing) -> None:
    run_id = served.trigger("acts.echo", 1, heartbeat="1s")
    ended = served.ended(run_id)
    assert (ended.state, ended.attempt) == ("succeeded", 1)
    assert saved_progress(served.database, run_id) == (None, None, None)


def test_progress_is_visible_during_the_run_and_the_last_is_kept(served: Executing, gate: str) -> None:
    run_id = served.trigger("long.beat", gate)
    until(lambda: saved_progress(served.database, run_id)[0], "its progress is written")
    first: Any = saved_progress(served.database, run_id)[0]
    until(lambda: saved_progress(served.database, run_id)[0] != first, "its progress goes on")
    GATES[gate].opened.set()
    ended = served.ended(run_id)
    assert saved_progress(served.database, run_id) == ({"beats": json.loads(ended.result or b"")}, None, 1)
    assert ended.state == "succeeded"


def test_checkpoint_saved_before_a_failure_reaches_the_next_attempt(served: Executing) -> None:
    """Each of thirty attempts fails in the moment after it has saved how far it has come."""
    run_id = served.trigger("long.count-on", 30, **SOON)
    ended = served.ended(run_id)
    assert (ended.state, ended.attempt, ended.result) == ("succeeded", 30, b"30")
    assert saved_progress(served.database, run_id) == (None, 30, 30)


def test_released_run_keeps_its_checkpoint(executing: Executing, gate: str) -> None:
    with executing.running(drain_timeout=timedelta(0), **KNOWN):
        run_id = executing.trigger("long.fall-silent", gate)
        until(lambda: GATES[gate].entered, "it has saved its checkpoint")
    assert executing.database.open_run(run_id).failed_attempts == 0
    with executing.running(**KNOWN):
        assert executing.ended(run_id).result == b'{"done":3}'


def test_progress_is_saved_after_a_database_outage(executing: Executing, gate: str) -> None:
    with executing.running(**KNOWN):
        run_id = executing.trigger("long.beat", gate)
        until(lambda: saved_progress(executing.database, run_id)[0], "its progress is written")
        executing.database.execute("ALTER TABLE run_inputs RENAME TO elsewhere")
        since = monotonic_seconds()
        until(lambda: monotonic_seconds() - since > 1.5, "its progress could not be written")
        executing.database.execute("ALTER TABLE elsewhere RENAME TO run_inputs")
        before = saved_progress(executing.database, run_id)[0]
        until(lambda: saved_progress(executing.database, run_id)[0] != before, "it is written again")
        GATES[gate].opened.set()
        assert executing.ended(run_id).attempt == 1


def test_schedule_to_close_shortens_the_attempts_timeout(served: Executing) -> None:
    assert served.run("long.deadline", start_to_close="10s").result == b"10.0"
    left = json.loads(served.run("long.deadline", schedule_to_close="20s").result or b"")
    assert 10 < left <= 20


def test_handler_reads_the_previous_runs_result(served: Executing) -> None:
    for target in ("long.previous", "long.previous-on-thread"):
        results = [served.run(target, number).result for number in range(3)]
        assert results == [b"[null,0]", b"[[null,0],1]", b"[[[null,0],1],2]"], target


ONE_ATTEMPT: dict[str, Any] = {"retry": {"max_attempts": 1}}
BEGUN_WITHIN = "1s"  # of an attempt whose handler is to begin, also on a busy machine
# schedule_to_close counts from the trigger, and the executor must claim the run within it.
KEPT_HERE = {"start_to_close": BEGUN_WITHIN, "heartbeat": BEGUN_WITHIN, "schedule_to_close": "3s"}


def refusing(executing: Executing, gate: str, does: str) -> dict[str, UUID]:
    payload = {"gate": gate, "does": does}
    return {
        which: executing.trigger("long.refuse", payload, **{which: limit}, **ONE_ATTEMPT)
        for which, limit in KEPT_HERE.items()
    }


@pytest.mark.landing
def test_coroutine_that_ignores_cancellation_is_fenced_off_and_keeps_its_slot(executing: Executing, gate: str) -> None:
    with executing.running(slots=len(KEPT_HERE), **KNOWN):
        runs = refusing(executing, gate, "go on")
        for which, run_id in runs.items():
            ended = executing.ended(run_id)
            assert (ended.state, ended.reason, ended.error_type) == ("timed_out", which, f"timeout_{which}")
        assert sorted(GATES[gate].stopped) == sorted(map(str, runs.values()))
        other = executing.trigger("acts.echo", 1)
        assert executing.state(other) == "queued"
        GATES[gate].opened.set()
        assert executing.ended(other).state == "succeeded"
    for which, run_id in runs.items():
        assert executing.database.attempts(run_id) == [(1, "timed_out")], which


@pytest.mark.landing
def test_error_during_cancellation_does_not_hide_the_timeout(served: Executing, gate: str) -> None:
    for which, run_id in refusing(served, gate, "fail").items():
        ended = served.ended(run_id)
        assert (ended.state, ended.reason) == ("timed_out", which)


def test_handler_that_returns_when_cancelled_succeeds(served: Executing, gate: str) -> None:
    ended = served.run("long.refuse", {"gate": gate, "does": "return"}, start_to_close=BEGUN_WITHIN)
    assert (ended.state, ended.result) == ("succeeded", b'"just done"')


STALL = {"stall_after": timedelta(milliseconds=500), "lease": timedelta(seconds=60)}
NEVER = {"stall_after": timedelta(hours=1), "lease": timedelta(seconds=60)}


def sample(name: str) -> float:
    return REGISTRY.get_sample_value(f"tidewheel_{name}") or 0.0


def beats(executing: Executing, run_id: UUID) -> int:
    return int(
        executing.database.value(
            "SELECT e.heartbeat_count FROM executors AS e JOIN job_runs AS o USING (executor_id) WHERE o.run_id = %s",
            [run_id],
        )
    )


@pytest.mark.landing
def test_blocked_loop_is_reported_and_its_attempts_are_released(
    executing: Executing, gate: str, caplog: pytest.LogCaptureFixture
) -> None:
    known = handlers(noisy_handlers)
    stalls = sample("event_loop_stalls_total")
    with caplog.at_level(logging.INFO), executing.running(known=known, **STALL):
        blocking = executing.trigger("noisy.block", gate)
        until(lambda: GATES[gate].entered, "it blocks the loop")
        # Claimed before the watchdog notices, and queued behind the other.
        others = [executing.trigger("noisy.silent", number) for number in range(5)]
        until(lambda: sample("event_loop_blocked_seconds") > 0, "the stall is noticed")
        beaten = beats(executing, blocking)
        until(lambda: beats(executing, blocking) > beaten, "the heart beats on")
        with executing.running(known=known, **NEVER):
            assert {executing.ended(run_id).state for run_id in others} == {"succeeded"}
            more = [executing.trigger("noisy.silent", number) for number in range(5)]
            assert {executing.ended(run_id).state for run_id in more} == {"succeeded"}
            run = executing.database.open_run(blocking)
            assert (run.state, run.attempt, run.lost_attempts) == ("running", 1, 0)
            GATES[gate].opened.set()
            assert executing.ended(blocking).state == "succeeded"
        until(lambda: sample("event_loop_blocked_seconds") == 0, "the loop goes on")
        after = executing.run("noisy.silent", 1)
    assert (after.state, after.attempt) == ("succeeded", 1)
    assert sample("event_loop_stalls_total") > stalls
    told = [record for record in caplog.records if "in handler 'noisy.block'" in record.getMessage()]
    assert {vars(record)["run_id"] for record in told} == {str(blocking)}
    assert "noisy_handlers.py" in vars(told[0])["stack"]
    assert executing.database.attempts(blocking) == [(1, "succeeded")]
    for run_id in others:
        *handed_on, (_, last) = executing.database.attempts(run_id)
        assert ({outcome for _, outcome in handed_on}, last) in ((set(), "succeeded"), ({"released"}, "succeeded"))


def test_busy_loop_is_not_blocked(executing: Executing) -> None:
    stalls = sample("event_loop_stalls_total")
    with executing.running(known=handlers(noisy_handlers), stall_after=timedelta(seconds=30)):  # of a busy machine
        runs = [executing.trigger("noisy.silent", number) for number in range(50)]
        assert {executing.ended(run_id).state for run_id in runs} == {"succeeded"}
    assert sample("event_loop_stalls_total") == stalls


@pytest.mark.slow
def test_handler_that_holds_the_interpreters_lock_is_named_while_it_does(fleet: Fleet) -> None:
    """No thread of Python runs meanwhile: the executor was silent, and named it when it had let go."""
    executor = fleet.start("executor")
    fleet.wait_started()
    fleet.database.submit(target="locking", payload=29)
    triggered = monotonic_seconds()
    run_id = fleet.database.trigger()
    fleet.until(lambda: executor.has_logged(" in locking"), "its stack is written")
    assert 5 < monotonic_seconds() - triggered < 20
    assert fleet.database.open_run(run_id).state == "running"
    fleet.until(lambda: executor.has_logged("a handler held the interpreter's lock"), "the line follows")
