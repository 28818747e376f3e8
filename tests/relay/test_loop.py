"""Outbox rows become Kafka messages: acknowledged, then deleted, in order per run, at their time."""

import logging
from collections import Counter
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from tests.fixtures.database import ClockedDatabase, Database
from tests.fixtures.services import until
from tests.relay.relaying import Relaying
from tests.transitions.stepping import in_background
from tidewheel.local.stack import StackInfo
from tidewheel.membership import Membership, rendezvous
from tidewheel.outbox import SLICES, OutboxLane, append
from tidewheel.postgres.notify import Channel, Notifier
from tidewheel.process.service import Shutdown

pytestmark = pytest.mark.kafka

SECOND = timedelta(seconds=1)
PATIENT = timedelta(minutes=1)  # a machine that stalls for less moves no slice


def quarantined(database: Database) -> list[tuple[str, bytes | None]]:
    return [(str(error), value) for error, value in database.rows("SELECT error, value FROM quarantine ORDER BY id")]


def test_row_is_published_with_key_value_headers_then_deleted(relaying: Relaying) -> None:
    topic = relaying.topic("a")
    relaying.write(
        relaying.row(topic, b"value", b"key", headers=(("ce_id", b"1"), ("content-type", b"application/avro"))),
        relaying.row(topic, None, None),
    )
    relaying.drain()
    first, second = relaying.arrived(topic)
    assert (first.key, first.value) == (b"key", b"value")
    assert first.headers == [("ce_id", b"1"), ("content-type", b"application/avro")]
    assert (second.key, second.value, second.headers) == (None, None, [])


def test_rows_of_every_slice_and_lane_are_published(relaying: Relaying) -> None:
    topic = relaying.topic("a", partitions=3)
    rows = [
        relaying.row(topic, f"{shard}-{name}".encode(), shard=shard, lane=name)
        for shard in range(64)
        for name in OutboxLane
    ]
    relaying.write(*rows)
    relaying.drain()
    assert sorted(relaying.values(topic), key=str) == sorted((row.value for row in rows), key=str)


def test_messages_of_one_run_keep_order(relaying: Relaying) -> None:
    """Also over many batches, and among messages of other runs."""
    topic = relaying.topic("a", partitions=4)
    for number in range(30):
        relaying.write(*(relaying.row(topic, str(number).encode(), f"run-{n}".encode(), shard=n) for n in range(20)))
    relaying.drain(relay_batch=150)
    by_run: dict[bytes | None, list[int]] = {}
    for one in relaying.arrived(topic):
        by_run.setdefault(one.key, []).append(int(one.value or b""))
    assert by_run == {f"run-{n}".encode(): list(range(30)) for n in range(20)}


def test_delayed_row_is_published_at_its_time(clocked: ClockedDatabase, info: StackInfo) -> None:
    """Between the first and the last instants that rows may have; the clock is stopped until a row is due."""
    clocked.stop_clock()
    relaying = Relaying(clocked, info.kafka)
    topic = relaying.topic("a")
    at = relaying.due_at(SECOND)
    instants = {b"later": at, b"now": relaying.began_at, b"future": datetime(9999, 1, 1, tzinfo=UTC)}
    instants[b"past"] = datetime(1970, 1, 1, tzinfo=UTC)
    relaying.write(*(relaying.row(topic, value, publish_at=instant) for value, instant in instants.items()))
    with relaying.running(relay_poll=timedelta(days=1)):
        until(lambda: relaying.left() == 2, "those that are due leave")
        assert sorted(relaying.values(topic), key=str) == [b"now", b"past"]
        clocked.advance(SECOND)
        until(lambda: relaying.left() == 1, "the other has become due")
    assert relaying.values(topic)[2:] == [b"later"]


