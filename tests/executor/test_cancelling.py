"""Cancelling by filter while executors work: at once behind a backlog, cooperative, then forced."""

from collections.abc import Generator
from contextlib import contextmanager
from uuid import UUID

import pytest
from confluent_kafka import Producer

from tests.executor.handlers import GATES
from tests.executor.running import Executing
from tests.fixtures.database import Database
from tests.fixtures.services import until
from tests.transitions.stepping import in_background
from tidewheel.errors import Unavailable
from tidewheel.process.service import Shutdown
from tidewheel.runs import RunState
from tidewheel.scheduler.bulk_cancel import BulkCancel
from tidewheel.schemas.generated.records import ReplyStatus

pytestmark = pytest.mark.kafka

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
    """Runs of a job whose messages lie in Kafka, in their order."""
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


@pytest.mark.parametrize("handler", ["acts.wait", "acts.wait-on-thread", "acts.wait-deaf"])
def test_running_attempts_are_signalled_and_unresponsive_ones_fenced_off(
    executing: Executing, gate: str, handler: str
) -> None:
    with executing.running(), scheduling(executing.database):
        run = executing.held(gate, handler)
        executing.database.apply_batch({"type": "runs.cancel", "handler": handler, "reason": "stop that"})
        assert executing.ended(run).state == "cancelled"
        if handler != "acts.wait-deaf":
            until(lambda: GATES[gate].stopped == [str(run)], "the handler was told")
        assert not GATES[gate].opened.is_set()
        GATES[gate].opened.set()
