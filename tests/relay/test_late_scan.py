"""Late rows: found in the background; wrong clocks and lagging groups."""

import logging
import os
import threading
from collections.abc import Generator
from datetime import timedelta
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from prometheus_client import REGISTRY

from tests.fixtures.database import ClockedDatabase, Database
from tests.fixtures.services import until
from tests.relay.relaying import Relaying
from tests.relay.topics import set_topic_config
from tests.transitions.stepping import in_background
from tidewheel.errors import Unavailable
from tidewheel.kafka.topics import Topics
from tidewheel.local.stack import StackInfo
from tidewheel.outbox import SLICES, OutboxLane
from tidewheel.postgres.session import Session
from tidewheel.relay import group_lag
from tidewheel.relay import outbox_scans as walk
from tidewheel.relay.group_lag import GroupLag
from tidewheel.relay.outbox_rows import ID, VALUE, Batch, DueRow
from tidewheel.relay.read import Reader

pytestmark = pytest.mark.kafka
HELD = list(range(SLICES))
HALF_AN_HOUR = timedelta(minutes=-30)
LATELY = timedelta(seconds=-10)  # so that a short walk finds it too
MEBIBYTE = 1 << 20


@pytest.fixture
def scanning(relaying: Relaying, monkeypatch: pytest.MonkeyPatch) -> Relaying:
    monkeypatch.setattr("tidewheel.postgres.low_water._QUICK_SECONDS", 0.0)  # whatever the machine
    monkeypatch.setattr("tidewheel.relay.read._MAX_SCAN_PAUSE_SECONDS", 0.0)  # short walks too
    return relaying


@pytest.fixture
def reader(scanning: Relaying) -> Reader:
    """A reader of ten rows a slice, with marks behind all rows, that scans in the background."""
    scanning.write(scanning.row("gone"))
    made = scanning.reader(80)
    until(lambda: bool(made.read(HELD, [], []).rows), "it has read")
    scanning.database.execute("DELETE FROM outbox")
    return made


