"""A running executor: what handlers return, raise and outlast becomes the run's outcome."""

from collections.abc import Iterator
from datetime import timedelta
from uuid import UUID, uuid4

import pytest

from tests.executor.handlers import GATES, Gate
from tests.executor.http_target import Answer, serving
from tests.executor.running import Executing
from tests.fixtures.database import Database
from tests.fixtures.services import until
from tests.transitions.acts import ask, attempts, completions, dead_letters
from tidewheel.local.stack import StackInfo
from tidewheel.process.metrics import metrics
from tidewheel.runs import RunState

pytestmark = pytest.mark.kafka

SOON = {"max_attempts": 3, "initial": "10ms", "jitter": "0%"}


@pytest.fixture(scope="module")
def executing(shared_database: Database, info: StackInfo) -> Iterator[Executing]:
    """One executor for all tests here."""
    made = Executing(shared_database, info.bootstrap)
    made.make_topics()
    with made.running(http_allow_private=True):
        yield made


@pytest.fixture
def gate() -> Iterator[str]:
    """A gate of this test's own, open at its end."""
    name = uuid4().hex
    GATES[name] = Gate()
    yield name
    GATES[name].opened.set()


def outcomes(executing: Executing, run_id: UUID) -> list[str]:
    return [outcome for _, outcome in attempts(executing.database, run_id)]


@pytest.mark.parametrize("handler", ["acts.echo", "acts.echo-on-thread"])
def test_a_handler_succeeds_with_what_it_returns(executing: Executing, handler: str) -> None:
    ended = executing.run(handler, {"to": "ann"})
    assert (ended.state, ended.attempt, ended.result) == ("succeeded", 1, b'{"to":"ann"}')


def test_a_model_is_filled_from_the_payload(executing: Executing) -> None:
    assert executing.run("acts.order", {"to": "ann", "copies": 3}).result == b"3"


def test_a_payload_that_does_not_fit_fails_for_good_at_the_first_attempt(executing: Executing) -> None:
    ended = executing.run("acts.order", {"copies": "many"})
    assert (ended.state, ended.attempt, ended.error_type) == ("failed", 1, "InvalidPayload")
    assert "copies" in (ended.error_message or "")


@pytest.mark.parametrize(("what", "error_type"), [("object", "ResultNotSerializable"), ("huge", "ResultTooLarge")])
def test_a_result_that_cannot_be_kept_fails_for_good_and_says_why(
    executing: Executing, what: str, error_type: str
) -> None:
    ended = executing.run("acts.return", what, retry=SOON)
    assert (ended.state, ended.attempt, ended.error_type, ended.result) == ("failed", 1, error_type, None)


def test_a_failure_is_tried_again_until_it_succeeds(executing: Executing) -> None:
    run_id = executing.trigger("acts.fail-until", 3, retry=SOON)
    ended = executing.ended(run_id)
    assert (ended.state, ended.attempt, ended.result) == ("succeeded", 3, b"3")
    assert outcomes(executing, run_id) == ["failed", "failed", "succeeded"]


def test_what_always_fails_is_given_up_with_a_dead_letter(executing: Executing) -> None:
    run_id = executing.trigger("acts.fail-until", 99, retry=SOON)
    ended = executing.ended(run_id)
    assert (ended.state, ended.attempt, ended.error_type) == ("failed", 3, "ValueError")
    assert ended.error_message == "attempt 3 fails"
    [letter] = [letter for letter in dead_letters(executing.database) if letter.run_id == str(run_id)]
    assert [attempt.outcome for attempt in letter.attempts] == ["failed"] * 3


def test_permanent_is_not_tried_again(executing: Executing) -> None:
    ended = executing.run("acts.raise", "permanent", retry=SOON)
    assert (ended.state, ended.attempt, ended.error_message) == ("failed", 1, "no such address")


def test_retry_after_is_waited_for_and_charged(executing: Executing) -> None:
    run_id = executing.trigger("acts.raise", "retry-after", retry=SOON)
    ended = executing.ended(run_id)
    assert (ended.state, ended.attempt) == ("succeeded", 2)
    [(first_ended, second_began)] = executing.database.rows(
        "SELECT a.finished_at, b.started_at FROM attempts AS a JOIN attempts AS b USING (run_id)"
        " WHERE a.run_id = %s AND a.attempt = 1 AND b.attempt = 2",
        [run_id],
    )
    assert second_began - first_ended >= timedelta(seconds=0.3)


def test_snooze_comes_again_uncharged(executing: Executing) -> None:
    run_id = executing.trigger("acts.raise", "snooze", retry={"max_attempts": 1})
    assert executing.ended(run_id).state == "succeeded"
    assert outcomes(executing, run_id) == ["snoozed", "succeeded"]


