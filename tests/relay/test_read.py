"""Reads from low-water marks: a backlog once and in order, in bounded batches, with late rows."""

import os
from datetime import datetime, timedelta
from functools import partial

import pytest

from tests.fixtures.services import until
from tests.relay.relaying import Relaying
from tidewheel.outbox import SLICES, OutboxLane, append
from tidewheel.postgres.database_clock import read_now
from tidewheel.postgres.low_water import FullScanPacer
from tidewheel.postgres.session import Conn
from tidewheel.relay.outbox_rows import ID, VALUE, Batch, Published

pytestmark = pytest.mark.kafka

HELD = list(range(SLICES))
MEBIBYTE = 1 << 20


def test_backlog_of_one_instant_is_read_once_in_order(relaying: Relaying) -> None:
    """Its rows differ by their ids alone, and three batches of them are under way at a time."""
    topic = relaying.topic("a")
    past = relaying.due_at(timedelta(minutes=-1))
    values = [str(number).encode() for number in range(3000)]
    relaying.write(*(relaying.row(topic, value, publish_at=past) for value in values))
    relaying.drain(relay_batch=800)
    assert relaying.values(topic) == values


@pytest.mark.landing
def test_late_rows_do_not_each_wait_for_full_scan(relaying: Relaying) -> None:
    """A full scan finds one share of a batch, here six rows, once a second; the mark moves back."""
    topic = relaying.topic("a")
    with relaying.running(relay_batch=80):
        relaying.write(relaying.row(topic, b"new"))
        relaying.until_empty()
        past = relaying.due_at(timedelta(minutes=-1))
        values = [str(number).encode() for number in range(600)]
        relaying.write(*(relaying.row(topic, value, publish_at=past) for value in values))
        relaying.until_empty()
    assert relaying.values(topic) == [b"new", *values]


@pytest.mark.landing
def test_events_of_a_long_transaction_leave_in_their_order(relaying: Relaying) -> None:
    """Issue 39, F3: its first events were late by then, and left behind those of the next transaction."""
    topic, database = relaying.topic("a"), relaying.database
    session = database.session()

    def append_event(connection: Conn, value: str) -> datetime:
        now = read_now(connection)
        row = relaying.row(topic, value.encode(), lane=OutboxLane.EVENTS, publish_at=now)
        append(connection, [row], shards=database.installation.shards)
        return now

    def until_passed(at: datetime) -> bool:
        relaying.write(relaying.row(topic, b"other", lane=OutboxLane.EVENTS, publish_at=database.now()))
        relaying.until_empty()
        return database.now() > at + timedelta(seconds=1.5)

    with relaying.running():
        for number in range(4):
            with session.transaction() as connection:
                began = append_event(connection, f"{number} first")
                until(partial(until_passed, began), "the relay has read past the first event")
                append_event(connection, f"{number} last")
            session.within(append_event, f"{number} next")
        relaying.until_empty()
    expected = [f"{number} {which}".encode() for number in range(4) for which in ("first", "last", "next")]
    assert [value for value in relaying.values(topic) if value != b"other"] == expected


def test_batch_is_bounded_by_bytes(relaying: Relaying) -> None:
    value = os.urandom(MEBIBYTE)
    relaying.write(*(relaying.row("large", value, str(number).encode(), shard=number % 64) for number in range(40)))
    reader = relaying.reader(1000)
    first = reader.read(HELD, [], [])
    second = reader.read(HELD, [], first.rows)
    assert (len(first.rows), first.full) == (32, True)
    assert (len(second.rows), second.full) == (8, False)
    assert len({key for _, _, _, key, *_ in (*first.rows, *second.rows)}) == 40


def test_reset_rows_are_read_again(relaying: Relaying) -> None:
    """Rows that were read and not published, long behind the mark by then."""
    past = relaying.due_at(timedelta(minutes=-1))
    relaying.write(*(relaying.row("a", str(number).encode(), publish_at=past) for number in range(20)))
    reader = relaying.reader(100)
    front = ids_of(reader.read(HELD, [], []))

    def goes_on() -> bool:
        return set(front).isdisjoint(ids_of(reader.read(HELD, [], [])))

    until(goes_on, "it reads behind the mark")  # not at once: the first mark is a second behind, and a walk may come
    reader.reset()
    assert ids_of(reader.read(HELD, [], [])) == front


def ids_of(batch: Batch) -> list[bytes]:
    return [row[ID] for row in batch.rows]


def test_rows_of_resumed_topic_come_before_newer_ones(relaying: Relaying) -> None:
    """While it was parked, the marks went on past them with the rows of others."""
    past = relaying.due_at(timedelta(minutes=-1))
    relaying.write(relaying.row("parked", b"old", publish_at=past))
    relaying.write(*(relaying.row("other", b"%d" % number, publish_at=past) for number in range(60)))
    reader = relaying.reader(80)
    found = reader.read(HELD, ["parked"], [])
    while found.full:
        found = reader.read(HELD, ["parked"], found.rows)
    relaying.write(relaying.row("parked", b"new", publish_at=past))
    served = reader.read(HELD, [], [])
    assert [row[VALUE] for row in served.rows if row[VALUE] in {b"old", b"new"}][:1] == [b"old"]