class Held:
    """Block scans before each statement, from `begin` to `end`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.waits, self._over = threading.Event(), threading.Event()
        self.end()
        due_rows = walk.due_rows

        def held(*arguments: Any) -> Any:  # noqa: ANN401 - whatever it is called with
            if not self._over.is_set():
                self.waits.set()
            assert self._over.wait(30)
            return due_rows(*arguments)

        monkeypatch.setattr(walk, "due_rows", held)

    def begin(self) -> None:
        self._over.clear()

    def begin_with(self, reader: Reader) -> None:
        """Begin, and wait until a scan is blocked."""
        self.begin()
        until(lambda: not reader.read(HELD, [], []) and self.waits.is_set(), "a walk is under way")

    def end(self) -> None:
        self._over.set()


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Generator[Held]:
    made = Held(monkeypatch)
    yield made
    made.end()


def test_reads_do_not_wait_for_full_scan(scanning: Relaying, held: Held) -> None:
    topic = scanning.topic("a")
    held.begin()
    with scanning.running():
        assert held.waits.wait(30)
        scanning.write(scanning.row(topic, b"new", publish_at=scanning.database.now()))
        scanning.until_empty()
        scanning.write(scanning.row(topic, b"late", publish_at=scanning.due_at(HALF_AN_HOUR)))
        held.end()
        scanning.until_empty()
    assert scanning.values(topic) == [b"new", b"late"]


@pytest.mark.landing
def test_late_rows_are_published_once_in_order(scanning: Relaying) -> None:
    """During an open transaction; twice, since one background scan is not the last."""
    topic = scanning.topic("a")
    somebody = scanning.database.connection()
    somebody.execute("SELECT pg_current_xact_id()")
    past = scanning.due_at(HALF_AN_HOUR)
    first, second = ([b"%d" % number for number in range(start, start + 300)] for start in (0, 300))
    with scanning.running(relay_batch=80):  # a share is six rows
        for late in (first, second):
            scanning.write(scanning.row(topic, b"new", publish_at=scanning.database.now()))
            scanning.until_empty()
            scanning.write(*(scanning.row(topic, value, publish_at=past) for value in late))
            scanning.until_empty()
    somebody.rollback()
    assert scanning.values(topic) == [b"new", *first, b"new", *second]


def test_late_flood_does_not_delay_critical_lane(scanning: Relaying, reader: Reader) -> None:
    past = scanning.due_at(HALF_AN_HOUR)
    scanning.write(*(scanning.row("a", b"late", publish_at=past) for _ in range(60)))
    batches: list[Batch] = []

    def late_rows_come() -> bool:
        scanning.write(scanning.row("a", b"now", publish_at=scanning.database.now(), lane=OutboxLane.CRITICAL))
        batches.append(reader.read(HELD, [], passed(batches)))
        return b"late" in values(batches[-1])

    until(late_rows_come, "late rows come")
    for _ in range(3):
        until(late_rows_come, "more come")
        assert b"now" in values(batches[-1])


def passed(batches: list[Batch]) -> list[DueRow]:
    return [row for batch in batches for row in batch.rows]


def values(batch: Batch) -> list[bytes | None]:
    return [row[VALUE] for row in batch.rows]


def test_late_rows_come_in_bounded_batches(scanning: Relaying, reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(walk, "MAX_BYTES", MEBIBYTE)
    past = scanning.due_at(HALF_AN_HOUR)
    scanning.write(*(scanning.row("a", bytes(MEBIBYTE // 2), publish_at=past, shard=n % 64) for n in range(20)))
    batches: list[Batch] = []

    def all_have_come() -> bool:
        batches.append(reader.read(HELD, [], passed(batches)))
        return len(passed(batches)) == 20

    until(all_have_come, "all have come")
    assert max(len(batch.rows) for batch in batches) == 2
    assert len({row[ID] for row in passed(batches)}) == 20


@pytest.mark.landing
def test_reread_rows_are_not_found_by_scan_again(scanning: Relaying, held: Held) -> None:
    """The marks are lowered below rows that a scan in flight will find."""
    past = scanning.due_at(HALF_AN_HOUR)
    scanning.write(*(scanning.row("a", b"%d" % number, publish_at=past) for number in range(12)))
    reader = scanning.reader(80)
    until(lambda: not reader.read(HELD, [], []).full, "the marks lie behind them")
    held.begin_with(reader)
    reader.reset()
    held.end()
    found: list[DueRow] = []

    def late_row_comes() -> bool:
        found.extend(reader.read(HELD, [], found).rows)
        return found[-1][VALUE] == b"late"

    for _ in range(12):
        found.extend(reader.read(HELD, [], found).rows)
    scanning.write(scanning.row("a", b"late", publish_at=past - timedelta(minutes=1)))
    until(late_row_comes, "that walk has ended, and the next")
    assert [row[VALUE] for row in found] == [*(b"%d" % number for number in range(12)), b"late"]


def test_scan_results_of_released_slices_are_dropped(scanning: Relaying, reader: Reader, held: Held) -> None:
    held.begin_with(reader)
    past = scanning.due_at(LATELY)
    scanning.write(*(scanning.row("a", b"late", publish_at=past, shard=shard) for shard in range(0, 64, 2)))
    held.end()

    def is_found() -> bool:
        now, earliest = reader.earliest(HELD[:4], [])
        return any(at <= now for at in earliest.values())

    until(is_found, "it has found them")
    published = scanning.database.execute("DELETE FROM outbox WHERE slice_lane % 8 >= 4")
    assert len(reader.read(HELD, [], []).rows) == 32 - published


def test_scan_results_of_paused_topic_wait(scanning: Relaying, reader: Reader, held: Held) -> None:
    held.begin_with(reader)
    past = scanning.due_at(LATELY)
    scanning.write(scanning.row("parked", b"late", publish_at=past), scanning.row("other", b"other", publish_at=past))
    held.end()
    until(lambda: values(reader.read(HELD, ["parked"], [])) == [b"other"], "what was found comes")
    scanning.database.execute("DELETE FROM outbox WHERE topic = 'other'")
    scanning.write(scanning.row("parked", b"new", publish_at=scanning.due_at(timedelta(0))))
    assert values(reader.read(HELD, [], [])) == [b"late", b"new"]


def test_scan_results_survive_failed_read(scanning: Relaying, reader: Reader) -> None:
    scanning.write(scanning.row("a", b"late", publish_at=scanning.due_at(HALF_AN_HOUR)))

    def is_found() -> bool:
        now, earliest = reader.earliest(HELD, [], all_read=True)
        return any(at <= now for at in earliest.values())

    until(is_found, "a walk has found it")
    end_session(scanning.database, "tidewheel-relay")
    with pytest.raises(Unavailable):
        reader.read(HELD, [], [])
    assert values(reader.read(HELD, [], [])) == [b"late"]


def test_scan_with_ended_session_is_repeated(scanning: Relaying, reader: Reader) -> None:
    until(lambda: not reader.read(HELD, [], []) and scan_is_running(scanning.database), "walks are made beside")
    end_session(scanning.database, "tidewheel-relay-scan")
    scanning.write(scanning.row("a", b"late", publish_at=scanning.due_at(HALF_AN_HOUR)))
    until(lambda: values(reader.read(HELD, [], [])) == [b"late"], "the late row comes")


def end_session(database: Database, name: str) -> None:
    database.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE application_name = %s AND datname = current_database()",
        [name],
    )


def scan_is_running(database: Database) -> bool:
    seen = (
        "SELECT FROM pg_stat_activity WHERE application_name = 'tidewheel-relay-scan' AND datname = current_database()"
    )
    return bool(database.rows(seen))


def test_cancelled_statement_ends_at_once(database: Database) -> None:
    """A relay cancels its scan that way when it stops."""
    session = Session(database.url, "tidewheel-test", autocommit=True)
    began = threading.Event()

    def sleeps() -> None:
        with session.transaction() as connection:
            began.set()
            connection.execute("SELECT pg_sleep(25)")

    asleep = in_background(sleeps)
    assert began.wait(30)

    def cancelled() -> bool:
        session.cancel()
        return asleep.done()

    until(cancelled, "it is cancelled", seconds=20)
    with pytest.raises(Unavailable, match="cancel"):
        asleep.result()
    session.close()


_BEFORE = "message.timestamp.before.max.ms"


def test_message_refused_for_timestamp_is_retried(relaying: Relaying, caplog: pytest.LogCaptureFixture) -> None:
    """A broker that allows no age refuses every sender's clock."""
    caplog.set_level(logging.WARNING)
    topic = relaying.topic("strict", config={_BEFORE: "0"})
    kept = os.urandom(900_000)  # takes milliseconds to arrive: a short one may come in the millisecond it was sent in
    relaying.write(relaying.row(topic, kept))
    with relaying.running():
        until(lambda: "did not accept a message" in caplog.text, "the broker has refused it")
        assert (relaying.left(), relaying.database.count("quarantine")) == (1, 0)
        set_topic_config(relaying.kafka, topic, {_BEFORE: "9223372036854775807"})
        relaying.until_empty()
    assert relaying.values(topic) == [kept]
    assert relaying.database.count("quarantine") == 0


