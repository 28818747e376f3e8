"""Messages of a lane: stale copies, topics created later, a change of the group's protocol."""

import logging
from collections.abc import Mapping, Sequence
from datetime import timedelta
from itertools import pairwise
from typing import Any, LiteralString

import psycopg
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from tests.executor.handlers import GATES
from tests.executor.running import Executing
from tests.fixtures.database import Database
from tests.fixtures.services import until
from tests.relay.topics import make_topics
from tidewheel.clock import monotonic_seconds
from tidewheel.executor import completer
from tidewheel.executor.claim import BatchClaimer, ClaimResult, FetchedMessage
from tidewheel.local.stack import StackInfo
from tidewheel.runs import AttemptOutcome, Lane, RunState

pytestmark = pytest.mark.kafka

NO_SWEEP: dict[str, Any] = {"sweep": timedelta(days=1)}
CLAIMING: LiteralString = """
SELECT pid FROM pg_stat_activity
 WHERE datname = current_database() AND wait_event_type = 'Lock' AND application_name = 'tidewheel-executor-standard'
"""
LEAVE: LiteralString = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s AND application_name <> 'test'
"""
A_MESSAGE = "SELECT value FROM outbox WHERE key = %s AND topic LIKE '%%.runs.%%' ORDER BY id DESC LIMIT 1"


@pytest.fixture
def executing(database: Database, info: StackInfo) -> Executing:
    return Executing(database, info.kafka)


def test_stale_message_does_not_replace_the_current_one(executing: Executing) -> None:
    """Both are in one batch, the stale one last, as a relay repeats a batch in which it was fenced."""
    executing.make_topics()
    run_id = executing.trigger("acts.echo", 1)
    key = str(run_id).encode()
    old = executing.database.value(A_MESSAGE, [key])
    executing.database.requeue(executing.database.begin(run_id), AttemptOutcome.RELEASED)
    good = executing.database.value(A_MESSAGE, [key])
    executing.database.execute("TRUNCATE outbox")
    producer = Producer({**executing.kafka})
    topic = executing.topics.runs("default", "standard")
    for value in (good, old):
        producer.produce(topic, key=key, value=value, headers=executing.database.signed(topic, key, value))
    assert producer.flush(30) == 0
    with executing.running(**NO_SWEEP):
        ended = executing.ended(run_id)
    assert (ended.state, ended.attempt) == ("succeeded", 2)
    assert executing.database.attempts(run_id) == [(1, "released"), (2, "succeeded")]


def test_full_executor_leaves_messages_to_the_sweep(executing: Executing, gate: str) -> None:
    """Its offset moves on without a claim; the first executor with a free slot claims the runs."""
    executing.make_topics()
    topic = executing.topics.runs("default", "standard")
    with executing.running(slots=1, sweep=timedelta(milliseconds=500)):
        held = executing.trigger("acts.wait", gate)
        executing.publish(held)
        until(lambda: GATES[gate].entered, "it is full")
        waiting = [executing.trigger("acts.echo", number) for number in range(5)]
        for run_id in waiting:
            executing.publish(run_id)
        until(lambda: committed(executing.kafka, topic) == 6, "it has let go of the five behind the first")
        assert {executing.state(run_id) for run_id in waiting} == {RunState.QUEUED}
        GATES[gate].opened.set()
        assert {executing.ended(run_id).state for run_id in waiting} == {"succeeded"}
    assert [executing.database.attempts(run_id) for run_id in waiting] == [[(1, "succeeded")]] * 5


def test_failed_claim_is_retried_before_later_messages(executing: Executing) -> None:
    """Messages of both are held, in their order: no offset moves past those of the claim that failed."""
    executing.make_topics()
    runs = [executing.trigger("acts.echo", number) for number in range(20)]
    for run_id in runs:
        executing.publish(run_id)
    with executing.database.transaction() as lock:
        lock.execute("LOCK TABLE job_runs IN SHARE MODE")
        with executing.running(slots=2, **NO_SWEEP):
            until(lambda: executing.database.rows(CLAIMING), "a claim is held up in its transaction")
            [(pid,)] = executing.database.rows(CLAIMING)
            executing.database.execute("SELECT pg_terminate_backend(%s)", [pid])
            until(lambda: executing.database.rows(CLAIMING) not in ([], [(pid,)]), "it is tried again")
            assert committed(executing.kafka, executing.topics.runs("default", "standard")) <= 0
            lock.rollback()
            assert {executing.ended(run_id).state for run_id in runs} == {"succeeded"}
    assert [executing.database.attempts(run_id) for run_id in runs] == [[(1, "succeeded")]] * 20
    first = executing.database.rows("SELECT run_id FROM ended_attempts ORDER BY started_at LIMIT 2")
    assert {run_id for (run_id,) in first} == set(runs[:2])
    assert committed(executing.kafka, executing.topics.runs("default", "standard")) == 20


def test_outcomes_wait_no_longer_than_the_burst(executing: Executing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(completer, "_DEFER_SECONDS", 3600.0)
    executing.make_topics()
    with executing.running(slots=2, **NO_SWEEP):
        for _ in range(2):
            runs = [executing.trigger("acts.echo", number) for number in range(100)]
            executing.publish(*runs)
            assert {executing.ended(run_id).state for run_id in runs} == {"succeeded"}


def test_failing_claims_back_off_and_are_logged_once(
    executing: Executing, info: StackInfo, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each error once, also where there is plenty, and a claim is under way while more is read."""
    executing.make_topics()
    runs = [executing.trigger("acts.echo", number) for number in range(20)]
    for run_id in runs:
        executing.publish(run_id)
    lane, tried = f"consuming {executing.topics.runs('default', 'standard')}", list[float]()
    claim = BatchClaimer.claim

    def watched(self: BatchClaimer, fetched: Sequence[FetchedMessage], *, real: int) -> ClaimResult:
        tried.append(monotonic_seconds())
        return claim(self, fetched, real=real)

    monkeypatch.setattr(BatchClaimer, "claim", watched)
    lock = executing.database.connection()  # held until all are let in again, or the claim is committed as it goes
    lock.execute("LOCK TABLE job_runs IN SHARE MODE")
    with caplog.at_level(logging.INFO, "tidewheel"), executing.running(slots=2, **NO_SWEEP):
        until(lambda: executing.database.rows(CLAIMING), "a claim is held up in its transaction")
        let_in(executing.database, info, allowed=False)
        try:
            until(lambda: len(tried) >= 6, "it is tried again and again")
        finally:
            let_in(executing.database, info, allowed=True)
            lock.rollback()
        pauses = [after - before for before, after in pairwise(tried[:6])]
        assert pauses[4] > pauses[2] > pauses[0] / 2
        assert pauses[4] > 0.8  # of 1.6 s at most, after it was doubled four times
        assert {executing.ended(run_id).state for run_id in runs} == {"succeeded"}
        told = [each.getMessage() for each in caplog.records if each.getMessage().startswith(lane)]
    expected = ["terminating connection", "not currently accepting connections", "works again"]
    assert [part in each for part, each in zip(expected, told, strict=True)] == [True] * 3, told
    assert [executing.database.attempts(run_id) for run_id in runs] == [[(1, "succeeded")]] * 20