def test_notification_wakes_relay(relaying: Relaying) -> None:
    """With a poll of a day only the notification can wake it."""
    topic = relaying.topic("a")
    notifier = Notifier(relaying.database.url, "test")
    with relaying.running(relay_poll=timedelta(days=1)):
        until(lambda: relaying.database.count("members") == 1, "it has entered")
        relaying.write(relaying.row(topic))

        def gone() -> bool:
            notifier.notify(Channel.OUTBOX)
            return relaying.left() == 0

        until(gone, "it leaves")
    notifier.close()


def test_refused_row_is_quarantined_and_neighbours_published(relaying: Relaying) -> None:
    """A refused record fails the whole batch it travels in: both are found by bisection."""
    topic = relaying.compacted_topic("a")
    rows = [relaying.row(topic, str(number).encode(), str(number).encode()) for number in range(20)]
    bad, other = (relaying.row(topic, value, None, headers=(("a", b"1"),)) for value in (b"bad 1", b"bad 2"))
    relaying.write(*rows[:10], bad, *rows[10:12], other, *rows[12:])
    relaying.drain()
    assert list(dict.fromkeys(relaying.values(topic))) == [row.value for row in rows]
    assert [("validate" in error, value) for error, value in quarantined(relaying.database)] == [
        (True, b"bad 1"),
        (True, b"bad 2"),
    ]
    found = relaying.database.rows("SELECT kind, topic, key, headers FROM quarantine")
    assert found == [("outbox", topic, None, [b"a", b"1"])] * 2


def test_missing_topic_is_paused_by_itself(relaying: Relaying) -> None:
    topic = relaying.topic("a")
    missing = f"{relaying.prefix}.missing"
    relaying.write(*(relaying.row(name, name.encode()) for name in (missing, topic, missing, topic)))
    with relaying.running():
        until(lambda: relaying.left() == 2, "the others leave")
        relaying.write(relaying.row(topic, b"behind"))
        until(lambda: relaying.left() == 2, "and go on leaving")
    assert relaying.values(topic) == [topic.encode(), topic.encode(), b"behind"]
    assert {name for (name,) in relaying.database.rows("SELECT topic FROM outbox")} == {missing}
    assert quarantined(relaying.database) == []


def test_deleted_topic_is_paused_and_rows_kept(relaying: Relaying, caplog: pytest.LogCaptureFixture) -> None:
    """The producer knows that it is gone and refuses at once: not an error of the row."""
    gone, topic = relaying.topic("gone"), relaying.topic("a")
    relaying.client = {"topic.metadata.refresh.interval.ms": "200", "topic.metadata.propagation.max.ms": "100"}
    with caplog.at_level(logging.ERROR, "tidewheel.relay"), relaying.running():
        relaying.write(relaying.row(gone, b"1"))
        relaying.until_empty()
        relaying.delete_topic(gone)

        def parked() -> bool:
            relaying.write(relaying.row(gone, b"kept"), relaying.row(topic, b"other"))
            return f"topic {gone} is paused" in caplog.text

        until(parked, "it is paused")
        until(
            lambda: relaying.database.value("SELECT count(*) FROM outbox WHERE topic = %s", [topic]) == 0, "others go"
        )
    assert quarantined(relaying.database) == []
    assert relaying.left() > 0


def test_run_messages_without_topic_are_dropped(relaying: Relaying) -> None:
    """Such a queue is served by the sweep, which reads the table of open runs."""
    topic = relaying.topic("a")
    relaying.write(relaying.row(f"{relaying.prefix}.runs.reports.standard"), relaying.row(topic))
    relaying.drain(topic_prefix=relaying.prefix)
    assert relaying.values(topic) == [b"v"]
    assert quarantined(relaying.database) == []


