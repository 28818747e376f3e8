"""Outbox rows become Kafka messages: proven, then deleted; in order per run; none before its time; none left behind."""

import logging
import os
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest

from tests.fixtures.database import Database
from tests.fixtures.services import until
from tests.relay.relaying import Relaying
from tests.transitions.stepping import in_background
from tidewheel.local.stack import StackInfo
from tidewheel.membership import rendezvous
from tidewheel.outbox import SLICES, OutboxLane, append
from tidewheel.postgres.notify import Channel, Notifier
from tidewheel.process.service import Shutdown

pytestmark = pytest.mark.kafka

SECOND = timedelta(seconds=1)


@pytest.fixture
def relaying(database: Database, info: StackInfo) -> Relaying:
    return Relaying(database, info.bootstrap)


def quarantined(database: Database) -> list[tuple[str, bytes | None]]:
    return [(str(error), value) for error, value in database.rows("SELECT error, value FROM quarantine ORDER BY id")]


def test_a_row_arrives_with_key_value_and_headers_and_then_goes(relaying: Relaying) -> None:
    topic = relaying.topic("a")
    relaying.write(
        relaying.row(topic, b"value", b"key", headers=(("ce_id", b"1"), ("content-type", b"application/avro"))),
        relaying.row(topic, None, None),
    )
    with relaying.running():
        relaying.until_empty()
    first, second = relaying.arrived(topic)
    assert (first.key, first.value) == (b"key", b"value")
    assert first.headers == [("ce_id", b"1"), ("content-type", b"application/avro")]
    assert (second.key, second.value, second.headers) == (None, None, [])


def test_rows_of_every_slice_and_class_leave(relaying: Relaying) -> None:
    topic = relaying.topic("a", partitions=3)
    rows = [
        relaying.row(topic, f"{shard}-{name}".encode(), shard=shard, lane=name)
        for shard in range(64)
        for name in OutboxLane
    ]
    relaying.write(*rows)
    with relaying.running():
        relaying.until_empty()
    assert sorted(relaying.values(topic), key=str) == sorted((row.value for row in rows), key=str)


def test_messages_of_one_run_arrive_in_the_order_of_their_writing(relaying: Relaying) -> None:
    """Also over many batches, and beside the messages of others."""
    topic = relaying.topic("a", partitions=4)
    for number in range(30):
        relaying.write(*(relaying.row(topic, str(number).encode(), f"run-{n}".encode(), shard=n) for n in range(20)))
    with relaying.running(relay_batch=150):
        relaying.until_empty()
    by_run: dict[bytes | None, list[int]] = {}
    for one in relaying.arrived(topic):
        by_run.setdefault(one.key, []).append(int(one.value or b""))
    assert by_run == {f"run-{n}".encode(): list(range(30)) for n in range(20)}


def test_a_delayed_row_leaves_at_its_time_and_not_before(relaying: Relaying) -> None:
    topic = relaying.topic("a")
    at = relaying.due_at(SECOND)
    relaying.write(relaying.row(topic, b"later", publish_at=at), relaying.row(topic, b"now"))
    with relaying.running(relay_poll=timedelta(days=1)):
        until(lambda: relaying.left() == 1, "the one that is due leaves")
        assert relaying.values(topic) == [b"now"]
        assert relaying.database.now() < at
        relaying.until_empty()
        assert relaying.database.now() >= at
    assert relaying.values(topic) == [b"now", b"later"]


def test_it_is_woken_by_what_is_written(relaying: Relaying) -> None:
    """With a poll of a day, nothing but the notification can be what woke it."""
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


def test_a_row_that_kafka_refuses_is_set_aside_and_its_neighbours_arrive(relaying: Relaying) -> None:
    """One oversized record fails the whole batch it travels in: it is found by bisection."""
    topic = relaying.topic("a", max_bytes=2000)
    rows = [relaying.row(topic, str(number).encode(), str(number).encode()) for number in range(20)]
    huge = os.urandom(5000)  # lz4 makes it no smaller
    too_large = relaying.row(topic, huge, b"large", headers=(("a", b"1"),))
    relaying.write(*rows[:10], too_large, *rows[10:])
    with relaying.running():
        relaying.until_empty()
    assert set(relaying.values(topic)) == {row.value for row in rows}
    [(error, value)] = quarantined(relaying.database)
    assert ("size" in error.lower(), value) == (True, huge)
    assert relaying.database.rows("SELECT kind, topic, key, headers FROM quarantine") == [
        ("outbox", topic, b"large", [b"a", b"1"])
    ]


def test_two_bad_rows_under_one_key_are_found_and_the_good_ones_of_that_key_arrive(relaying: Relaying) -> None:
    topic = relaying.topic("a", max_bytes=2000)
    huge = [os.urandom(5000), os.urandom(5000)]
    values = [b"1", huge[0], b"2", huge[1], b"3"]
    relaying.write(*(relaying.row(topic, value, b"one key") for value in values))
    with relaying.running():
        relaying.until_empty()
    arrived = relaying.values(topic)
    assert list(dict.fromkeys(arrived)) == [b"1", b"2", b"3"]
    assert [value for _, value in quarantined(relaying.database)] == huge


def test_a_row_too_large_for_any_client_is_set_aside(relaying: Relaying) -> None:
    topic = relaying.topic("a")
    relaying.write(relaying.row(topic, b"1"), relaying.row(topic, b"x" * (3 << 20)), relaying.row(topic, b"2"))
    with relaying.running():
        relaying.until_empty()
    assert relaying.values(topic) == [b"1", b"2"]
    assert len(quarantined(relaying.database)) == 1


