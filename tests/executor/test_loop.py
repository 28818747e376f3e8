"""Runs reach an executor by message and by sweep, and are released when it stops."""

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from confluent_kafka import Producer

from tests.executor.handlers import GATES, handlers
from tests.executor.running import Executing, hold_row
from tests.fixtures.database import Database
from tests.fixtures.services import until
from tidewheel.process.service import Shutdown
from tidewheel.runs import RunState

pytestmark = pytest.mark.kafka

NO_SWEEP: dict[str, Any] = {"sweep": timedelta(days=1)}


def executors(database: Database) -> int:
    return database.count("executors")


def test_message_starts_its_run_and_its_offset_is_recorded(executing: Executing) -> None:
    with executing.running(**NO_SWEEP):
        run_id = executing.trigger("acts.echo", 1)
        executing.publish(run_id)
        ended = executing.ended(run_id)
    topic = executing.topics.runs("default", "standard")
    assert (ended.state, ended.attempt) == ("succeeded", 1)
    assert (ended.claimed_from or "").startswith(f"{topic}/0/0@")


def test_redelivered_message_starts_no_second_attempt(executing: Executing) -> None:
    with executing.running(**NO_SWEEP):
        first, second = executing.trigger("acts.echo", 1), executing.trigger("acts.echo", 2)
        executing.database.execute("CREATE TABLE kept AS SELECT * FROM outbox")
        executing.publish(first)
        executing.ended(first)
        executing.database.execute("INSERT INTO outbox OVERRIDING SYSTEM VALUE TABLE kept")
        executing.publish(first)
        executing.publish(second)
        assert executing.ended(second).state == "succeeded"
    assert executing.database.attempts(first) == [(1, "succeeded")]
    executing.database.execute("DROP TABLE kept")


def test_unreadable_message_blocks_no_later_one(executing: Executing) -> None:
    topic = executing.topics.runs("default", "standard")
    producer = Producer({**executing.kafka})
    for value in (b"garbage", b"", None, b"\xc3\x01" + b"\x00" * 8):
        producer.produce(topic, value=value, headers=executing.database.signed(topic, None, value))
    assert producer.flush(30) == 0
    with executing.running(**NO_SWEEP):
        run_id = executing.trigger("acts.echo", 1)
        executing.publish(run_id)
        assert executing.ended(run_id).state == "succeeded"


def test_lost_message_is_swept(executing: Executing) -> None:
    run_id = executing.trigger("acts.echo", {"own": "payload"})
    executing.database.execute("TRUNCATE outbox")
    with executing.running():
        ended = executing.ended(run_id)
    assert (ended.state, ended.claimed_from, ended.result) == ("succeeded", "sweep", b'{"own":"payload"}')


def test_run_that_is_not_due_is_not_swept(executing: Executing) -> None:
    later = executing.trigger("acts.echo", 1)
    executing.database.execute("UPDATE job_runs SET publish_at = publish_at + interval '1 hour'")
    with executing.running():
        other = executing.trigger("acts.echo", 2)
        assert executing.ended(other).state == "succeeded"
        assert executing.database.open_run(later).attempt == 0


def test_unreadable_run_does_not_stop_the_sweep(executing: Executing) -> None:
    bad = executing.trigger("acts.echo", 1, description="bad")
    executing.database.execute("UPDATE job_versions SET definition = 'garbage'")
    good = executing.trigger("acts.echo", 2)
    executing.database.execute("TRUNCATE outbox")
    with executing.running():
        assert executing.ended(good).state == "succeeded"
        again = executing.trigger("acts.echo", 3)
        assert executing.ended(again).state == "succeeded"
    run = executing.database.open_run(bad)
    assert (run.state, run.attempt) == ("queued", 0)


def test_run_waits_uncounted_for_an_executor_with_its_handler(executing: Executing) -> None:
    """As in a rolling deploy: the message is left, and an executor that has the handler claims the run."""
    known = {name: found for name, found in handlers().items() if name == "acts.echo"}
    with executing.running(known=known):
        waiting = executing.trigger("acts.order", {"to": "ann"})
        executing.publish(waiting)
        assert executing.run("acts.echo", 1).state == "succeeded"
        run = executing.database.open_run(waiting)
        assert (run.state, run.attempt, run.failed_attempts) == ("queued", 0, 0)
        with executing.running():
            ended = executing.ended(waiting)
    assert (ended.state, ended.attempt) == ("succeeded", 1)


def test_queue_is_served_by_its_executors_only(executing: Executing) -> None:
    with executing.running():
        elsewhere = executing.trigger("acts.echo", 1, queue="reports")
        assert executing.run("acts.echo", 2).state == "succeeded"
        assert executing.state(elsewhere) is RunState.QUEUED
    with executing.running(queues="reports"):
        assert executing.ended(elsewhere).state == "succeeded"


