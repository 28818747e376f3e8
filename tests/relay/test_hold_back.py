"""Runs that executors cannot take yet stay in the outbox, and leave by tenant."""

from collections import Counter
from datetime import timedelta
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fixtures.database import Database
from tests.fixtures.examples import examples
from tests.fixtures.services import until
from tests.relay.relaying import Relaying
from tidewheel.outbox import SLICES, OutboxRow
from tidewheel.process.service import Shutdown
from tidewheel.relay.outbox_rows import ID, KEY, TOPIC, Published
from tidewheel.relay.read import Reader

pytestmark = pytest.mark.kafka

UNSERVED = 64  # what leaves for a queue without an executor


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


def backlog(relaying: Relaying, topic: str, count: int) -> list[OutboxRow]:
    burst = runs(relaying, topic, "a", count)
    open_runs(relaying.database, burst)
    relaying.write(*burst)
    return burst


def read(reader: Reader, database: Database) -> list[bytes | None]:
    batch = reader.read([*range(SLICES)], [], [])
    database.execute("DELETE FROM outbox WHERE id = ANY (%s)", [[int.from_bytes(row[ID]) for row in batch.rows]])
    reader.acknowledged(batch, Published([*batch.rows]))
    return [row[KEY] for row in batch.rows]


def test_tenants_leave_by_weight(relaying: Relaying) -> None:
    topic = relaying.topic("runs.standard")
    relaying.database.execute("INSERT INTO tenants (tenant, weight) VALUES ('b', 2), ('c', 4)")
    for tenant in "abc":
        relaying.write(*runs(relaying, topic, tenant, 900))
    relaying.drain(topic_prefix=relaying.prefix)
    values = relaying.values(topic)
    assert Counter(values) == {b"a": 900, b"b": 900, b"c": 900}
    counts = Counter(values[:1400])
    assert [counts[each] for each in (b"a", b"b", b"c")] == pytest.approx([200, 400, 800], rel=0.1)


def test_what_no_executor_takes_stays_in_the_outbox(relaying: Relaying) -> None:
    """Other topics go on. Claims make room, and the newcomer goes before the backlog."""
    topic, other = relaying.topic("runs.standard"), relaying.topic("runs.other.standard")
    backlog(relaying, topic, 1000)
    with relaying.running(topic_prefix=relaying.prefix):
        until(lambda: relaying.left() == 1000 - UNSERVED, "the window is full")
        [newcomer] = runs(relaying, topic, "b", 1)
        open_runs(relaying.database, [newcomer])
        relaying.write(newcomer, *runs(relaying, other, "a", 1))
        of_other = "SELECT count(*) FROM outbox WHERE topic = %s"
        until(lambda: relaying.database.value(of_other, [other]) == 0, "the other topic's row has left")
        assert len(relaying.arrived(other)) == 1
        assert relaying.left() == 1000 - UNSERVED + 1
        first = [one.key.decode() for one in relaying.arrived(topic) if one.key]
        relaying.database.execute("DELETE FROM job_runs WHERE run_id = ANY (%s::uuid[])", [first[:2]])
        until(lambda: b"b" in relaying.values(topic), "the newcomer has left")
        assert len(relaying.arrived(topic)) <= UNSERVED + 2
        relaying.database.execute("DELETE FROM job_runs")
        relaying.until_empty()
    assert Counter(relaying.values(topic)) == {b"a": 1000, b"b": 1}