def let_in(database: Database, info: StackInfo, *, allowed: bool) -> None:
    """Close the database to all connections but the test's, or open it again."""
    name = str(conninfo_to_dict(database.url)["dbname"])
    statement = sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS {}")
    with psycopg.connect(info.database_url, autocommit=True) as connection:
        connection.execute(statement.format(sql.Identifier(name), sql.Literal(allowed)))
        if not allowed:
            connection.execute(LEAVE, [name])


def committed(kafka: Mapping[str, str], topic: str) -> int:
    """Return the executors' committed offset on the one partition of a topic."""
    client = Consumer({**kafka, "group.id": f"{topic}.executors"})
    [partition] = client.committed([TopicPartition(topic, 0)], timeout=30)
    client.close()
    return partition.offset


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["classic", "consumer", "share"])
def test_queue_is_swept_until_its_topics_exist(executing: Executing, protocol: str) -> None:
    queue: dict[str, Any] = {"queue": "reports"}
    with executing.running(queues="reports", executor_group=protocol, sweep=timedelta(milliseconds=500)):
        assert executing.run("acts.echo", 1, **queue).claimed_from == "sweep"
        topics = [executing.topics.runs("reports", lane) for lane in Lane]
        make_topics(executing.kafka, topics)

        def consumed() -> bool:
            run_id = executing.trigger("acts.echo", 2, **queue)
            executing.publish(run_id)
            return executing.ended(run_id).claimed_from != "sweep"

        until(consumed, "messages of the new topics are read")


def test_group_protocol_may_change_between_releases(executing: Executing) -> None:
    """The offsets stay: what was claimed is not read again, what was not is."""
    executing.make_topics()
    for protocol in ("classic", "consumer", "classic"):
        waiting = executing.trigger("acts.echo", protocol)
        executing.publish(waiting)
        with executing.running(executor_group=protocol, **NO_SWEEP):
            assert executing.ended(waiting).state == "succeeded"
            assert executing.database.value("SELECT group_protocol FROM executors") == protocol