def test_a_topic_that_is_not_there_is_parked_alone(relaying: Relaying) -> None:
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


def test_a_topic_that_was_deleted_under_the_relay_is_parked_and_its_rows_are_kept(
    relaying: Relaying, caplog: pytest.LogCaptureFixture
) -> None:
    """The producer knows by itself that it is gone, and refuses at once: that is no fault of the row."""
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


def test_a_topic_that_came_meanwhile_is_served_again(relaying: Relaying, caplog: pytest.LogCaptureFixture) -> None:
    missing = f"{relaying.prefix}.missing"
    relaying.write(relaying.row(missing, b"1"))
    with caplog.at_level(logging.ERROR, "tidewheel.relay"), relaying.running():
        until(lambda: f"topic {missing} is paused" in caplog.text, "it is paused")
        relaying.topic("missing")
        relaying.until_empty()
    assert relaying.values(missing) == [b"1"]


def test_messages_of_a_queue_without_topics_do_not_lie_in_the_outbox(relaying: Relaying) -> None:
    """Such a queue is served by the sweep, which reads the table of open runs."""
    topic = relaying.topic("a")
    relaying.write(relaying.row(f"{relaying.prefix}.runs.reports.standard"), relaying.row(topic))
    with relaying.running(topic_prefix=relaying.prefix):
        relaying.until_empty()
    assert relaying.values(topic) == [b"v"]
    assert quarantined(relaying.database) == []


def test_what_a_late_committer_wrote_earlier_still_leaves(relaying: Relaying) -> None:
    """Ids and publish_at are taken before the commit: later ones left long ago when these become visible."""
    topic = relaying.topic("a")
    late = relaying.database.connection()
    before = relaying.due_at(timedelta(minutes=-5))
    append(late, [relaying.row(topic, b"late", b"late", publish_at=before)], shards=64)
    with relaying.running():
        for number in range(5):
            relaying.write(relaying.row(topic, str(number).encode()))
            relaying.until_empty()
        late.commit()
        relaying.until_empty()
    assert relaying.values(topic) == [b"0", b"1", b"2", b"3", b"4", b"late"]


def test_a_transaction_left_open_elsewhere_stops_nothing(relaying: Relaying) -> None:
    """It keeps dead rows from being vacuumed; the relay reads from behind its low-water mark."""
    topic = relaying.topic("a")
    sleeper = relaying.database.connection()
    sleeper.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    sleeper.execute("SELECT count(*) FROM outbox")
    with relaying.running():
        for number in range(4):
            relaying.write(*(relaying.row(topic, f"{number}-{n}".encode()) for n in range(250)))
            relaying.until_empty()
    assert sleeper.execute("SELECT count(*) FROM outbox").fetchall() == [(0,)]
    sleeper.rollback()
    assert len(set(relaying.values(topic))) == 1000


def test_a_flood_of_one_class_does_not_hold_up_another(relaying: Relaying) -> None:
    """With a batch of 200, two of a thousand batch rows are not in front of what is critical."""
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


def test_two_relays_publish_each_row_once(relaying: Relaying) -> None:
    topic = relaying.topic("a", partitions=4)
    with relaying.running(), relaying.running():
        until(lambda: relaying.database.count("members") == 2, "both have entered")
        for number in range(20):
            relaying.write(*(relaying.row(topic, f"{number}-{n}".encode(), shard=n) for n in range(64)))
        relaying.until_empty()
    values = relaying.values(topic)
    assert len(values) == len(set(values)) == 20 * 64


def test_a_slice_is_carried_by_one_relay_at_a_time(relaying: Relaying) -> None:
    with relaying.running(), relaying.running():
        until(lambda: relaying.database.count("members") == 2, "both have entered")
        until(lambda: shares(relaying.database) == expected(relaying.database), "each has its share")


def shares(database: Database) -> list[int]:
    """How many slices each session holds, largest first."""
    return sorted(Counter(pid for _, pid in holders(database)).values(), reverse=True)


def expected(database: Database) -> list[int]:
    """How many slices fall to each member, largest first."""
    members = sorted(member for (member,) in database.rows("SELECT member_id FROM members"))
    return sorted(filter(None, (len(rendezvous(SLICES, members, me)) for me in members)), reverse=True)


def holders(database: Database) -> list[tuple[int, int]]:
    return [
        (number, pid)
        for number, pid in database.rows(
            "SELECT objid::int, pid FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 2"
            " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
        )
    ]


def test_the_slices_of_a_relay_that_was_lost_go_to_the_other(relaying: Relaying) -> None:
    topic = relaying.topic("a")
    with relaying.running(), relaying.running():
        until(lambda: shares(relaying.database) == expected(relaying.database), "each has its share")
        relaying.database.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
            " AND application_name = 'tidewheel-relay-slices'"
        )
        relaying.write(*(relaying.row(topic, str(n).encode(), shard=n) for n in range(64)))
        relaying.until_empty()
    assert len(set(relaying.values(topic))) == 64


def test_a_relay_that_stops_has_published_what_it_had_read(relaying: Relaying) -> None:
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


def test_the_far_past_and_the_far_future_are_read_right(relaying: Relaying) -> None:
    topic = relaying.topic("a")
    relaying.write(
        relaying.row(topic, b"past", publish_at=datetime(1970, 1, 1, tzinfo=UTC)),
        relaying.row(topic, b"future", publish_at=datetime(9999, 1, 1, tzinfo=UTC)),
    )
    with relaying.running():
        until(lambda: relaying.left() == 1, "the past leaves")
    assert relaying.values(topic) == [b"past"]
