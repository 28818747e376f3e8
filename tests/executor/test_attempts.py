"""A running executor: what handlers return, raise and outlast becomes the run's outcome."""

from collections.abc import Iterator
from datetime import timedelta
from uuid import UUID

import pytest

from tests.executor.handlers import GATES
from tests.executor.http_target import Answer, serving
from tests.executor.running import Executing
from tests.fixtures.database import Database
from tests.fixtures.services import until
from tests.transitions.acts import about, apply_batch, attempts, completions, dead_letters, submit
from tidewheel.jobs.values import MAX_RESULT_BYTES
from tidewheel.local.stack import StackInfo
from tidewheel.process.metrics import metrics
from tidewheel.runs import RunState

pytestmark = pytest.mark.kafka

SOON = {"max_attempts": 3, "initial": "10ms", "jitter": "0%"}


@pytest.fixture(scope="module")
def executing(shared_database: Database, info: StackInfo) -> Iterator[Executing]:
    """One executor for all tests here."""
    made = Executing(shared_database, info.kafka)
    made.make_topics()
    with made.running(http_allow_private=True):
        yield made


def outcomes(executing: Executing, run_id: UUID) -> list[str]:
    return [outcome for _, outcome in attempts(executing.database, run_id)]


@pytest.mark.parametrize("handler", ["acts.echo", "acts.echo-on-thread"])
def test_handlers_return_value_is_the_result(executing: Executing, handler: str) -> None:
    ended = executing.run(handler, {"to": "ann"})
    assert (ended.state, ended.attempt, ended.result) == ("succeeded", 1, b'{"to":"ann"}')


def test_model_is_built_from_the_payload(executing: Executing) -> None:
    assert executing.run("acts.order", {"to": "ann", "copies": 3}).result == b"3"


def test_invalid_payload_fails_permanently_at_the_first_attempt(executing: Executing) -> None:
    ended = executing.run("acts.order", {"copies": "many"})
    assert (ended.state, ended.attempt, ended.error_type) == ("failed", 1, "InvalidPayload")
    assert "copies" in (ended.error_message or "")


@pytest.mark.parametrize(("what", "error_type"), [("object", "ResultNotSerializable"), ("huge", "ResultTooLarge")])
def test_unstorable_result_fails_permanently_with_its_reason(executing: Executing, what: str, error_type: str) -> None:
    ended = executing.run("acts.return", what, retry=SOON)
    assert (ended.state, ended.attempt, ended.error_type, ended.result) == ("failed", 1, error_type, None)


@pytest.mark.parametrize("handler", ["acts.echo", "acts.echo-on-thread"])
def test_too_large_result_fails_only_its_own_run_of_a_batch(executing: Executing, handler: str) -> None:
    """The results of the others are stored, up to the last byte of 64 KiB."""
    submit(executing.database, f"large-{handler}", target=handler, retry=SOON)
    fits, exceeds = "x" * (MAX_RESULT_BYTES - 2), "x" * (MAX_RESULT_BYTES - 1)  # two bytes are quotes
    payloads = ["small", fits, exceeds] * 10
    asked = [about("job.trigger", f"large-{handler}", payload=payload) for payload in payloads]
    runs = [UUID(reply.run_id) for reply in apply_batch(executing.database, *asked)]
    ended = [executing.ended(run_id) for run_id in runs]
    for one, payload in zip(ended, payloads, strict=True):
        if payload == exceeds:
            assert (one.state, one.attempt, one.error_type, one.result) == ("failed", 1, "ResultTooLarge", None)
            assert one.error_message == "the result has 65537 bytes, more than 65536; return a reference instead"
        else:
            assert (one.state, one.attempt, one.result) == ("succeeded", 1, f'"{payload}"'.encode())
    published = {UUID(event.run_id): event.result for event in completions(executing.database)}
    assert [published[run_id] for run_id in runs] == [one.result for one in ended]


def test_failure_is_retried_until_success(executing: Executing) -> None:
    run_id = executing.trigger("acts.fail-until", 3, retry=SOON)
    ended = executing.ended(run_id)
    assert (ended.state, ended.attempt, ended.result) == ("succeeded", 3, b"3")
    assert outcomes(executing, run_id) == ["failed", "failed", "succeeded"]


def test_exhausted_retries_leave_a_dead_letter(executing: Executing) -> None:
    run_id = executing.trigger("acts.fail-until", 99, retry=SOON)
    ended = executing.ended(run_id)
    assert (ended.state, ended.attempt, ended.error_type) == ("failed", 3, "ValueError")
    assert ended.error_message == "attempt 3 fails"
    [letter] = [letter for letter in dead_letters(executing.database) if letter.run_id == str(run_id)]
    assert [attempt.outcome for attempt in letter.attempts] == ["failed"] * 3


def test_permanent_failure_is_not_retried(executing: Executing) -> None:
    ended = executing.run("acts.raise", "permanent", retry=SOON)
    assert (ended.state, ended.attempt, ended.error_message) == ("failed", 1, "no such address")


