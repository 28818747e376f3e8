"""Runs reach an executor by message and by sweep, and are released when it stops."""

from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from confluent_kafka import Producer

from tests.executor.handlers import GATES, handlers
from tests.executor.running import Executing, hold_row
from tests.fixtures.database import Database
from tests.fixtures.services import until
from tidewheel.nouns.jobs.form import read_payload_fields
from tidewheel.process.service import Shutdown
from tidewheel.runs import RunState

pytestmark = pytest.mark.kafka

NO_SWEEP: dict[str, Any] = {"sweep": timedelta(days=1)}
OVERLAPS = ("allow_all", "skip")


def executors(database: Database) -> int:
    return database.count("executors")


def test_message_starts_its_run_once_behind_unreadable_ones(executing: Executing) -> None:
    """Its offset is recorded; a second delivery starts no second attempt."""
    topic = executing.topics.runs("default", "standard")
    unreadable = (b"garbage", b"", None, b"\xc3\x01" + b"\x00" * 8)
    producer = Producer({**executing.kafka})
    for value in unreadable:
        producer.produce(topic, value=value, headers=executing.database.signed(topic, None, value))
    assert producer.flush(30) == 0
    with executing.running(**NO_SWEEP):
        first, second = executing.trigger("acts.echo", 1), executing.trigger("acts.echo", 2)
        executing.database.execute("CREATE TABLE kept AS SELECT * FROM outbox")
        executing.publish(first)
        ended = executing.ended(first)
        assert (ended.state, ended.attempt) == ("succeeded", 1)
        assert (ended.claimed_from or "").startswith(f"{topic}/0/{len(unreadable)}@")
        executing.database.execute("INSERT INTO outbox OVERRIDING SYSTEM VALUE TABLE kept")
        executing.publish(first)
        executing.publish(second)
        assert executing.ended(second).state == "succeeded"
    assert executing.database.attempts(first) == [(1, "succeeded")]
    executing.database.execute("DROP TABLE kept")


def test_sweep_starts_what_is_due_and_readable(executing: Executing) -> None:
    """Also without a message; neither an unreadable run nor one that is not due stops it."""
    database = executing.database
    bad, later = executing.trigger("acts.echo", 1, description="bad"), executing.trigger("acts.echo", 2)
    database.execute(
        "UPDATE job_versions SET definition = 'garbage' WHERE job_id = %s", [database.open_run(bad).job_id]
    )
    database.execute("UPDATE job_runs SET publish_at = publish_at + interval '1 hour' WHERE run_id = %s", [later])
    lost = executing.trigger("acts.echo", {"own": "payload"})
    database.execute("TRUNCATE outbox")
    with executing.running():
        ended = executing.ended(lost)
        assert (ended.state, ended.claimed_from, ended.result) == ("succeeded", "sweep", b'{"own":"payload"}')
        assert executing.run("acts.echo", 3).state == "succeeded"
    for case, run_id in (("unreadable", bad), ("not due", later)):
        run = database.open_run(run_id)
        assert (run.state, run.attempt) == ("queued", 0), case


def test_starting_executor_records_the_model_that_each_of_its_handlers_declares(executing: Executing) -> None:
    def fields(handler: str) -> list[str]:
        return [each.path for each in executing.database.within(read_payload_fields, handler)]

    with executing.running(**NO_SWEEP):
        until(lambda: executors(executing.database), "it is registered")
        assert (fields("acts.order"), fields("acts.echo")) == (["payload.to", "payload.copies"], [])
    without = {name: replace(each, payload=None) for name, each in handlers().items()}
    with executing.running(known=without, **NO_SWEEP):
        until(lambda: executors(executing.database), "it is registered")
        assert fields("acts.order") == []


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


@pytest.mark.landing
@pytest.mark.parametrize("by_message", [True, False], ids=["by message", "by sweep"])
def test_locked_run_delays_no_other_start_and_starts_when_it_is_free(
    executing: Executing,
    by_message: bool,  # noqa: FBT001
) -> None:
    """Another transaction holds a row of each policy in a batch for longer than a claim waits."""
    database = executing.database
    runs = [executing.trigger("acts.echo", 1, description=f"job {n}", overlap=OVERLAPS[n % 2]) for n in range(20)]
    locked, others = runs[10:12], runs[:10] + runs[12:]
    holding = [hold_row(database, run_id) for run_id in locked]
    if by_message:
        executing.publish(*runs)
    with executing.running(**NO_SWEEP if by_message else {}):
        assert {executing.ended(run_id).state for run_id in others} == {"succeeded"}
        later = [executing.trigger("acts.echo", 2, overlap=overlap) for overlap in OVERLAPS]
        if by_message:
            executing.publish(*later)
        assert {executing.ended(run_id).state for run_id in later} == {"succeeded"}
        assert {executing.state(run_id) for run_id in locked} == {RunState.QUEUED}
        for each in holding:
            each.rollback()
        if not by_message:
            for run_id in locked:
                executing.ended(run_id)
    with executing.running():
        for run_id, overlap in zip(locked, OVERLAPS, strict=True):
            assert (executing.ended(run_id).state, executing.ended(run_id).attempt) == ("succeeded", 1), overlap
    assert sorted(UUID(event.run_id) for event in database.completions()) == sorted([*runs, *later])
    assert database.count("active_runs") == 0


def test_locked_run_delays_no_other_end_and_ends_when_it_is_free(executing: Executing, gate: str) -> None:
    """Another transaction holds a row of each policy in a batch for longer than an end waits."""
    database = executing.database
    with executing.running(slots=30):
        runs = [
            executing.trigger("acts.wait", gate, description=f"job {n}", overlap=OVERLAPS[n % 2]) for n in range(20)
        ]
        until(lambda: len(GATES[gate].entered) == 20, "all run")
        locked, others = runs[10:12], runs[:10] + runs[12:]
        holding = [hold_row(database, run_id) for run_id in locked]
        GATES[gate].opened.set()
        assert {executing.ended(run_id).state for run_id in others} == {"succeeded"}
        later = [executing.trigger("acts.echo", 2, overlap=overlap) for overlap in OVERLAPS]
        assert {executing.ended(run_id).state for run_id in later} == {"succeeded"}
        assert {executing.state(run_id) for run_id in locked} == {RunState.RUNNING}
        for each in holding:
            each.rollback()
        for run_id, overlap in zip(locked, OVERLAPS, strict=True):
            assert (executing.ended(run_id).state, executing.ended(run_id).attempt) == ("succeeded", 1), overlap
    assert len(GATES[gate].entered) == 20
    assert sorted(UUID(event.run_id) for event in database.completions()) == sorted([*runs, *later])
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


def test_service_survives_lost_connections_and_registers_again_after_its_lease(executing: Executing, gate: str) -> None:
    with executing.running():
        until(lambda: executors(executing.database) == 1, "it has entered")
        executing.database.execute("DELETE FROM executors")
        held = executing.held(gate)
        assert executors(executing.database) == 1
        executing.database.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
            " AND pid <> pg_backend_pid()"
        )
        GATES[gate].opened.set()
        assert executing.ended(held).state == "succeeded"
        assert executing.run("acts.echo", 1).state == "succeeded"
    # An executor that finds its registration gone gives back what it has claimed and not begun.
    assert [outcome for _, outcome in executing.database.attempts(held) if outcome != "released"] == ["succeeded"]
    assert GATES[gate].entered == [str(held)]
