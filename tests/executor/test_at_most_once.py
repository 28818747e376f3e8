"""delivery at_most_once: after an attempt has begun, nothing but a certain non-start begins another."""

from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from tests.executor.handlers import GATES, Gate
from tests.executor.running import Executing
from tests.fixtures.services import until

pytestmark = pytest.mark.kafka

ONCE: dict[str, Any] = {
    "delivery": "at_most_once",
    "retry": {"max_attempts": 5, "backoff": "fixed", "initial": "10ms", "jitter": "0%"},
}


@pytest.mark.parametrize(
    ("handler", "payload", "error_type"),
    [("acts.fail-until", 3, "ValueError"), ("acts.raise", "retry-after", "RetryAfter")],
)
def test_failed_at_most_once_run_is_not_retried(
    executing: Executing, handler: str, payload: object, error_type: str
) -> None:
    with executing.running():
        ended = executing.run(handler, payload, **ONCE)
    assert (ended.state, ended.attempt, ended.error_type) == ("failed", 1, error_type)


@pytest.mark.parametrize("target", ["acts.wait", "acts.wait-on-thread"])
@pytest.mark.parametrize("which", ["start_to_close", "heartbeat"])
def test_timed_out_at_most_once_run_is_not_retried(executing: Executing, gate: str, target: str, which: str) -> None:
    with executing.running():
        run_id = executing.trigger(target, gate, **{which: "1s"}, **ONCE)
        ended = executing.ended(run_id)
    assert (ended.state, ended.attempt, ended.reason) == ("timed_out", 1, which)
    assert GATES[gate].entered == [str(run_id)]


@pytest.mark.slow
def test_queued_at_most_once_run_is_released_at_shutdown(executing: Executing, gate: str) -> None:
    """It is certain that it has not begun, so that another executor may begin it."""
    with executing.running(threads=1, drain_timeout=timedelta(0)):
        executing.held(gate, "acts.wait-on-thread")
        run_id = executing.trigger("acts.echo-on-thread", 1, **ONCE)
        until(lambda: executing.database.open_run(run_id).state == "running", "it is claimed")
    run = executing.database.open_run(run_id)
    assert (run.state, run.attempt, run.failed_attempts) == ("queued", 1, 0)
    with executing.running():
        ended = executing.ended(run_id)
    assert (ended.state, ended.attempt) == ("succeeded", 2)
    assert executing.database.attempts(run_id) == [(1, "released"), (2, "succeeded")]


def test_cancelled_run_that_waits_for_a_thread_never_starts(executing: Executing, gate: str) -> None:
    other = uuid4().hex
    GATES[other] = Gate()
    with executing.running(threads=1):
        executing.held(gate, "acts.wait-on-thread")
        run_id = executing.trigger("acts.wait-on-thread", other, **ONCE)
        until(lambda: executing.database.open_run(run_id).state == "running", "it is claimed")
        executing.database.apply_batch({"type": "run.cancel", "run_id": str(run_id)})
        assert executing.ended(run_id).state == "cancelled"
        GATES[gate].opened.set()
        assert executing.run("acts.echo-on-thread", 1).state == "succeeded"
    assert GATES[other].entered == []


def test_refused_connection_is_a_certain_non_start(executing: Executing) -> None:
    target = {"type": "http", "url": "http://127.0.0.1:1/"}
    retry = {"max_attempts": 3, "backoff": "fixed", "initial": "10ms", "jitter": "0%"}
    with executing.running(http_allow_private=True):
        ended = executing.run(target, delivery="at_most_once", retry=retry)
    assert (ended.state, ended.attempt, ended.error_type) == ("failed", 3, "http_connect")


def test_full_executor_claims_no_at_most_once_run_ahead(executing: Executing, gate: str) -> None:
    """Nothing is claimed ahead of a slot: what has none is another executor's."""
    with executing.running(slots=1, drain_timeout=timedelta(0)):
        executing.held(gate)
        waiting = [executing.trigger("acts.echo", number, **ONCE) for number in range(3)]
        for run_id in waiting:
            executing.publish(run_id)
        with executing.running():
            ended = [executing.ended(run_id) for run_id in waiting]
    assert [(one.state, one.attempt) for one in ended] == [("succeeded", 1)] * 3