def test_cancel_ends_the_run_as_cancelled(executing: Executing) -> None:
    run_id = executing.trigger("acts.raise", "cancel", retry=SOON)
    assert executing.ended(run_id).state == "cancelled"
    assert outcomes(executing, run_id) == ["cancelled"]
    assert [e.status for e in completions(executing.database) if e.run_id == str(run_id)] == ["cancelled"]


@pytest.mark.parametrize("way", ["cancelled-error", "system-exit"])
def test_a_handler_that_raises_what_is_no_exception_fails_like_any_other(executing: Executing, way: str) -> None:
    run_id = executing.trigger("acts.raise", way, retry=SOON)
    assert executing.ended(run_id).state == "succeeded"
    assert outcomes(executing, run_id) == ["failed", "succeeded"]


@pytest.mark.parametrize("handler", ["acts.wait", "acts.wait-on-thread"])
def test_an_attempt_that_takes_too_long_is_ended_and_tried_again(executing: Executing, gate: str, handler: str) -> None:
    run_id = executing.trigger(handler, gate, start_to_close="100ms", retry={**SOON, "max_attempts": 2})
    ended = executing.ended(run_id)
    assert (ended.state, ended.reason, ended.attempt) == ("timed_out", "start_to_close", 2)
    assert ended.error_message == "start_to_close of 0.1 s has passed"
    assert outcomes(executing, run_id) == ["timed_out", "timed_out"]
    until(lambda: len(GATES[gate].stopped) == 2, "the handlers were told")


@pytest.mark.parametrize("handler", ["acts.wait", "acts.wait-on-thread"])
def test_a_cancel_reaches_the_running_handler_and_the_run_ends_cancelled(
    executing: Executing, gate: str, handler: str
) -> None:
    run_id = executing.trigger(handler, gate)
    until(lambda: GATES[gate].entered, "it runs")
    [reply] = ask(executing.database, {"type": "run.cancel", "run_id": str(run_id)})
    assert reply.run_status == "running"
    assert executing.ended(run_id).state == "cancelled"
    until(lambda: GATES[gate].stopped == [str(run_id)], "the handler was told")


def test_a_handler_that_does_not_listen_is_fenced_off_after_the_grace(executing: Executing, gate: str) -> None:
    run_id = executing.trigger("acts.wait-deaf", gate)
    until(lambda: GATES[gate].entered, "it runs")
    ask(executing.database, {"type": "run.cancel", "run_id": str(run_id)})
    assert executing.ended(run_id).state == "cancelled"
    assert not GATES[gate].opened.is_set()


def test_a_success_after_the_cancel_was_acknowledged_is_still_cancelled(executing: Executing, gate: str) -> None:
    run_id = executing.trigger("acts.wait-deaf", gate)
    until(lambda: GATES[gate].entered, "it runs")
    ask(executing.database, {"type": "run.cancel", "run_id": str(run_id)})
    GATES[gate].opened.set()
    assert executing.ended(run_id).state == "cancelled"
    assert [e.result for e in completions(executing.database) if e.run_id == str(run_id)] == [None]


def test_an_http_target_is_called_and_its_refusal_is_final(executing: Executing) -> None:
    with serving(Answer(503, headers={"Retry-After": "0"}), Answer(200, b"at last"), Answer(404)) as target:
        described = {"type": "http", "url": target.url()}
        ended = executing.run(described, {"a": 1}, retry=SOON)
        assert (ended.state, ended.attempt, ended.result) == ("succeeded", 2, b'{"status":200,"body":"at last"}')
        refused = executing.run(described, {"a": 1}, retry=SOON)
    assert (refused.state, refused.attempt, refused.error_type) == ("failed", 1, "http_404")
    first, second, _ = target.received
    assert first.headers["idempotency-key"] == second.headers["idempotency-key"]
    assert [r.headers["tidewheel-attempt"] for r in (first, second)] == ["1", "2"]


def test_every_attempt_holds_a_slot_and_gives_it_back(executing: Executing) -> None:

    for _ in range(5):
        executing.run("acts.echo", 1)
    gauge = metrics._metrics["slots_busy"]  # pyright: ignore[reportPrivateUsage]
    until(lambda: next(iter(gauge.collect())).samples[0].value == 0, "all slots are free")


def test_a_run_is_found_running_while_it_runs(executing: Executing, gate: str) -> None:
    run_id = executing.trigger("acts.wait", gate)
    until(lambda: GATES[gate].entered, "it runs")
    assert executing.state(run_id) is RunState.RUNNING
    GATES[gate].opened.set()
    assert executing.ended(run_id).result == f'"{gate}"'.encode()
