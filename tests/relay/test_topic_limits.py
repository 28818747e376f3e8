"""Rows that a topic does not accept for their size wait for an operator; smaller ones leave meanwhile."""

import os
from datetime import timedelta

import pytest

from tests.fixtures.services import until
from tests.relay.relaying import Relaying
from tests.relay.topics import set_topic_config
from tidewheel.process.faults import faults

pytestmark = pytest.mark.kafka

LOW, USUAL = {"max.message.bytes": "2000"}, {"max.message.bytes": str(1024 * 1024 + 64 * 1024)}
LARGE = [os.urandom(3000 + number) for number in range(40)]  # lz4 makes them no smaller


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


def test_row_above_tidewheels_own_limit_is_quarantined(relaying: Relaying) -> None:
    """It is the row's fault, whatever the topic accepts."""
    topic = relaying.topic("a", config={"max.message.bytes": str(8 << 20)})
    relaying.write(relaying.row(topic, os.urandom(3 << 20)), relaying.row(topic, b"2"))
    relaying.drain()
    assert relaying.values(topic) == [b"2"]
    assert relaying.database.count("quarantine") == 1
    assert f"publishing to {topic}" not in str(faults.why_not_ready())


def test_row_that_waits_survives_its_relay(relaying: Relaying) -> None:
    topic = relaying.topic("a", config=LOW)
    relaying.write(relaying.row(topic, LARGE[0]))
    with relaying.running():
        until(lambda: f"publishing to {topic}" in str(faults.why_not_ready()), "it waits")
    faults.clear(f"publishing to {topic}")
    set_topic_config(relaying.kafka, topic, USUAL)
    relaying.drain(relay_poll=timedelta(milliseconds=50))
    assert relaying.values(topic) == [LARGE[0]]