def test_late_runs_are_seen_while_their_topic_is_held_back(relaying: Relaying) -> None:
    """They are committed 10 s and an hour after their times, behind the marks.

    Meanwhile the relay's row has what is held back.
    """
    topic = relaying.topic("runs.standard")
    backlog(relaying, topic, 1000)
    with relaying.running(topic_prefix=relaying.prefix):
        until(lambda: relaying.left() == 1000 - UNSERVED, "the window is full")
        late = [
            row
            for tenant, seconds in (("b", 10), ("c", 3600))
            for row in runs(relaying, topic, tenant, 1, publish_at=relaying.due_at(-timedelta(seconds=seconds)))
        ]
        open_runs(relaying.database, late)
        relaying.write(*late)

        def late_have_left() -> bool:
            first = next(one.key.decode() for one in reversed(relaying.arrived(topic)) if one.key)
            relaying.database.execute("DELETE FROM job_runs WHERE run_id = %s::uuid", [first])
            return {b"b", b"c"} <= {*relaying.values(topic)}

        until(late_have_left, "the late runs have left")
        assert relaying.left() > 500

        def is_reported() -> bool:
            [[held]] = relaying.database.rows("SELECT held FROM members")
            if not held:
                return False
            assert (held[0]["queue"], held[0]["lane"]) == ("default", "standard")
            return relaying.left() <= held[0]["largest"]["a"] <= 1000  # less until the last that left are deleted

        until(is_reported, "the relay's row has what is held back")
        relaying.database.execute("DELETE FROM job_runs")
        relaying.until_empty()
        until(lambda: relaying.database.rows("SELECT held FROM members") == [(None,)], "nothing is held back")
    assert Counter(relaying.values(topic)) == {b"a": 1000, b"b": 1, b"c": 1}


def test_failure_of_a_topic_leaves_others_held_back(relaying: Relaying) -> None:
    topic = f"{relaying.prefix}.runs.standard"
    backlog(relaying, topic, 1000)
    relaying.write(*runs(relaying, "missing", "a", 1))
    reader = relaying.reader(2000, fair_prefix=f"{relaying.prefix}.runs.")
    batch = reader.read([*range(SLICES)], [], [])
    reader.acknowledged(batch, Published([row for row in batch.rows if row[TOPIC] == topic]))
    assert reader.held_seconds() is not None
    reader.acknowledged(batch, Published([row for row in batch.rows if row[TOPIC] != topic]))
    assert reader.held_seconds() is None


def test_window_holds_while_first_marks_are_looked_up(relaying: Relaying, monkeypatch: pytest.MonkeyPatch) -> None:
    """One slice and lane after another joins, and no run of it is lost."""
    monkeypatch.setattr("tidewheel.relay.read._MARKS_SECONDS", 0.0)
    topic = f"{relaying.prefix}.runs.standard"
    burst = backlog(relaying, topic, 1000)
    reader = relaying.reader(2000, fair_prefix=f"{relaying.prefix}.runs.")
    keys: list[bytes | None] = []
    for _ in range(5 * SLICES):
        keys += read(reader, relaying.database)
    assert len(keys) < 300
    relaying.database.execute("DELETE FROM job_runs")

    def all_read() -> bool:
        keys.extend(read(reader, relaying.database))
        return len(keys) >= len(burst)

    until(all_read, "all runs are read")
    assert Counter(keys) == {row.key: 1 for row in burst}


def test_run_of_higher_priority_passes_a_backlog(relaying: Relaying) -> None:
    """It is written last, behind all rows that are read in order."""
    topic = relaying.topic("runs.standard")
    backlog(relaying, topic, 1000)
    with relaying.running(topic_prefix=relaying.prefix):
        until(lambda: relaying.left() == 1000 - UNSERVED, "the window is full")
        [urgent] = [row._replace(value=b"urgent") for row in runs(relaying, topic, "a", 1, priority=9)]
        open_runs(relaying.database, [urgent])
        relaying.write(urgent)
        claimed = 0

        def urgent_has_left() -> bool:
            """Claim one more run. While the window is full, the relay reads new rows once a second."""
            nonlocal claimed
            arrived = relaying.arrived(topic)
            first = (arrived[claimed].key or b"").decode()
            claimed += relaying.database.execute("DELETE FROM job_runs WHERE run_id = %s::uuid", [first])
            return b"urgent" in [one.value for one in arrived]

        until(urgent_has_left, "it has left")
        assert relaying.values(topic).index(b"urgent") < 2 * UNSERVED


