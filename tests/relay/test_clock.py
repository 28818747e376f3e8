"""Wrong clocks of the relay and of the database lose no message."""

import logging
import os
from datetime import timedelta

import pytest

from tests.fixtures.database import ClockedDatabase
from tests.fixtures.services import until
from tests.relay.relaying import Relaying
from tests.relay.topics import set_topic_config
from tidewheel.local.stack import StackInfo

pytestmark = pytest.mark.kafka

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
