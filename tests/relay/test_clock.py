"""A relay whose clock the broker takes for wrong loses no message."""

# pyright: reportUnknownMemberType=false

import logging

import pytest
from confluent_kafka.admin import (
    AlterConfigOpType,  # type: ignore[attr-defined]  # its stub re-exports none of these
    ConfigEntry,  # type: ignore[attr-defined]
    ConfigResource,  # type: ignore[attr-defined]
    ResourceType,  # type: ignore[attr-defined]
)

from tests.fixtures.database import Database
from tests.fixtures.services import admin_of, until
from tests.relay.relaying import Relaying
from tests.relay.topics import make_topics
from tidewheel.local.stack import StackInfo

pytestmark = pytest.mark.kafka

_BEFORE = "message.timestamp.before.max.ms"


@pytest.fixture
def relaying(database: Database, info: StackInfo) -> Relaying:
    return Relaying(database, info.bootstrap)


def test_a_message_refused_for_its_timestamp_waits_and_is_not_given_up(
    relaying: Relaying, caplog: pytest.LogCaptureFixture
) -> None:
    """A broker that allows no age at all takes any sender's clock for wrong."""
    caplog.set_level(logging.WARNING)
    topic = f"{relaying.prefix}.strict"
    make_topics(relaying.bootstrap, [topic], config={_BEFORE: "0"})
    relaying.write(relaying.row(topic, b"kept"))
    with relaying.running():
        until(lambda: "did not take a message" in caplog.text, "the broker has refused it")
        assert (relaying.left(), relaying.database.count("set_aside")) == (1, 0)
        lift(relaying.bootstrap, topic)
        relaying.until_empty()
    assert relaying.values(topic) == [b"kept"]
    assert relaying.database.count("set_aside") == 0


def lift(bootstrap: str, topic: str) -> None:
    entry = ConfigEntry(_BEFORE, "9223372036854775807", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin = admin_of(bootstrap)
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(30)