def test_row_of_late_commit_is_published(relaying: Relaying) -> None:
    """Ids and publish_at are taken before the commit: later ones left long ago when these become visible."""
    topic = relaying.topic("a")
    late = relaying.database.connection()
    before = relaying.due_at(timedelta(minutes=-5))
    append(late, [relaying.row(topic, b"late", b"late", publish_at=before)], shards=64)
    with relaying.running():
        for number in range(5):
            relaying.write(relaying.row(topic, str(number).encode()))
            relaying.until_empty()
            late.execute("SELECT")  # PostgreSQL ends a transaction that is idle for 10 s
        late.commit()
        relaying.until_empty()
    assert relaying.values(topic) == [b"0", b"1", b"2", b"3", b"4", b"late"]


def test_open_transaction_elsewhere_does_not_stop_relay(relaying: Relaying) -> None:
    """It keeps dead rows from being vacuumed; the relay reads from behind its low-water mark."""
    topic = relaying.topic("a")
    sleeper = relaying.database.connection()
    sleeper.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    sleeper.execute("SELECT count(*) FROM outbox")
    with relaying.running():
        for number in range(4):
            relaying.write(*(relaying.row(topic, f"{number}-{n}".encode()) for n in range(250)))
            relaying.until_empty()
            sleeper.execute("SELECT")  # as above
    assert sleeper.execute("SELECT count(*) FROM outbox").fetchall() == [(0,)]
    sleeper.rollback()
    assert len(set(relaying.values(topic))) == 1000


def test_flood_of_one_lane_does_not_delay_another(relaying: Relaying) -> None:
    """With batches of 200 a thousand batch rows do not delay a critical one."""
    flood, urgent = relaying.topic("flood"), relaying.topic("urgent")
    early = relaying.due_at(timedelta(hours=-1))
    rows = [relaying.row(flood, b"f", lane=OutboxLane.BATCH, publish_at=early) for _ in range(1000)]
    relaying.write(*rows, relaying.row(urgent, b"u", lane=OutboxLane.CRITICAL))
    stop = Shutdown()
    relay = relaying.make(stop, relay_batch=200)
    relay.enter()
    relay.step()
    relay.step()
    assert relaying.values(urgent) == [b"u"]
    assert relaying.left() > 500
    relay.leave()


def test_relays_that_each_think_they_are_alone_share_no_slice(
    relaying: Relaying, monkeypatch: pytest.MonkeyPatch
) -> None:
    def alone(membership: Membership) -> tuple[UUID, ...]:
        return (membership.member_id,)

    monkeypatch.setattr(Membership, "live", alone)
    with relaying.running(member_timeout=PATIENT):
        until(lambda: shares(relaying.database) == [SLICES], "the first has all")
        before = holders(relaying.database)
        topic = relaying.topic("a")
        with relaying.running(member_timeout=PATIENT):
            until(lambda: relaying.database.count("members") == 2, "both have entered")
            relaying.write(*(relaying.row(topic, str(n).encode(), shard=n) for n in range(64)))
            relaying.until_empty()
            assert holders(relaying.database) == before


def test_relay_leaves_the_slices_of_one_of_0_1_alone(relaying: Relaying) -> None:
    old = relaying.database.connection(autocommit=True)
    old.execute("SELECT pg_advisory_lock(hashtext('tidewheel.relay'), 3)")
    with relaying.running():
        until(lambda: len(holders(relaying.database)) == SLICES - 1, "it has the others")
        assert 3 not in dict(holders(relaying.database))
        old.close()
        until(lambda: len(holders(relaying.database)) == SLICES, "it has all once the other ends")


def shares(database: Database) -> list[int]:
    return sorted(Counter(member for _, member in holders(database)).values(), reverse=True)


def expected(database: Database) -> list[int]:
    """Count the slices of each member's share, largest first."""
    members = sorted(member for (member,) in database.rows("SELECT member_id FROM members"))
    return sorted(filter(None, (len(rendezvous(SLICES, members, me)) for me in members)), reverse=True)


def holders(database: Database) -> list[tuple[int, UUID]]:
    return database.rows("SELECT slice, member_id FROM relay_slices WHERE member_id IN (SELECT member_id FROM members)")