def test_order_of_instants_is_kept_among_slices(relaying: Relaying) -> None:
    """One run leaves at a time, and one slice has nearly all."""
    topic = relaying.topic("runs.standard")
    burst = [
        row._replace(value=b"%d" % number, shard=0 if number % 10 else number % 64)
        for number, row in enumerate(
            row
            for second in range(200)
            for row in runs(relaying, topic, "a", 1, publish_at=relaying.due_at(timedelta(seconds=second - 300)))
        )
    ]
    open_runs(relaying.database, burst)
    relaying.write(*burst)
    with relaying.running(topic_prefix=relaying.prefix):
        until(lambda: relaying.left() == 200 - UNSERVED, "the window is full")
        first = [one.key for one in relaying.arrived(topic)]
        for claimed in range(1, 11):
            relaying.database.execute(
                "DELETE FROM job_runs WHERE run_id = %s::uuid", [(first[claimed] or b"").decode()]
            )
            until(lambda: relaying.left() == 200 - UNSERVED - claimed, "one more has left")  # noqa: B023
    order = [int(value or b"-1") for value in relaying.values(topic)]
    assert order[UNSERVED:] == sorted({*range(200)} - {*order[:UNSERVED]})[:10]


STEP = st.tuples(
    st.lists(
        st.tuples(
            st.sampled_from(["a", "a", "a", "b", "c"]),
            st.sampled_from([None, None, None, 0, 9]),
            st.integers(0, 63),
            st.integers(0, 40),
        ),
        max_size=40,
    ),
    st.integers(0, 60),
)


@pytest.mark.landing
@settings(examples(40, quick=3), suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(st.lists(STEP, min_size=2, max_size=6), st.integers(65, 400))
def test_each_run_leaves_once(
    relaying: Relaying, steps: list[tuple[list[tuple[str, int | None, int, int]], int]], first: int
) -> None:
    """Whatever tenants, priorities, slices and times, late ones among them, and however the window opens."""
    database, topic = relaying.database, f"{relaying.prefix}.runs.standard"
    written = Counter(row.key for row in backlog(relaying, topic, first))
    reader = relaying.reader(2000, fair_prefix=f"{relaying.prefix}.runs.")
    left: list[bytes | None] = []
    for rows, claimed in steps:
        left += read(reader, database)
        made = [
            row
            for tenant, priority, shard, age in rows
            for row in runs(relaying, topic, tenant, 1, priority=priority)
            for row in [row._replace(shard=shard, publish_at=relaying.began_at - timedelta(seconds=age))]
        ]
        if made:
            open_runs(database, made)
            relaying.write(*made)
            written.update(row.key for row in made)
        sent = [(key or b"").decode() for key in left]
        database.execute("DELETE FROM job_runs WHERE run_id = ANY (%s::uuid[])", [sent[:claimed]])
    database.execute("DELETE FROM job_runs")

    def all_left() -> bool:
        left.extend(read(reader, database))
        return len(left) >= written.total() and relaying.left() == 0

    until(all_left, "all runs have left")
    assert Counter(left) == written


def test_frozen_runs_hold_nothing_back(relaying: Relaying) -> None:
    topic = relaying.topic("runs.standard")
    relaying.database.execute("INSERT INTO freezes (tenant) VALUES ('a')")
    backlog(relaying, topic, 300)
    relaying.drain(topic_prefix=relaying.prefix)


def test_runs_that_wait_after_their_message_has_left_hold_nothing_back(relaying: Relaying) -> None:
    topic = relaying.topic("runs.standard")
    backlog(relaying, topic, 300)
    relaying.database.execute("UPDATE job_runs SET state = 'buffered', publish_at = 'infinity'")
    relaying.drain(topic_prefix=relaying.prefix)


def test_relay_that_stops_while_holding_loses_nothing(relaying: Relaying) -> None:
    """The next relay reads the rows again, since what is staged is in memory alone."""
    topic = relaying.topic("runs.standard")
    burst = backlog(relaying, topic, 500)
    relay = relaying.make(Shutdown(), topic_prefix=relaying.prefix)
    relay.enter()
    try:
        until(lambda: relay.step() >= 0 and relaying.left() == 500 - UNSERVED, "the window is full")
    finally:
        relay.leave()
    relaying.database.execute("DELETE FROM job_runs")
    relaying.drain(topic_prefix=relaying.prefix)
    assert Counter(one.key for one in relaying.arrived(topic)) == {row.key: 1 for row in burst}


def test_off_publishes_all_at_once(relaying: Relaying) -> None:
    topic = relaying.topic("runs.standard")
    backlog(relaying, topic, 500)
    relaying.drain(topic_prefix=relaying.prefix, fairness="off")
