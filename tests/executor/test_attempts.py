"""Attempts from claim to end: retried, cancelled, at most once."""

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from confluent_kafka import Producer

from tests.executor.handlers import GATES, Gate
from tests.executor.running import Executing
from tests.fixtures.acts import about
from tests.fixtures.database import Database
from tests.fixtures.services import until
from tests.transitions.stepping import in_background
from tidewheel.errors import Unavailable
from tidewheel.jobs.values import MAX_RESULT_BYTES
from tidewheel.local.stack import StackInfo
from tidewheel.process.metrics import metrics
from tidewheel.process.service import Shutdown
from tidewheel.runs import RunState
from tidewheel.scheduler.cancels import BulkCancel
from tidewheel.schemas.generated.records import ReplyStatus

pytestmark = pytest.mark.kafka
SOON = {"max_attempts": 3, "initial": "10ms", "jitter": "0%"}


@pytest.fixture(scope="module")
def served(shared_database: Database, info: StackInfo) -> Iterator[Executing]:
    """One executor for all tests here."""
    made = Executing(shared_database, info.kafka).with_topics()
    with made.running(http_allow_private=True):
        yield made


def outcomes(executing: Executing, run_id: UUID) -> list[str]:
    return [outcome for _, outcome in executing.database.attempts(run_id)]


def test_too_large_result_fails_only_its_own_run_of_a_batch(served: Executing) -> None:
    """The results of the others are stored, up to the last byte of 64 KiB."""
    served.database.submit("large", target="acts.echo", retry=SOON)
    fits, exceeds = "x" * (MAX_RESULT_BYTES - 2), "x" * (MAX_RESULT_BYTES - 1)  # two bytes are quotes
    payloads = ["small", fits, exceeds] * 10
    asked = [about("job.trigger", "large", payload=payload) for payload in payloads]
    runs = [UUID(reply.run_id) for reply in served.database.apply_batch(*asked)]
    ended = [served.ended(run_id) for run_id in runs]
    for one, payload in zip(ended, payloads, strict=True):
        if payload == exceeds:
            assert (one.state, one.attempt, one.error_type, one.result) == ("failed", 1, "ResultTooLarge", None)
            assert one.error_message == "the result has 65537 bytes, more than 65536; return a reference instead"
        else:
            assert (one.state, one.attempt, one.result) == ("succeeded", 1, f'"{payload}"'.encode())
    published = {UUID(event.run_id): event.result for event in served.database.completions()}
    assert [published[run_id] for run_id in runs] == [one.result for one in ended]


def test_retry_after_is_awaited_and_counted(served: Executing) -> None:
    run_id = served.trigger("acts.raise", "retry-after", retry=SOON)
    ended = served.ended(run_id)
    assert (ended.state, ended.attempt) == ("succeeded", 2)
    [(first_ended, second_began)] = served.database.rows(
        "SELECT a.finished_at, b.started_at FROM ended_attempts AS a JOIN ended_attempts AS b USING (run_id)"
        " WHERE a.run_id = %s AND a.attempt = 1 AND b.attempt = 2",
        [run_id],
    )
    assert second_began - first_ended >= timedelta(seconds=0.3)
    assert [event for event in served.database.lifecycle() if event.run_id is not None] == [], "by default"


def test_base_exception_of_a_handler_is_a_failure(served: Executing) -> None:
    for way in ("cancelled-error", "system-exit"):
        run_id = served.trigger("acts.raise", way, retry=SOON)
        assert served.ended(run_id).state == "succeeded", way
        assert outcomes(served, run_id) == ["failed", "succeeded"], way


def test_each_attempt_takes_and_frees_a_slot(served: Executing) -> None:

    for _ in range(5):
        served.run("acts.echo", 1)
    gauge = metrics._metrics["slots_busy"]  # pyright: ignore[reportPrivateUsage]
    until(lambda: next(iter(gauge.collect())).samples[0].value == 0, "all slots are free")


TIMEOUTS = ("start_to_close", "heartbeat")
ONCE: dict[str, Any] = {
    "delivery": "at_most_once",
    "retry": {"max_attempts": 5, "backoff": "fixed", "initial": "10ms", "jitter": "0%"},
}


def test_failed_at_most_once_run_is_not_retried(served: Executing) -> None:
    cases = (("acts.fail-until", 3, "ValueError"), ("acts.raise", "retry-after", "RetryAfter"))
    for handler, payload, error_type in cases:
        ended = served.run(handler, payload, **ONCE)
        assert (ended.state, ended.attempt, ended.error_type) == ("failed", 1, error_type), handler