def test_two_relays_publish_each_row_once_and_take_over_slices(relaying: Relaying) -> None:
    topic = relaying.topic("a", partitions=4)
    with relaying.running(member_timeout=PATIENT), relaying.running(member_timeout=PATIENT):
        until(lambda: shares(relaying.database) == expected(relaying.database), "each has its share")
        for number in range(20):
            relaying.write(*(relaying.row(topic, f"{number}-{n}".encode(), shard=n) for n in range(64)))
        relaying.until_empty()
        values = relaying.values(topic)
        assert len(values) == len(set(values)) == 20 * 64
        relaying.database.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
            " AND application_name = 'tidewheel-relay-slices'"
        )
        relaying.write(*(relaying.row(topic, str(n).encode(), shard=n) for n in range(64)))
        relaying.until_empty()
    assert len(set(relaying.values(topic))) == 21 * 64


def test_stopping_relay_publishes_batch_in_flight(relaying: Relaying) -> None:
    topic = relaying.topic("a")
    relaying.write(*(relaying.row(topic, str(n).encode(), shard=n % 64) for n in range(2000)))
    stop = Shutdown()
    ended = in_background(relaying.make(stop, relay_batch=400).run)
    until(lambda: relaying.left() < 2000, "some have left")
    stop.request()
    ended.result(30)
    left = {value for (value,) in relaying.database.rows("SELECT value FROM outbox")}
    assert set(relaying.values(topic)) | left == {str(n).encode() for n in range(2000)}
    assert relaying.database.count("members") == 0


def test_run_messages_are_signed_and_no_others(relaying: Relaying) -> None:
    runs, events = relaying.topic("runs.standard"), relaying.topic("events")
    given = [("traceparent", b"00-1")]
    relaying.write(
        relaying.row(runs), relaying.row(runs, headers=given, value=b"w"), relaying.row(events, headers=given)
    )
    relaying.drain(topic_prefix=relaying.prefix)
    first, second = relaying.arrived(runs)
    assert first.headers == relaying.database.signed(runs, b"k", b"v")
    assert second.headers == [*given, *relaying.database.signed(runs, b"k", b"w")]
    assert [one.headers for one in relaying.arrived(events)] == [given]


def test_relay_without_a_key_publishes_nothing_until_there_is_one(relaying: Relaying) -> None:
    database, topic = relaying.database, relaying.topic("runs.standard")
    database.execute("CREATE TABLE kept AS TABLE message_keys")
    database.execute("DELETE FROM message_keys")
    relaying.write(relaying.row(topic))
    with relaying.running(topic_prefix=relaying.prefix):
        database.execute("INSERT INTO message_keys OVERRIDING SYSTEM VALUE TABLE kept")
        relaying.until_empty()
    assert relaying.arrived(topic)[0].headers == database.signed(topic, b"k", b"v")


REFUSE_DELETING = """
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'not now'; END $$;
CREATE TRIGGER refuse BEFORE DELETE ON outbox FOR EACH ROW EXECUTE FUNCTION refuse();
"""


def test_failed_deletion_is_retried_without_second_publish(
    relaying: Relaying, caplog: pytest.LogCaptureFixture
) -> None:
    topic = relaying.compacted_topic("a")
    relaying.database.execute(REFUSE_DELETING)
    relaying.write(relaying.row(topic, b"1"), relaying.row(topic, b"bad", None), relaying.row(topic, b"2"))
    with caplog.at_level(logging.WARNING), relaying.running():
        until(lambda: "not now" in caplog.text, "it could not be deleted")
        relaying.write(relaying.row(topic, b"3"))
        assert relaying.left() == 4
        relaying.database.execute("DROP TRIGGER refuse ON outbox")
        relaying.until_empty()
    # The search for the refused one has sent its neighbours twice; nothing came after it but what is new.
    assert len(relaying.values(topic)) <= 5
    assert set(relaying.values(topic)) == {b"1", b"2", b"3"}
    assert relaying.database.count("quarantine") == 1
