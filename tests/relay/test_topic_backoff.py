"""Topics that are missing, refuse or are limited: paused by themselves."""

import logging
import os
from collections.abc import Iterator
from concurrent.futures import Future
from datetime import timedelta
from typing import Any, cast

import pytest
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # its stub re-exports none of these

from tests.fixtures.services import admin_of, until
from tests.relay.relaying import Relaying
from tests.relay.topics import make_topics, set_topic_config
from tidewheel.kafka.topics import Topics
from tidewheel.local.stack import StackInfo
from tidewheel.message_signatures import MessageKeys
from tidewheel.outbox import OutboxLane
from tidewheel.process.logs import faults
from tidewheel.process.service import Shutdown
from tidewheel.relay import loop
from tidewheel.relay.outbox_rows import VALUE, DueRow, Published
from tidewheel.relay.publish import Publisher
from tidewheel.relay.topics import TopicBackoff

ROWS = 40


@pytest.fixture
def publisher(info: StackInfo) -> Iterator[Publisher]:
    made = Publisher(
        dict(info.kafka),
        timeout_ms=10_000,
        runs_prefix="none.",
        keys=MessageKeys(),
        stop=Shutdown(),
        keep_alive=lambda: None,
    )
    yield made
    made.close()


def rows(topic: str, *values: bytes) -> list[DueRow]:
    """Rows as they are read; the publisher ignores their due time and address."""
    return [cast("DueRow", (1, None, topic, b"k", value, None, b"", value)) for value in values]


def published(publisher: Publisher, *batch: DueRow) -> Published:
    publisher.send(batch)
    return publisher.await_acks()


def values(found: Published) -> list[bytes | None]:
    return [row[VALUE] for row in found.acknowledged]


def ask_for_topic(admin: AdminClient, topic: str) -> "Future[Any]":
    """Request a topic without waiting for its creation."""
    return cast("Future[Any]", admin.create_topics([NewTopic(topic, 12, 1)])[topic])  # type: ignore[no-untyped-call]


