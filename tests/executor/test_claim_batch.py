"""Batches of messages: which runs are claimed, and which are left for an existing slot."""

from collections.abc import Sequence

import pytest
from confluent_kafka import Consumer, Message

from tests.executor.handlers import handlers
from tests.executor.running import Executing
from tests.fixtures.database import Database
from tests.transitions.acts import EXECUTOR
from tidewheel.executor.claim import BatchClaimer, ClaimedRun, Claimer
from tidewheel.executor.message_check import MessageCheck
from tidewheel.local.stack import StackInfo
from tidewheel.message_signatures import MessageKeys
from tidewheel.process.service import Shutdown

pytestmark = pytest.mark.kafka

ENTER = (
    "INSERT INTO executors (executor_id, name, queues, handlers, slots, last_heartbeat_at, started_at)"
    " VALUES (%s, 'mine', '{default}', '{}', 1, now(), now())"
)
ONCE = {"delivery": "at_most_once"}


@pytest.fixture
def executing(database: Database, info: StackInfo) -> Executing:
    made = Executing(database, info.kafka)
    made.make_topics()
    database.execute(ENTER, [EXECUTOR])
    return made


def test_at_most_once_runs_are_never_overcommitted(executing: Executing) -> None:
    """If the process died, it would be unknown whether a queued one had started."""
    plain = {executing.trigger("acts.echo", number) for number in range(2)}
    once = {executing.trigger("acts.echo", number, **ONCE) for number in range(3)}
    for run_id in plain | once:
        executing.publish(run_id)
    messages = _read(executing, 5)
    begun: list[ClaimedRun] = []
    claimer = _batch_claimer(executing, begun)
    started, left = claimer.claim(claimer.decode(messages), real=1)
    assert (started, len(left)) == (3, 2)
    assert {one.run_id for one, _, _ in begun} > plain
    assert claimer.claim(left, real=2) == (2, [])
    assert {one.run_id for one, _, _ in begun} == plain | once
    claimer.close()


def test_message_with_an_invalid_run_id_is_skipped(executing: Executing) -> None:
    good = executing.trigger("acts.echo", 1)
    for bad in ("f" * 36, "-" * 36, "", "no run"):
        run_id = executing.trigger("acts.echo", 2)
        value = executing.database.value("SELECT value FROM outbox WHERE key = %s", [str(run_id).encode()])
        damaged = value.replace(bytes([72]) + str(run_id).encode(), bytes([2 * len(bad)]) + bad.encode(), 1)
        executing.database.execute("UPDATE outbox SET value = %s WHERE key = %s", [damaged, str(run_id).encode()])
        executing.publish(run_id)
    executing.publish(good)
    begun: list[ClaimedRun] = []
    claimer = _batch_claimer(executing, begun)
    assert claimer.claim(claimer.decode(_read(executing, 5)), real=5) == (1, [])
    assert [one.run_id for one, _, _ in begun] == [good]
    claimer.close()


def _batch_claimer(executing: Executing, begun: list[ClaimedRun]) -> BatchClaimer:
    claimer = Claimer(
        executing.database.session(),
        executing.database.installation,
        EXECUTOR,
        Shutdown(),
        lease_lost=lambda: None,
        notify=lambda _: None,
    )
    topic = executing.topics.runs("default", "standard")
    keys = MessageKeys()
    with executing.database.transaction() as connection:
        keys.refresh(connection)
    check = MessageCheck(keys, "refuse")
    return BatchClaimer(topic, claimer=claimer, check=check, handlers=frozenset(handlers()), start=begun.extend)


def _read(executing: Executing, count: int) -> Sequence[Message]:
    topic = executing.topics.runs("default", "standard")
    config = {**executing.kafka, "group.id": f"{topic}.test", "auto.offset.reset": "earliest"}
    consumer = Consumer(config)
    consumer.subscribe([topic])
    found: list[Message] = []
    while len(found) < count:
        found += consumer.consume(count - len(found), 1.0)
    consumer.close()
    return found