def test_retry_after_is_awaited_and_counted(executing: Executing) -> None:
    run_id = executing.trigger("acts.raise", "retry-after", retry=SOON)
    ended = executing.ended(run_id)
    assert (ended.state, ended.attempt) == ("succeeded", 2)
    [(first_ended, second_began)] = executing.database.rows(
        "SELECT a.finished_at, b.started_at FROM ended_attempts AS a JOIN ended_attempts AS b USING (run_id)"
        " WHERE a.run_id = %s AND a.attempt = 1 AND b.attempt = 2",
        [run_id],
    )
    assert second_began - first_ended >= timedelta(seconds=0.3)


def test_snoozed_run_is_retried_uncounted(executing: Executing) -> None:
    run_id = executing.trigger("acts.raise", "snooze", retry={"max_attempts": 1})
    assert executing.ended(run_id).state == "succeeded"
    assert outcomes(executing, run_id) == ["snoozed", "succeeded"]


def test_handler_may_cancel_its_run(executing: Executing) -> None:
    run_id = executing.trigger("acts.raise", "cancel", retry=SOON)
    assert executing.ended(run_id).state == "cancelled"
    assert outcomes(executing, run_id) == ["cancelled"]
    assert [e.status for e in completions(executing.database) if e.run_id == str(run_id)] == ["cancelled"]


@pytest.mark.parametrize("way", ["cancelled-error", "system-exit"])
def test_base_exception_of_a_handler_is_a_failure(executing: Executing, way: str) -> None:
    run_id = executing.trigger("acts.raise", way, retry=SOON)
    assert executing.ended(run_id).state == "succeeded"
    assert outcomes(executing, run_id) == ["failed", "succeeded"]


@pytest.mark.parametrize("handler", ["acts.wait", "acts.wait-on-thread"])
def test_timed_out_attempt_is_retried(executing: Executing, gate: str, handler: str) -> None:
    # A second: within it each begins, also on a busy machine.
    run_id = executing.trigger(handler, gate, start_to_close="1s", retry={**SOON, "max_attempts": 2})
    ended = executing.ended(run_id)
    assert (ended.state, ended.reason, ended.attempt) == ("timed_out", "start_to_close", 2)
    assert ended.error_message == "start_to_close of 1 s has passed"
    assert outcomes(executing, run_id) == ["timed_out", "timed_out"]
    until(lambda: len(GATES[gate].stopped) == 2, "the handlers were told")


@pytest.mark.parametrize("handler", ["acts.wait", "acts.wait-on-thread"])
def test_cancel_reaches_the_running_handler(executing: Executing, gate: str, handler: str) -> None:
    run_id = executing.trigger(handler, gate)
    until(lambda: GATES[gate].entered, "it runs")
    [reply] = apply_batch(executing.database, {"type": "run.cancel", "run_id": str(run_id)})
    assert reply.run_status == "running"
    assert executing.ended(run_id).state == "cancelled"
    until(lambda: GATES[gate].stopped == [str(run_id)], "the handler was told")


def test_unresponsive_handler_is_fenced_off_after_the_grace(executing: Executing, gate: str) -> None:
    run_id = executing.trigger("acts.wait-deaf", gate)
    until(lambda: GATES[gate].entered, "it runs")
    apply_batch(executing.database, {"type": "run.cancel", "run_id": str(run_id)})
    assert executing.ended(run_id).state == "cancelled"
    assert not GATES[gate].opened.is_set()


def test_success_after_an_acknowledged_cancel_ends_cancelled(executing: Executing, gate: str) -> None:
    run_id = executing.trigger("acts.wait-deaf", gate)
    until(lambda: GATES[gate].entered, "it runs")
    apply_batch(executing.database, {"type": "run.cancel", "run_id": str(run_id)})
    GATES[gate].opened.set()
    assert executing.ended(run_id).state == "cancelled"
    assert [e.result for e in completions(executing.database) if e.run_id == str(run_id)] == [None]


def test_http_target_is_called_and_its_client_error_is_final(executing: Executing) -> None:
    with serving(Answer(503, headers={"Retry-After": "0"}), Answer(200, b"at last"), Answer(404)) as target:
        described = {"type": "http", "url": target.url()}
        ended = executing.run(described, {"a": 1}, retry=SOON)
        assert (ended.state, ended.attempt, ended.result) == ("succeeded", 2, b'{"status":200,"body":"at last"}')
        refused = executing.run(described, {"a": 1}, retry=SOON)
    assert (refused.state, refused.attempt, refused.error_type) == ("failed", 1, "http_404")
    first, second, _ = target.received
    assert first.headers["idempotency-key"] == second.headers["idempotency-key"]
    assert [r.headers["tidewheel-attempt"] for r in (first, second)] == ["1", "2"]


def test_each_attempt_takes_and_frees_a_slot(executing: Executing) -> None:

    for _ in range(5):
        executing.run("acts.echo", 1)
    gauge = metrics._metrics["slots_busy"]  # pyright: ignore[reportPrivateUsage]
    until(lambda: next(iter(gauge.collect())).samples[0].value == 0, "all slots are free")


def test_run_is_listed_as_running_during_its_attempt(executing: Executing, gate: str) -> None:
    run_id = executing.trigger("acts.wait", gate)
    until(lambda: GATES[gate].entered, "it runs")
    assert executing.state(run_id) is RunState.RUNNING
    GATES[gate].opened.set()
    assert executing.ended(run_id).result == f'"{gate}"'.encode()
