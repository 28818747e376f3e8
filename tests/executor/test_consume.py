"""Messages of runs are claimed in batches; offsets follow the claims."""

import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise
from typing import Any, LiteralString
from uuid import uuid4

import psycopg
import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from tests.executor.handlers import GATES
from tests.executor.running import Executing
from tests.fixtures.database import Database
from tests.fixtures.services import until
from tests.fixtures.stale_coordinator import StaleCoordinator
from tests.relay.topics import make_topics
from tidewheel.clock import monotonic_seconds
from tidewheel.executor import completer, consume, early, offsets
from tidewheel.executor.lanes import choose_lanes
from tidewheel.executor.offsets import Offsets
from tidewheel.executor.run_messages import BatchClaimer, ClaimResult, FetchedMessage
from tidewheel.kafka.clients import consumer
from tidewheel.kafka.topics import Topics
from tidewheel.local.stack import StackInfo
from tidewheel.runs import AttemptOutcome, Lane, RunState
from tidewheel.settings.executor import ExecutorSettings

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
    executing.with_topics()
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


def test_message_that_comes_early_waits_for_its_run(executing: Executing) -> None:
    """Later ones pass it. Until its claim no offset moves past it, so another member would read it again."""
    executing.with_topics()
    topic = executing.topics.runs("default", "standard")
    with executing.running(**NO_SWEEP):
        first = executing.trigger("acts.echo", 1)
        executing.publish(first)
        assert executing.ended(first).state == "succeeded"
        waiting = executing.database.trigger("acts.echo-[]", payload=2, delay="3s")
        [(due,)] = executing.database.rows("SELECT publish_at FROM job_runs WHERE run_id = %s", [waiting])
        executing.publish(waiting)
        later = executing.trigger("acts.echo", 3)
        executing.publish(later)
        passed = executing.ended(later)
        assert passed.finished_at is not None
        assert passed.finished_at < due
        assert committed(executing.kafka, topic) <= 1
        ended = executing.ended(waiting)
        until(lambda: committed(executing.kafka, topic) == 3, "all offsets are committed")
    assert ended.state == "succeeded"
    assert ended.claimed_from != "sweep"
    assert ended.started_at is not None
    assert ended.started_at >= due