def test_clock_set_back_delays_old_rows_only(clocked: ClockedDatabase, info: StackInfo) -> None:
    """New rows are then due before rows that the relay has published already."""
    relaying = Relaying(clocked, info.kafka)
    topic = relaying.topic("a")
    clocked.stop_clock()
    relaying.write(relaying.row(topic, b"before"))
    with relaying.running():
        relaying.until_empty()
        clocked.advance(timedelta(hours=-1))
        relaying.write(
            relaying.row(topic, b"new", publish_at=clocked.now()),
            relaying.row(topic, b"old", publish_at=relaying.began_at),
        )
        until(lambda: relaying.left() == 1, "what is due now leaves")
        assert relaying.values(topic) == [b"before", b"new"]
        clocked.advance(timedelta(hours=1))
        relaying.until_empty()
    assert relaying.values(topic) == [b"before", b"new", b"old"]


def test_lost_relay_with_future_heartbeat_is_replaced(clocked: ClockedDatabase, info: StackInfo) -> None:
    """Its last heartbeat lies in the future; live relays send new ones."""
    relaying = Relaying(clocked, info.kafka)
    topic = relaying.topic("a")
    clocked.execute(
        "INSERT INTO members (member_id, role, name, last_heartbeat_at, started_at)"
        " VALUES (gen_random_uuid(), 'relay', 'lost', tidewheel_now(), tidewheel_now())"
    )
    clocked.advance(timedelta(hours=-1))
    relaying.write(*(relaying.row(topic, b"v", shard=shard, publish_at=clocked.now()) for shard in range(64)))
    relaying.drain()