def test_timed_out_at_most_once_run_is_not_retried(served: Executing, gate: str) -> None:
    cases = [(target, which) for target in ("acts.wait", "acts.wait-on-thread") for which in TIMEOUTS]
    runs = {(target, which): served.trigger(target, gate, **{which: "1s"}, **ONCE) for target, which in cases}
    for (target, which), run_id in runs.items():
        ended = served.ended(run_id)
        assert (ended.state, ended.attempt, ended.reason) == ("timed_out", 1, which), (target, which)
    assert sorted(GATES[gate].entered) == sorted(map(str, runs.values()))


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


def test_refused_connection_is_a_certain_non_start(served: Executing) -> None:
    target = {"type": "http", "url": "http://127.0.0.1:1/"}
    ended = served.run(target, delivery="at_most_once", retry=SOON)
    assert (ended.state, ended.attempt, ended.error_type) == ("failed", 3, "http_connect")


@pytest.mark.landing
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


BACKLOG = 4000


@contextmanager
def scheduling(database: Database) -> Generator[None]:
    """The part of a scheduler that carries cancellations out, as long as the block."""
    stop, cancelling = Shutdown(), BulkCancel(database.session(), database.installation)

    def work() -> None:
        while not stop.wait(0.02):
            try:
                cancelling.step()
            except Unavailable:
                continue  # as the scheduler does: deadlocks and the like are tried again

    ended = in_background(work)
    try:
        yield
    finally:
        stop.request()
        ended.result(30)


def backlog(executing: Executing, key: str, payload: str) -> list[UUID]:
    runs: list[UUID] = []
    for _ in range(BACKLOG // 500):
        trigger = {"type": "job.trigger", "key": key, "payload": payload}
        runs += [UUID(reply.run_id) for reply in executing.database.apply_batch(*([trigger] * 500))]
    topic = executing.topics.runs("default", "standard")
    producer = Producer({**executing.kafka, "linger.ms": 20})
    for run, value in executing.database.rows("SELECT key, value FROM outbox WHERE topic = %s ORDER BY id", [topic]):
        producer.produce(topic, key=run, value=value, headers=executing.database.signed(topic, run, value))
        producer.poll(0)
    assert producer.flush(60) == 0
    executing.database.execute("DELETE FROM outbox WHERE topic = %s", [topic])
    return runs


@pytest.mark.landing
def test_cancellation_applies_at_once_to_a_published_backlog(executing: Executing, gate: str) -> None:
    database = executing.database
    database.submit("job", target="acts.wait")
    runs = backlog(executing, "job", gate)
    with executing.running(slots=4):
        until(lambda: len(GATES[gate].entered) >= 3, "its slots are taken, and the rest waits in Kafka")
        [by_id] = database.apply_batch({"type": "run.cancel", "run_id": str(runs[-1])})
        assert (by_id.run_status, database.final_state(runs[-1])[0]) == ("queued", "cancelled")
        [reply] = database.apply_batch({"type": "runs.cancel", "key": "job"})
        assert reply.status is ReplyStatus.ACCEPTED
        acknowledged = database.now()
        GATES[gate].opened.set()
        # However its slots come free, and before any of the others was ended.
        database.submit("other", target="acts.echo")
        assert executing.run("acts.echo", 1).state == "succeeded"
        assert executing.state(runs[-2]) is RunState.QUEUED
        with scheduling(database):
            until(lambda: database.count("job_runs") == 0, "all have ended")
    late = database.value(
        "SELECT count(*) FROM ended_attempts WHERE started_at > %s AND run_id = ANY (%s)", [acknowledged, runs]
    )
    assert late == 0
    ended = dict(database.rows("SELECT state, count(*) FROM runs WHERE run_id = ANY (%s) GROUP BY state", [runs]))
    assert sum(ended.values()) == BACKLOG
    assert set(ended) <= {"cancelled", "succeeded"}
    assert ended.get("succeeded", 0) <= 4


@pytest.mark.landing
def test_running_attempts_are_signalled_and_unresponsive_ones_fenced_off(served: Executing, gate: str) -> None:
    names = ("acts.wait", "acts.wait-on-thread", "acts.wait-deaf")
    with scheduling(served.database):
        runs = {name: served.held(gate, name) for name in names}
        for name, run in runs.items():
            served.database.apply_batch({"type": "runs.cancel", "handler": name, "reason": "stop that"})
            assert served.ended(run).state == "cancelled", name
        told = {str(run) for name, run in runs.items() if name != "acts.wait-deaf"}
        until(lambda: set(GATES[gate].stopped) == told, "the handlers were told")
        assert not GATES[gate].opened.is_set()
        GATES[gate].opened.set()
