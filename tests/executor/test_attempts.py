"""A running executor: what handlers return, raise and outlast becomes the run's outcome."""

from collections.abc import Iterator
from datetime import timedelta
from uuid import UUID

import pytest

from tests.executor.handlers import GATES
from tests.executor.http_target import Answer, serving
from tests.executor.running import Executing
from tests.fixtures.acts import about
from tests.fixtures.database import Database
from tests.fixtures.services import until
from tidewheel.jobs.values import MAX_RESULT_BYTES
from tidewheel.local.stack import StackInfo
from tidewheel.process.metrics import metrics

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
    return [outcome for _, outcome in executing.database.attempts(run_id)]


@pytest.mark.parametrize("handler", ["acts.echo", "acts.echo-on-thread"])
def test_too_large_result_fails_only_its_own_run_of_a_batch(executing: Executing, handler: str) -> None:
    """The results of the others are stored, up to the last byte of 64 KiB."""
    executing.database.submit(f"large-{handler}", target=handler, retry=SOON)
    fits, exceeds = "x" * (MAX_RESULT_BYTES - 2), "x" * (MAX_RESULT_BYTES - 1)  # two bytes are quotes
    payloads = ["small", fits, exceeds] * 10
    asked = [about("job.trigger", f"large-{handler}", payload=payload) for payload in payloads]
    runs = [UUID(reply.run_id) for reply in executing.database.apply_batch(*asked)]
    ended = [executing.ended(run_id) for run_id in runs]
    for one, payload in zip(ended, payloads, strict=True):
        if payload == exceeds:
            assert (one.state, one.attempt, one.error_type, one.result) == ("failed", 1, "ResultTooLarge", None)
            assert one.error_message == "the result has 65537 bytes, more than 65536; return a reference instead"
        else:
            assert (one.state, one.attempt, one.result) == ("succeeded", 1, f'"{payload}"'.encode())
    published = {UUID(event.run_id): event.result for event in executing.database.completions()}
    assert [published[run_id] for run_id in runs] == [one.result for one in ended]


def test_exhausted_retries_leave_a_dead_letter(executing: Executing) -> None:
    run_id = executing.trigger("acts.fail-until", 99, retry=SOON)
    ended = executing.ended(run_id)
    assert (ended.state, ended.attempt, ended.error_type) == ("failed", 3, "ValueError")
    assert ended.error_message == "attempt 3 fails"
    [letter] = [letter for letter in executing.database.dead_letters() if letter.run_id == str(run_id)]
    assert [attempt.outcome for attempt in letter.attempts] == ["failed"] * 3


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


@pytest.mark.parametrize("way", ["cancelled-error", "system-exit"])
def test_base_exception_of_a_handler_is_a_failure(executing: Executing, way: str) -> None:
    run_id = executing.trigger("acts.raise", way, retry=SOON)
    assert executing.ended(run_id).state == "succeeded"
    assert outcomes(executing, run_id) == ["failed", "succeeded"]


def test_success_after_an_acknowledged_cancel_ends_cancelled(executing: Executing, gate: str) -> None:
    run_id = executing.held(gate, "acts.wait-deaf")
    executing.database.apply_batch({"type": "run.cancel", "run_id": str(run_id)})
    GATES[gate].opened.set()
    assert executing.ended(run_id).state == "cancelled"
    assert [e.result for e in executing.database.completions() if e.run_id == str(run_id)] == [None]


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