def test_pauses_grow_until_topic_succeeds(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    now = 100.0
    monkeypatch.setattr("tidewheel.relay.topics.monotonic_seconds", lambda: now)
    backoff = TopicBackoff()
    pauses: list[float] = []
    for _ in range(7):
        backoff.back_off("new", "why")
        backoff.back_off("new", "each of its rows says so")
        began = now
        while backoff.paused_topics():
            now += 0.25
        pauses.append(now - began)
        assert backoff.usable({"new", "other"}) == {"new", "other"}
    assert pauses == [0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0]
    assert caplog.text.count("topic new is paused: why") == 3, "the first time, and when it is for long"
    backoff.reset_retried()
    backoff.back_off("new", "again")
    now += 0.5
    assert not backoff.paused_topics()


def test_topic_that_fails_again_keeps_its_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("tidewheel.relay.topics.monotonic_seconds", lambda: now)
    backoff = TopicBackoff()
    backoff.back_off("new", "why")
    now += 0.5
    assert not backoff.paused_topics()
    assert backoff.usable({"new"}) == {"new"}
    backoff.back_off("new", "some of its rows were taken, some not")
    backoff.reset_retried()
    now += 0.9
    assert backoff.paused_topics() == ["new"]


@pytest.mark.kafka
def test_rows_read_before_pause_do_not_overtake(relaying: Relaying, publisher: Publisher) -> None:
    topic, other = f"{relaying.prefix}.new", relaying.topic("other")
    assert publisher.paused_topics() == []
    assert values(published(publisher, *rows(topic, b"1"), *rows(other, b"2"))) == [b"2"]
    make_topics(relaying.kafka, [topic])
    assert values(published(publisher, *rows(topic, b"3"), *rows(other, b"4"))) == [b"4"], "read before, as it were"
    until(lambda: publisher.paused_topics() == [], "it may be read again")
    assert values(published(publisher, *rows(topic, b"1", b"3"))) == [b"1", b"3"]
    assert relaying.values(topic) == [b"1", b"3"]


@pytest.mark.landing
@pytest.mark.kafka
def test_rows_of_new_topic_are_published_once_in_order(relaying: Relaying, caplog: pytest.LogCaptureFixture) -> None:
    """Unknown to the broker, or known without leaders: a row stays until it is acknowledged."""
    caplog.set_level(logging.ERROR, "tidewheel.relay")
    admin, old = admin_of(relaying.kafka), relaying.topic("old")
    new = {f"{relaying.prefix}.{made}-{number}": made for made in ("before", "beside", "after") for number in range(5)}
    with relaying.running(relay_batch=80):
        for topic, made in new.items():
            asked = None if made == "after" else ask_for_topic(admin, topic)
            if asked is not None and made == "before":
                asked.result(30)
            for number in range(ROWS):
                relaying.write(
                    *(
                        relaying.row(name, b"%d" % number, b"run-%d" % run, shard=run)
                        for run in (1, 2)
                        for name in (topic, old)
                    )
                )
            if asked is None:
                until(lambda topic=topic: f"topic {topic} is paused" in caplog.text, "it is paused")
                asked = ask_for_topic(admin, topic)
            asked.result(30)
        relaying.until_empty()
    for topic, made in new.items():
        by_run: dict[bytes | None, list[int]] = {}
        for one in relaying.arrived(topic):
            by_run.setdefault(one.key, []).append(int(one.value or b""))
        assert by_run == {b"run-1": list(range(ROWS)), b"run-2": list(range(ROWS))}, f"made {made}"
    assert len(relaying.values(old)) == len(new) * 2 * ROWS
    assert relaying.database.count("quarantine") == 0


@pytest.mark.kafka
def test_rows_of_recreated_topic_are_published(relaying: Relaying) -> None:
    relaying.client = {"topic.metadata.refresh.interval.ms": "200", "topic.metadata.propagation.max.ms": "100"}
    topic = relaying.topic("again")
    with relaying.running():
        relaying.write(relaying.row(topic, b"1"))
        relaying.until_empty()
        relaying.delete_topic(topic)
        relaying.write(relaying.row(topic, b"2"), relaying.row(topic, b"3"))
        make_topics(relaying.kafka, [topic], partitions=3)
        relaying.until_empty()
    assert relaying.values(topic) == [b"2", b"3"]


def test_topic_has_failed_for_as_long_as_its_tries_fail_without_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    now, day = 0.0, 86_400.0
    monkeypatch.setattr("tidewheel.relay.topics.monotonic_seconds", lambda: now)
    backoff = TopicBackoff()
    backoff.back_off("new", "why")
    now += day
    assert not backoff.failing_topics(day), "one failure is no day"
    backoff.back_off("new", "why")
    assert not backoff.failing_topics(day), "Kafka was away meanwhile"
    while now < 2 * day:
        now += 60.0
        assert not backoff.failing_topics(day)
        backoff.back_off("new", "why")
    assert backoff.failing_topics(day) == ["new"]


@pytest.mark.kafka
def test_replies_to_a_tenant_without_their_topic_are_deleted_after_a_day(
    relaying: Relaying, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of a shared topic wait, whatever their age."""
    monkeypatch.setattr(loop, "FAILED_SECONDS", 0.3)
    topics = Topics(relaying.prefix)
    missing, day = topics.replies_of("acme"), timedelta(days=1)
    relaying.write(
        *(
            relaying.row(topic, lane=OutboxLane.EVENTS, publish_at=relaying.due_at(-age))
            for topic in (missing, topics.replies, topics.completions)
            for age in (day * 2, day * 2, day - timedelta(minutes=1))
        )
    )
    with relaying.running(topic_prefix=relaying.prefix):
        until(lambda: relaying.left() == 7, "the expired replies of the tenant are deleted")
    assert f"2 replies were deleted: topic {missing} has accepted no reply for a day" in caplog.text
    assert relaying.database.rows(
        "SELECT topic, count(*) FROM outbox WHERE publish_at < tidewheel_now() - interval '1 day' GROUP BY 1 ORDER BY 1"
    ) == [(topics.completions, 2), (topics.replies, 2)]


LOW, USUAL = {"max.message.bytes": "2000"}, {"max.message.bytes": str(1024 * 1024 + 64 * 1024)}
LARGE = [os.urandom(3000 + number) for number in range(40)]  # lz4 makes them no smaller


@pytest.mark.kafka
@pytest.mark.slow
def test_rows_above_a_lowered_limit_wait_and_leave_once_it_is_raised(relaying: Relaying) -> None:
    topic, other = relaying.topic("a", config=USUAL), relaying.topic("b")
    with relaying.running():
        relaying.write(relaying.row(topic, b"before"))
        relaying.until_empty()
        set_topic_config(relaying.kafka, topic, LOW)
        for number, value in enumerate(LARGE):
            relaying.write(*(relaying.row(name, b"%d" % number) for name in (topic, other)), relaying.row(topic, value))
        until(lambda: relaying.left() == len(LARGE), "the smaller ones leave")
        until(lambda: f"publishing to {topic}" in str(faults.why_not_ready()), "it is reported")
        assert "raise the topic's max.message.bytes" in str(faults.why_not_ready())
        # Behind those that wait, and while they are tried again.
        first = relaying.database.value("SELECT min(publish_at) FROM outbox")
        until(lambda: relaying.database.value("SELECT min(publish_at) FROM outbox") > first, "they are tried again")
        relaying.write(relaying.row(topic, b"behind"))
        until(lambda: relaying.left() == len(LARGE), "it leaves")
        assert relaying.database.count("quarantine") == 0
        set_topic_config(relaying.kafka, topic, USUAL)
        relaying.until_empty()
        until(lambda: f"publishing to {topic}" not in str(faults.why_not_ready()), "it is reported no more")
    assert set(relaying.values(topic)) == {b"before", b"behind", *(b"%d" % number for number in range(40)), *LARGE}
    assert len(relaying.values(other)) == len(LARGE)
    assert relaying.database.count("quarantine") == 0


@pytest.mark.kafka
def test_row_above_tidewheels_own_limit_is_quarantined(relaying: Relaying) -> None:
    """It is the row's fault, whatever the topic accepts."""
    topic = relaying.topic("a", config={"max.message.bytes": str(8 << 20)})
    relaying.write(relaying.row(topic, os.urandom(3 << 20)), relaying.row(topic, b"2"))
    relaying.drain()
    assert relaying.values(topic) == [b"2"]
    assert relaying.database.count("quarantine") == 1
    assert f"publishing to {topic}" not in str(faults.why_not_ready())


@pytest.mark.kafka
def test_row_that_waits_survives_its_relay(relaying: Relaying) -> None:
    topic = relaying.topic("a", config=LOW)
    relaying.write(relaying.row(topic, LARGE[0]))
    with relaying.running():
        until(lambda: f"publishing to {topic}" in str(faults.why_not_ready()), "it waits")
    faults.clear(f"publishing to {topic}")
    set_topic_config(relaying.kafka, topic, USUAL)
    relaying.drain(relay_poll=timedelta(milliseconds=50))
    assert relaying.values(topic) == [LARGE[0]]
