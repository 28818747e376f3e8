"""The timeouts that an executor keeps: they strike whatever a handler makes of being cancelled."""

from typing import Any

import pytest

from tests.executor.handlers import GATES
from tests.executor.long_handlers import handlers
from tests.executor.running import Executing
from tests.fixtures.services import until

pytestmark = pytest.mark.kafka

KNOWN: dict[str, Any] = {"known": handlers()}
ONE_ATTEMPT: dict[str, Any] = {"retry": {"max_attempts": 1}}
LIMIT = "3s"  # schedule_to_close counts from the trigger, and the executor must claim the run within it
BEGUN_WITHIN = "1s"  # of an attempt whose handler is to begin, also on a busy machine
KEPT_HERE = ("start_to_close", "heartbeat", "schedule_to_close")


@pytest.mark.parametrize("which", KEPT_HERE)
def test_coroutine_that_ignores_cancellation_is_fenced_off_and_keeps_its_slot(
    executing: Executing, gate: str, which: str
) -> None:
    with executing.running(slots=1, **KNOWN):
        payload = {"gate": gate, "does": "go on"}
        run_id = executing.trigger("long.refuse", payload, **{which: LIMIT}, **ONE_ATTEMPT)
        ended = executing.ended(run_id)
        assert (ended.state, ended.reason, ended.error_type) == ("timed_out", which, f"timeout_{which}")
        assert GATES[gate].stopped == [str(run_id)]
        other = executing.trigger("acts.echo", 1)
        assert executing.state(other) == "queued"
        GATES[gate].opened.set()
        assert executing.ended(other).state == "succeeded"
    assert executing.database.attempts(run_id) == [(1, "timed_out")]


@pytest.mark.parametrize("which", KEPT_HERE)
def test_error_during_cancellation_does_not_hide_the_timeout(executing: Executing, gate: str, which: str) -> None:
    with executing.running(**KNOWN):
        ended = executing.run("long.refuse", {"gate": gate, "does": "fail"}, **{which: LIMIT}, **ONE_ATTEMPT)
    assert (ended.state, ended.reason) == ("timed_out", which)


def test_handler_that_returns_when_cancelled_succeeds(executing: Executing, gate: str) -> None:
    with executing.running(**KNOWN):
        ended = executing.run("long.refuse", {"gate": gate, "does": "return"}, start_to_close=BEGUN_WITHIN)
    assert (ended.state, ended.result) == ("succeeded", b'"just done"')


def test_each_attempt_gets_its_full_time(executing: Executing, gate: str) -> None:
    retry = {"max_attempts": 3, "backoff": "fixed", "initial": "10ms", "jitter": "0%"}
    with executing.running(**KNOWN):
        run_id = executing.trigger("acts.wait", gate, start_to_close=BEGUN_WITHIN, retry=retry)
        until(lambda: len(GATES[gate].entered) == 3, "its third attempt runs")
        ended = executing.ended(run_id)
    assert (ended.state, ended.attempt) == ("timed_out", 3)
    assert executing.database.attempts(run_id) == [(1, "timed_out"), (2, "timed_out"), (3, "timed_out")]