def test_quick_poll_and_read_agree_behind_mark(relaying: Relaying) -> None:
    """Else a relay would read nothing, over and over, until the next walk."""
    past = relaying.due_at(timedelta(seconds=-5))
    late = relaying.database.connection()
    append(late, [relaying.row("a", b"late", publish_at=past)], shards=relaying.database.installation.shards)
    relaying.write(*(relaying.row("a", b"%d" % number, publish_at=past) for number in range(60)))
    reader = relaying.reader(80)
    found = reader.read(HELD, [], [])
    while found.full:
        found = reader.read(HELD, [], found.rows)
    late.commit()
    relaying.database.execute("DELETE FROM outbox WHERE value <> 'late'")
    _, earliest = reader.earliest(HELD, [])
    assert bool(earliest) == bool(reader.read(HELD, [], []).rows)


def test_new_relay_finds_first_marks_step_by_step(relaying: Relaying, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow search must not lose the slices: pairs with a mark are read, others wait."""
    monkeypatch.setattr("tidewheel.relay.read._MARKS_SECONDS", 0.0)
    past = relaying.due_at(timedelta(minutes=-1))
    relaying.write(*(relaying.row("a", b"%d" % shard, publish_at=past, shard=shard) for shard in range(64)))
    reader = relaying.reader(1000)
    found = [*reader.read(HELD, [], []).rows]
    now, earliest = reader.earliest(HELD, [])
    assert min(earliest.values()) <= now, "it does not sleep before it has looked everywhere"
    for _ in range(SLICES * 4):
        found += reader.read(HELD, [], found).rows
    assert sorted(row[VALUE] or b"" for row in found) == sorted(b"%d" % shard for shard in range(64))


def test_small_batch_is_followed_by_quick_poll(relaying: Relaying, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tidewheel.relay.read.FullScanPacer", partial(FullScanPacer, 3600.0))  # a full scan is no poll
    past = relaying.due_at(timedelta(minutes=-1))
    relaying.write(relaying.row("a", b"0", publish_at=past))
    reader = relaying.reader(1000)
    found = [*reader.read(HELD, [], []).rows]
    relaying.write(*(relaying.row("a", b"%d" % number, publish_at=past) for number in range(1, 50)))
    few = reader.read(HELD, [], found)
    assert few.full
    rest = reader.read(HELD, [], [*found, *few.rows])
    assert [row[VALUE] for row in (*found, *few.rows, *rest.rows)] == [b"%d" % number for number in range(50)]
    assert len(few.rows) < len(rest.rows)


def test_unacknowledged_rows_only_are_read_again(relaying: Relaying) -> None:
    past = relaying.due_at(timedelta(minutes=-1))
    relaying.write(*(relaying.row("a", b"%d" % number, publish_at=past) for number in range(20)))
    reader = relaying.reader(1000)
    batch = reader.read(HELD, [], [])
    acknowledged, left = batch.rows[:15], batch.rows[15:]
    reader.acknowledged(batch, Published(acknowledged=list(acknowledged)))
    assert ids_of(reader.read(HELD, [], acknowledged)) == [row[ID] for row in left]


def test_sent_rows_are_read_again_after_failed_acks(relaying: Relaying) -> None:
    past = relaying.due_at(timedelta(minutes=-1))
    relaying.write(*(relaying.row("a", b"%d" % number, publish_at=past) for number in range(20)))
    reader = relaying.reader(80)
    first = reader.read(HELD, [], [])
    reader.reset()
    second = reader.read(HELD, [], first.rows)
    assert second.rows
    reader.acknowledged(first, Published())
    reader.reset()
    assert ids_of(reader.read(HELD, [], [])) == ids_of(first)


def test_topic_paused_between_reads_resumes_at_its_position(relaying: Relaying) -> None:
    """A poll knows of the pause, the reads before and after do not."""
    past = relaying.due_at(timedelta(seconds=-30))
    relaying.write(relaying.row("parked", b"old", publish_at=past))
    reader = relaying.reader(1000)
    batch = reader.read(HELD, [], [])
    reader.acknowledged(batch, Published())
    reader.earliest(HELD, ["parked"])
    relaying.write(relaying.row("parked", b"new", publish_at=relaying.due_at(timedelta(seconds=-20))))
    assert [row[VALUE] for row in reader.read(HELD, [], []).rows] == [b"old", b"new"]


def test_paused_topic_keeps_position_while_others_are_unpublished(relaying: Relaying) -> None:
    past = relaying.due_at(timedelta(minutes=-1))
    relaying.write(relaying.row("parked", b"old", publish_at=past))
    relaying.write(*(relaying.row("gone", publish_at=past) for _ in range(20)))  # after so many it looks for many
    reader = relaying.reader(1000)
    batch = reader.read(HELD, [], [])
    reader.acknowledged(batch, Published(acknowledged=list(batch.rows[1:])))
    relaying.database.execute("DELETE FROM outbox WHERE topic = 'gone'")
    relaying.write(*(relaying.row("other", b"%d" % number, publish_at=past) for number in range(20)))
    others = reader.read(HELD, ["parked"], [])
    reader.acknowledged(others, Published(acknowledged=list(others.rows[:10])))
    again = reader.read(HELD, ["parked"], others.rows[:10])
    reader.acknowledged(again, Published(acknowledged=list(again.rows)))
    assert [row[VALUE] for row in reader.read(HELD, [], others.rows).rows] == [b"old"]
