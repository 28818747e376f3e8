"""Runs that executors cannot take yet stay in the outbox, and leave by tenant."""

from collections import Counter
from uuid import uuid4

import pytest

from tests.fixtures.database import Database
from tests.fixtures.services import until
from tests.relay.relaying import Relaying
from tidewheel.local.stack import StackInfo
from tidewheel.outbox import OutboxRow
from tidewheel.process.service import Shutdown

pytestmark = pytest.mark.kafka

UNSERVED = 64  # what leaves for a queue without an executor


@pytest.fixture
def relaying(database: Database, info: StackInfo) -> Relaying:
    return Relaying(database, info.kafka)


def runs(relaying: Relaying, topic: str, tenant: str, count: int, **fields: object) -> list[OutboxRow]:
    """Messages of runs that are claimed at once: none of them is open."""
    return [
        relaying.row(topic, tenant.encode(), str(uuid4()).encode(), tenant=tenant, shard=number % 64, **fields)
        for number in range(count)
    ]


def open_runs(database: Database, rows: list[OutboxRow]) -> None:
    """Make them open, so that no executor has claimed them."""
    database.execute(
        "INSERT INTO job_runs (run_id, job_id, tenant, shard, queue, lane, handler, cause, overlap, state,"
        " job_version, scheduled_at, publish_at, created_at)"
        " SELECT run_id, run_id, 'a', 0, 'default', 'standard', 'h', 'trigger', 'allow_all', 'queued', 1, %(at)s,"
        " %(at)s, %(at)s FROM unnest(%(run_ids)s::uuid[]) AS run_id",
        {"run_ids": [(row.key or b"").decode() for row in rows], "at": rows[0].publish_at},
    )


def test_tenants_leave_by_weight(relaying: Relaying) -> None:
    topic = relaying.topic("runs.standard")
    relaying.database.execute("INSERT INTO tenants (tenant, weight) VALUES ('b', 2), ('c', 4)")
    for tenant in "abc":
        relaying.write(*runs(relaying, topic, tenant, 900))
    with relaying.running(topic_prefix=relaying.prefix):
        relaying.until_empty()
    values = relaying.values(topic)
    assert Counter(values) == {b"a": 900, b"b": 900, b"c": 900}
    counts = Counter(values[:1400])
    assert [counts[each] for each in (b"a", b"b", b"c")] == pytest.approx([200, 400, 800], rel=0.1)


def test_what_no_executor_takes_stays_in_the_outbox(relaying: Relaying) -> None:
    """Other topics go on. Claims make room, and the newcomer goes before the backlog."""
    topic, other = relaying.topic("runs.standard"), relaying.topic("runs.other.standard")
    burst = runs(relaying, topic, "a", 1000)
    open_runs(relaying.database, burst)
    relaying.write(*burst)
    with relaying.running(topic_prefix=relaying.prefix):
        until(lambda: relaying.left() == 1000 - UNSERVED, "the window is full")
        [newcomer] = runs(relaying, topic, "b", 1)
        open_runs(relaying.database, [newcomer])
        relaying.write(newcomer, *runs(relaying, other, "a", 1))
        until(lambda: len(relaying.arrived(other)) == 1, "the other topic's row has left")
        assert relaying.left() == 1000 - UNSERVED + 1
        first = [one.key.decode() for one in relaying.arrived(topic) if one.key]
        relaying.database.execute("DELETE FROM job_runs WHERE run_id = ANY (%s::uuid[])", [first[:2]])
        until(lambda: b"b" in relaying.values(topic), "the newcomer has left")
        assert len(relaying.arrived(topic)) <= UNSERVED + 2
        relaying.database.execute("DELETE FROM job_runs")
        relaying.until_empty()
    assert Counter(relaying.values(topic)) == {b"a": 1000, b"b": 1}


def test_priority_goes_first(relaying: Relaying) -> None:
    topic = relaying.topic("runs.standard")
    urgent = [row._replace(value=b"urgent") for row in runs(relaying, topic, "a", 1, priority=9)]
    relaying.write(*runs(relaying, topic, "a", 2000, priority=0), *urgent)
    with relaying.running(topic_prefix=relaying.prefix):
        relaying.until_empty()
    assert relaying.values(topic).index(b"urgent") < UNSERVED


def test_frozen_runs_hold_nothing_back(relaying: Relaying) -> None:
    topic = relaying.topic("runs.standard")
    burst = runs(relaying, topic, "a", 300)
    open_runs(relaying.database, burst)
    relaying.database.execute("INSERT INTO freezes (tenant) VALUES ('a')")
    relaying.write(*burst)
    with relaying.running(topic_prefix=relaying.prefix):
        relaying.until_empty()


def test_relay_that_stops_while_holding_loses_nothing(relaying: Relaying) -> None:
    """The next relay reads the rows again, since what is staged is in memory alone."""
    topic = relaying.topic("runs.standard")
    burst = runs(relaying, topic, "a", 500)
    open_runs(relaying.database, burst)
    relaying.write(*burst)
    relay = relaying.make(Shutdown(), topic_prefix=relaying.prefix)
    relay.enter()
    try:
        until(lambda: relay.step() >= 0 and relaying.left() == 500 - UNSERVED, "the window is full")
    finally:
        relay.leave()
    relaying.database.execute("DELETE FROM job_runs")
    with relaying.running(topic_prefix=relaying.prefix):
        relaying.until_empty()
    assert Counter(one.key for one in relaying.arrived(topic)) == {row.key: 1 for row in burst}


def test_off_publishes_all_at_once(relaying: Relaying) -> None:
    topic = relaying.topic("runs.standard")
    burst = runs(relaying, topic, "a", 500)
    open_runs(relaying.database, burst)
    relaying.write(*burst)
    with relaying.running(topic_prefix=relaying.prefix, fairness="off"):
        relaying.until_empty()
