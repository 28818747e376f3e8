"""A row of the outbox that the relay cannot read stops no other; it is kept, counted and logged once."""

import logging
from typing import LiteralString
from uuid import uuid4

import pytest
from prometheus_client import REGISTRY

from tests.fixtures.services import until
from tests.relay.relaying import Relaying

pytestmark = pytest.mark.kafka

HEADERS: dict[str, LiteralString] = {
    "without a value": "ARRAY['a'::bytea, 'b', 'c']",
    "of a name that is no text": r"ARRAY['\xff'::bytea, 'b']",
    "of no name": "ARRAY[NULL::bytea, 'b']",
    "nested": "ARRAY[ARRAY['a'::bytea, 'b'], ARRAY['c'::bytea, 'd']]",
}
INSTANTS: dict[str, LiteralString] = {
    "never": "'infinity'",
    "before all": "'-infinity'",
    "after Python's last year": "'294000-01-01Z'",
}


def quarantined() -> float:
    return REGISTRY.get_sample_value("tidewheel_outbox_quarantined_total") or 0.0


@pytest.mark.parametrize("name", ["a", "runs.standard"])
@pytest.mark.parametrize("damage", HEADERS)
def test_row_with_damaged_headers_is_quarantined_and_others_leave(
    relaying: Relaying, caplog: pytest.LogCaptureFixture, damage: str, name: str
) -> None:
    topic = relaying.topic(name)
    rows = [relaying.row(topic, str(number).encode(), headers=(("x", b"1"),)) for number in range(5)]
    relaying.write(*rows)
    relaying.database.execute(f"UPDATE outbox SET headers = {HEADERS[damage]} WHERE value = '2'")  # noqa: S608
    before = quarantined()
    with caplog.at_level(logging.ERROR):
        relaying.drain(topic_prefix=relaying.prefix)
    assert relaying.values(topic) == [b"0", b"1", b"3", b"4"]
    assert quarantined() == before + 1
    ((kind, value, error),) = relaying.database.rows("SELECT kind, value, error FROM quarantine")
    assert (kind, value) == ("outbox", b"2")
    assert "headers" in error
    assert len([each for each in caplog.records if "quarantine" in each.getMessage()]) == 1


@pytest.mark.parametrize("damage", INSTANTS)
def test_row_with_a_damaged_time_stops_no_other(
    relaying: Relaying, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    topic = relaying.topic("a")
    relaying.write(*(relaying.row(topic, str(number).encode()) for number in range(3)))
    relaying.database.execute(f"UPDATE outbox SET publish_at = {INSTANTS[damage]} WHERE value = '1'")  # noqa: S608
    with relaying.running():
        until(lambda: relaying.left() == 1, "all others leave")
        relaying.write(relaying.row(topic, b"later", publish_at=relaying.database.now()))
        until(lambda: relaying.left() == 1, "later ones too")
    assert relaying.values(topic) == [b"0", b"2", b"later"]
    assert not [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR]


def test_run_message_with_a_damaged_key_holds_no_topic_up(relaying: Relaying) -> None:
    """A damaged key has the length of a run's id, which the relay looks up among claims."""
    topic = relaying.topic("runs.standard")
    rows = [relaying.row(topic, key=b"\xff" * 36, tenant="a"), relaying.row(topic, key=b"x" * 36, tenant="a")]
    rows += [relaying.row(topic, key=str(uuid4()).encode(), tenant="a", shard=number % 64) for number in range(500)]
    relaying.write(*rows)
    relaying.drain(topic_prefix=relaying.prefix)
    assert len(relaying.arrived(topic)) == len(rows)
