"""A handler that blocks the loop is logged, the lease is kept, and queued runs are released."""

import logging
from datetime import timedelta
from uuid import UUID

import pytest
from prometheus_client import REGISTRY

from tests.executor import noisy_handlers
from tests.executor.handlers import GATES
from tests.executor.running import Executing
from tests.fixtures.services import Fleet, until

pytestmark = pytest.mark.kafka

STALL = {"stall_after": timedelta(milliseconds=500), "lease": timedelta(seconds=60)}
NEVER = {"stall_after": timedelta(hours=1), "lease": timedelta(seconds=60)}


def sample(name: str) -> float:
    return REGISTRY.get_sample_value(f"tidewheel_{name}") or 0.0


def beats(executing: Executing, run_id: UUID) -> int:
    """The counter of the executor that has a run."""
    return int(
        executing.database.value(
            "SELECT e.heartbeat_count FROM executors AS e JOIN job_runs AS o USING (executor_id) WHERE o.run_id = %s",
            [run_id],
        )
    )


def test_blocked_loop_is_reported_and_its_attempts_are_released(
    executing: Executing, gate: str, caplog: pytest.LogCaptureFixture
) -> None:
    known = noisy_handlers.handlers()
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
    with executing.running(known=noisy_handlers.handlers(), stall_after=timedelta(seconds=30)):  # of a busy machine
        runs = [executing.trigger("noisy.silent", number) for number in range(50)]
        assert {executing.ended(run_id).state for run_id in runs} == {"succeeded"}
    assert sample("event_loop_stalls_total") == stalls


@pytest.mark.slow
def test_handler_that_holds_the_interpreters_lock_is_named_while_it_does(fleet: Fleet) -> None:
    """No thread of Python runs meanwhile: the executor was silent, and named it when it had let go."""
    executor = fleet.start("executor")
    fleet.wait_started()
    fleet.database.submit(target="locking", payload=29)
    run_id = fleet.database.trigger()
    fleet.until(lambda: executor.has_logged(" in locking"), "its stack is written")
    assert fleet.database.open_run(run_id).state == "running"
    fleet.until(lambda: executor.has_logged("a handler held the interpreter's lock"), "the line follows")