def lag_of(topic: str, group: str) -> float | None:
    return REGISTRY.get_sample_value("tidewheel_group_lag", {"group": group, "topic": topic})


def fill(relaying: Relaying, topic: str, count: int) -> None:
    producer = Producer({**relaying.kafka})
    for number in range(count):
        producer.produce(topic, value=b"v", partition=number % 2)
    assert producer.flush(30) == 0


def commit(relaying: Relaying, group: str, topic: str, *offsets: int) -> None:
    """Commit offsets of the partitions, as a member does that has read them."""
    consumer = Consumer({**relaying.kafka, "group.id": group, "enable.auto.commit": False})
    consumer.commit(
        offsets=[TopicPartition(topic, number, offset) for number, offset in enumerate(offsets)], asynchronous=False
    )
    consumer.close()


def test_lag_is_what_a_group_has_not_read_and_all_that_it_never_read(relaying: Relaying) -> None:
    requests = relaying.topic("requests", partitions=2)
    read, unread = (relaying.topic(f"runs.{lane}", partitions=2) for lane in ("standard", "batch"))
    of_tenant = relaying.topic("requests.t.acme", partitions=2)
    for topic in (requests, read, unread):
        fill(relaying, topic, 10)
    fill(relaying, of_tenant, 3)
    commit(relaying, f"{read}.executors", read, 5, 2)
    measured = GroupLag(relaying.kafka, Topics(relaying.prefix))
    measured.measure()
    assert lag_of(requests, f"{requests}.intake") == 13
    assert lag_of(read, f"{read}.executors") == 3
    assert lag_of(unread, f"{unread}.executors") == 10

    commit(relaying, f"{requests}.intake", requests, 5, 4)
    commit(relaying, f"{requests}.intake", of_tenant, 2, 1)
    measured.measure()
    assert lag_of(requests, f"{requests}.intake") == 1
    measured.step(measures=False)  # another relay measures from now on
    assert lag_of(requests, f"{requests}.intake") == lag_of(read, f"{read}.executors") == 0


def test_topic_whose_offsets_cannot_be_read_is_skipped(relaying: Relaying, monkeypatch: pytest.MonkeyPatch) -> None:
    """The list of topics names a partition that the broker does not have, as while it elects a leader."""
    requests, gone = relaying.topic("requests", partitions=2), relaying.topic("runs.batch", partitions=2)
    fill(relaying, requests, 4)
    known = group_lag.read_partitions

    def listed(client: Consumer) -> dict[str, list[tuple[str, int]]]:
        return {**known(client), gone: [(gone, 0), (gone, 7)]}

    monkeypatch.setattr(group_lag, "read_partitions", listed)
    GroupLag(relaying.kafka, Topics(relaying.prefix)).measure()
    assert lag_of(requests, f"{requests}.intake") == 4
    assert lag_of(gone, f"{gone}.executors") is None


def test_relay_measures_by_itself_while_it_publishes(relaying: Relaying, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_lag, "_EVERY_SECONDS", 0.1)
    monkeypatch.setattr(group_lag, "_SHARE", 1)  # else it waits a hundred times as long as it measured
    requests = relaying.topic("requests", partitions=2)
    fill(relaying, requests, 4)
    with relaying.running(topic_prefix=relaying.prefix):
        until(lambda: lag_of(requests, f"{requests}.intake") == 4, "the lag is exported")
        fill(relaying, requests, 2)
        until(lambda: lag_of(requests, f"{requests}.intake") == 6, "it is measured again")


@pytest.mark.landing
def test_broker_that_is_away_stops_nothing_but_the_measurement(relaying: Relaying) -> None:
    GroupLag(relaying.kafka, Topics(relaying.prefix)).measure()  # nor do topics that are not created yet
    away = GroupLag({"bootstrap.servers": "127.0.0.1:1"}, Topics(relaying.prefix))
    with pytest.raises(Unavailable):
        away.measure()