def test_full_executor_reserves_a_slot_for_the_critical_lane(executing: Executing, gate: str) -> None:
    with executing.running(slots=10):
        held = [executing.trigger("acts.wait", gate) for _ in range(12)]
        until(lambda: len(GATES[gate].entered) == 9, "nine run")
        urgent = executing.trigger("acts.echo", 1, lane="critical")
        assert executing.ended(urgent).state == "succeeded"
        assert len(GATES[gate].entered) == 9
        GATES[gate].opened.set()
        assert {executing.ended(run_id).state for run_id in held} == {"succeeded"}


@pytest.mark.parametrize("overlap", ["allow_all", "skip"])
@pytest.mark.parametrize("by_message", [True, False], ids=["by message", "by sweep"])
def test_locked_run_delays_no_other_start_and_starts_when_it_is_free(
    executing: Executing,
    overlap: str,
    by_message: bool,  # noqa: FBT001
) -> None:
    """Another transaction holds one row of a batch for longer than a claim waits."""
    database = executing.database
    runs = [executing.trigger("acts.echo", 1, description=f"job {n}", overlap=overlap) for n in range(20)]
    locked, others = runs[10], runs[:10] + runs[11:]
    holding = hold_row(database, locked)
    if by_message:
        executing.publish(*runs)
    with executing.running(**NO_SWEEP if by_message else {}):
        assert {executing.ended(run_id).state for run_id in others} == {"succeeded"}
        later = executing.trigger("acts.echo", 2, overlap=overlap)
        if by_message:
            executing.publish(later)
        assert executing.ended(later).state == "succeeded"
        assert executing.state(locked) is RunState.QUEUED
        holding.rollback()
        if not by_message:
            executing.ended(locked)
    with executing.running():
        assert (executing.ended(locked).state, executing.ended(locked).attempt) == ("succeeded", 1)
    assert sorted(UUID(event.run_id) for event in database.completions()) == sorted([*runs, later])
    assert database.count("active_runs") == 0


@pytest.mark.parametrize("overlap", ["allow_all", "skip"])
def test_locked_run_delays_no_other_end_and_ends_when_it_is_free(executing: Executing, gate: str, overlap: str) -> None:
    """Another transaction holds one row of a batch for longer than an end waits."""
    database = executing.database
    with executing.running(slots=30):
        runs = [executing.trigger("acts.wait", gate, description=f"job {n}", overlap=overlap) for n in range(20)]
        until(lambda: len(GATES[gate].entered) == 20, "all run")
        locked, others = runs[10], runs[:10] + runs[11:]
        holding = hold_row(database, locked)
        GATES[gate].opened.set()
        assert {executing.ended(run_id).state for run_id in others} == {"succeeded"}
        later = executing.trigger("acts.echo", 2, overlap=overlap)
        assert executing.ended(later).state == "succeeded"
        assert executing.state(locked) is RunState.RUNNING
        holding.rollback()
        assert (executing.ended(locked).state, executing.ended(locked).attempt) == ("succeeded", 1)
    assert len(GATES[gate].entered) == 20
    assert sorted(UUID(event.run_id) for event in database.completions()) == sorted([*runs, later])
    assert database.count("active_runs") == 0


def test_shutdown_lets_attempts_end_within_the_drain_timeout(executing: Executing, gate: str) -> None:
    stop = Shutdown()
    stopping = executing.start(stop)
    run_id = executing.held(gate)
    stop.request()
    until(lambda: executing.database.value("SELECT stopping FROM executors"), "it says that it is on its way out")
    GATES[gate].opened.set()
    stopping.result(60)
    assert executing.database.attempts(run_id) == [(1, "succeeded")]
    assert executors(executing.database) == 0


def test_executor_with_an_ended_lease_registers_again(executing: Executing) -> None:
    with executing.running():
        until(lambda: executors(executing.database) == 1, "it has entered")
        executing.database.execute("DELETE FROM executors")
        assert executing.run("acts.echo", 1).state == "succeeded"
        assert executors(executing.database) == 1


def test_service_survives_lost_connections(executing: Executing, gate: str) -> None:
    with executing.running():
        held = executing.held(gate)
        executing.database.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
            " AND pid <> pg_backend_pid()"
        )
        GATES[gate].opened.set()
        assert executing.ended(held).state == "succeeded"
        assert executing.run("acts.echo", 1).state == "succeeded"
    assert executing.database.attempts(held) == [(1, "succeeded")]