def test_full_store_of_early_messages_delays_none(executing: Executing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(early, "_MOST", 2)
    executing.with_topics()
    with executing.running(**NO_SWEEP):
        first = executing.trigger("acts.echo", 0)
        executing.publish(first)
        assert executing.ended(first).state == "succeeded"
        waiting = [executing.database.trigger("acts.echo-[]", payload=number, delay="2s") for number in range(6)]
        executing.publish(*waiting)
        ended = [executing.ended(run_id) for run_id in waiting]
    assert {each.state for each in ended} == {"succeeded"}
    assert "sweep" not in {each.claimed_from for each in ended}


def test_queue_without_topics_leaves_the_group_protocol_to_the_others(info: StackInfo) -> None:
    topics = Topics(f"t{uuid4().hex[:10]}")
    make_topics(info.kafka, [topics.runs("default", lane) for lane in Lane])
    assert choose_lanes(ExecutorSettings.load(), info.kafka, topics, ["missing", "default"]).protocol == "consumer"


def test_full_executor_leaves_messages_to_the_sweep(executing: Executing, gate: str) -> None:
    """Its offset moves on without a claim; the first executor with a free slot claims the runs."""
    executing.with_topics()
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
    executing.with_topics()
    runs = [executing.trigger("acts.echo", number) for number in range(20)]
    for run_id in runs:
        executing.publish(run_id)
    held: list[tuple[Any, ...]] = []

    def held_up() -> bool:  # for a moment only: then it is tried again
        held[:] = executing.database.rows(CLAIMING)
        return bool(held)

    with executing.database.transaction() as lock:
        lock.execute("LOCK TABLE job_runs IN SHARE MODE")
        with executing.running(slots=2, **NO_SWEEP):
            until(held_up, "a claim is held up in its transaction")
            [(pid,)] = held
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
    monkeypatch.setattr(consume, "_BURST_CLAIMS", 2)
    bursts: list[None] = []
    defer = completer.Completer._defer_to_claims  # pyright: ignore[reportPrivateUsage]

    def deferring(writer: completer.Completer) -> None:
        bursts.append(None)
        defer(writer)

    monkeypatch.setattr(completer.Completer, "_defer_to_claims", deferring)
    executing.with_topics()
    with executing.running(slots=2, **NO_SWEEP):
        for _ in range(2):
            runs = [executing.trigger("acts.echo", number) for number in range(100)]
            executing.publish(*runs)
            assert {executing.ended(run_id).state for run_id in runs} == {"succeeded"}
    assert bursts


def test_outcomes_wait_for_a_large_claim_however_long_it_takes(
    executing: Executing, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(completer, "_DEFER_SECONDS", 3600.0)
    monkeypatch.setattr(consume, "_BURST_CLAIMS", 2)
    monkeypatch.setattr(consume, "_BURST_SECONDS", 0.0)
    wait, claim = threading.Event(), BatchClaimer.claim
    defer = completer.Completer._defer_to_claims  # pyright: ignore[reportPrivateUsage]

    def slow(self: BatchClaimer, fetched: Sequence[FetchedMessage], *, real: int) -> ClaimResult:
        result = claim(self, fetched, real=real)
        if len(fetched) > 2:
            assert wait.wait(30), "outcomes wait while it is in progress"
        return result

    def deferring(writer: completer.Completer) -> None:
        wait.set()
        defer(writer)

    monkeypatch.setattr(BatchClaimer, "claim", slow)
    monkeypatch.setattr(completer.Completer, "_defer_to_claims", deferring)
    executing.with_topics()
    with executing.running(slots=2, **NO_SWEEP):
        runs = [executing.trigger("acts.echo", number) for number in range(100)]
        executing.publish(*runs)
        until(wait.is_set, "outcomes wait for a claim in progress")
        assert {executing.ended(run_id).state for run_id in runs} == {"succeeded"}


@pytest.mark.landing
def test_failing_claims_back_off_and_are_logged_once(
    executing: Executing, info: StackInfo, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each error once, also where there is plenty, and a claim is under way while more is read."""
    executing.with_topics()
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
        assert pauses[4] > 0.8  # of 1.6 s at most, after it was doubled four times; stalls only lengthen it
        assert {executing.ended(run_id).state for run_id in runs} == {"succeeded"}
        told = [each.getMessage() for each in caplog.records if each.getMessage().startswith(lane)]
        # A claim waits a moment only for the lock: before the database is closed, and after it is open, that may end.
        assert sum("lock timeout" in each for each in told) <= 2, told
        told = [each for each in told if "lock timeout" not in each]
    expected = ["terminating connection", "not currently accepting connections", "works again"]
    assert [part in each for part, each in zip(expected, told, strict=True)] == [True] * 3, told
    assert [executing.database.attempts(run_id) for run_id in runs] == [[(1, "succeeded")]] * 20


def let_in(database: Database, info: StackInfo, *, allowed: bool) -> None:
    name = str(conninfo_to_dict(database.url)["dbname"])
    statement = sql.SQL("ALTER DATABASE {} ALLOW_CONNECTIONS {}")
    with psycopg.connect(info.database_url, autocommit=True) as connection:
        connection.execute(statement.format(sql.Identifier(name), sql.Literal(allowed)))
        if not allowed:
            connection.execute(LEAVE, [name])


def committed(kafka: Mapping[str, str], topic: str) -> int:
    client = Consumer({**kafka, "group.id": f"{topic}.executors"})
    [partition] = client.committed([TopicPartition(topic, 0)], timeout=30)
    client.close()
    return partition.offset


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
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


@pytest.mark.landing
def test_group_protocol_may_change_between_releases(executing: Executing) -> None:
    """The offsets stay: what was claimed is not read again, what was not is."""
    executing.with_topics()
    for protocol in ("classic", "consumer", "classic"):
        waiting = executing.trigger("acts.echo", protocol)
        executing.publish(waiting)
        with executing.running(executor_group=protocol, **NO_SWEEP):
            assert executing.ended(waiting).state == "succeeded"
            assert executing.database.value("SELECT group_protocol FROM executors") == protocol


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_partitions_are_read_after_their_offsets_were_refused(
    executing: Executing, protocol: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A restarted broker refuses them for a moment."""
    executing.with_topics()
    with closing(StaleCoordinator(int(executing.kafka["bootstrap.servers"].rpartition(":")[2]))) as proxy:
        proxy.refusals = 1000
        executing.kafka = {**executing.kafka, "bootstrap.servers": f"127.0.0.1:{proxy.port}"}
        with executing.running(executor_group=protocol, **NO_SWEEP):
            until(lambda: 'runs.standard.executors": Broker: Not coordinator' in caplog.text, "offsets are refused")
            proxy.refusals = 0
            waiting = executing.trigger("acts.echo", protocol)
            executing.publish(waiting)
            assert executing.ended(waiting).state == "succeeded"


EACH = 8  # messages in each of two partitions


@dataclass
class Reading:
    """The offsets of a consumer that has read both partitions of a topic."""

    topic: str
    client: Consumer
    offsets: Offsets
    fetched: dict[int, list[Message]]

    def note(self, *parts: tuple[int, int, int]) -> None:
        """Note a batch: of each partition the messages from the first, before the last."""
        self.offsets.note([each for number, first, last in parts for each in self.fetched[number][first:last]])

    def committed(self) -> list[int | None]:
        found = self.client.committed([TopicPartition(self.topic, partition) for partition in (0, 1)], timeout=30)
        return [each.offset if each.offset >= 0 else None for each in found]

    def read(self) -> bool:
        for message in self.client.consume(100, 0.2):
            assert message.error() is None
            self.fetched[message.partition() or 0].append(message)
        return all(len(each) == EACH for each in self.fetched.values())


@pytest.fixture
def reading(info: StackInfo) -> Iterator[Reading]:
    topic = f"offsets-{uuid4().hex[:8]}"
    make_topics(info.kafka, [topic], partitions=2)
    producer = Producer({**info.kafka})
    for partition in (0, 1):
        for number in range(EACH):
            producer.produce(topic, value=b"%d" % number, partition=partition)
    assert producer.flush(30) == 0
    client = consumer(dict(info.kafka), group=f"g-{uuid4().hex[:8]}", role="test", protocol="classic")
    client.assign([TopicPartition(topic, partition, 0) for partition in (0, 1)])
    made = Reading(topic, client, Offsets(client, topic), {0: [], 1: []})
    until(made.read, "both partitions are read")
    made.offsets.assign([0, 1])
    yield made
    client.close()


def test_latest_offset_of_each_partition_is_committed(reading: Reading) -> None:
    reading.note((0, 0, 3), (1, 0, 5))
    reading.note((0, 3, 6))
    assert reading.committed() == [None, None]
    reading.offsets.commit()
    until(lambda: reading.committed() == [6, 5], "it is committed")


def test_offsets_are_committed_periodically(reading: Reading, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(offsets, "monotonic_seconds", lambda: now)
    reading.note((0, 0, 1))
    reading.offsets.commit_if_due()
    until(lambda: reading.committed() == [1, None], "the first is committed at once")
    reading.note((0, 1, 2))
    reading.offsets.commit_if_due()
    now += 0.1
    reading.note((0, 2, 3))
    reading.offsets.commit_if_due()
    assert reading.committed() == [1, None]
    now += 0.11
    reading.offsets.commit_if_due()
    until(lambda: reading.committed() == [3, None], "the rest is committed together")


def test_older_message_does_not_lower_an_offset(reading: Reading) -> None:
    reading.note((0, 0, 5))
    reading.note((0, 1, 2))  # one that was left before
    reading.offsets.commit()
    until(lambda: reading.committed() == [5, None], "the newest is committed")


def test_offset_stays_before_a_message_that_waits(reading: Reading) -> None:
    kept = {0: 2}
    guarded = Offsets(reading.client, reading.topic, lambda: kept)
    guarded.assign([0, 1])
    guarded.note([*reading.fetched[0][:6], *reading.fetched[1][:6]])
    guarded.commit()
    until(lambda: reading.committed() == [2, 6], "the first of them is not passed")
    kept.clear()
    guarded.commit()
    until(lambda: reading.committed() == [6, 6], "the rest follows")


def test_revoked_partition_is_not_committed(reading: Reading) -> None:
    reading.note((0, 0, 2), (1, 0, 2))
    reading.offsets.drop({0})
    reading.note((0, 2, 3))
    reading.offsets.commit()
    until(lambda: reading.committed() == [None, 2], "the other one is committed")


@pytest.mark.landing
@pytest.mark.parametrize("messages", [1, 3, 50])
def test_batch_that_cannot_be_unpacked_is_stepped_over(reading: Reading, info: StackInfo, messages: int) -> None:
    sizes = {"message.max.bytes": 1_000_000_000, "batch.size": 1_000_000_000, "linger.ms": 500}
    producer = Producer({**info.kafka, **sizes, "compression.type": "zstd"})
    for _ in range(messages):
        producer.produce(reading.topic, bytes(60_000_000 // messages), partition=0)
    assert producer.flush(60) == 0
    for number in range(messages):  # as many as a step may skip
        producer.produce(reading.topic, b"%d" % number, partition=0)
        producer.produce(reading.topic, b"other", partition=1)
    assert producer.flush(60) == 0
    found: set[int | None] = set()

    def reads_on() -> bool:
        for message in reading.offsets.step_over(reading.client.consume(100, 0.2)):
            assert message.error() is None
            found.add(message.partition())
        return found == {0, 1}

    until(reads_on, "messages behind it are read")
