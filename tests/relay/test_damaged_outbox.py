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
def test_rows_with_damaged_headers_are_quarantined_and_others_leave(
    relaying: Relaying, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    topic = relaying.topic(name)
    for damage, headers in HEADERS.items():
        relaying.write(*(relaying.row(topic, value, headers=(("x", b"1"),)) for value in (b"good", damage.encode())))
        relaying.database.execute(f"UPDATE outbox SET headers = {headers} WHERE value = %s", [damage.encode()])  # noqa: S608
    before = quarantined()
    with caplog.at_level(logging.ERROR):
        relaying.drain(topic_prefix=relaying.prefix)
    assert relaying.values(topic) == [b"good"] * len(HEADERS)
    assert quarantined() == before + len(HEADERS)
    found = relaying.database.rows("SELECT value, kind, error FROM quarantine")
    assert {value.decode() for value, *_ in found} == {*HEADERS}
    for damage, kind, error in found:
        assert (kind, "headers" in error) == ("outbox", True), damage
    assert len([each for each in caplog.records if "quarantine" in each.getMessage()]) == len(HEADERS)


def test_rows_with_damaged_times_stop_no_other(relaying: Relaying, caplog: pytest.LogCaptureFixture) -> None:
    topic = relaying.topic("a")
    for damage, instant in INSTANTS.items():
        relaying.write(*(relaying.row(topic, value) for value in (b"good", damage.encode())))
        relaying.database.execute(f"UPDATE outbox SET publish_at = {instant} WHERE value = %s", [damage.encode()])  # noqa: S608
    with relaying.running():
        until(lambda: relaying.left() == len(INSTANTS), "all others leave")
        relaying.write(relaying.row(topic, b"later", publish_at=relaying.database.now()))
        until(lambda: relaying.left() == len(INSTANTS), "later ones too")
    assert relaying.values(topic) == [b"good"] * len(INSTANTS) + [b"later"]
    assert not [each.getMessage() for each in caplog.records if each.levelno >= logging.ERROR]


def test_run_message_with_a_damaged_key_holds_no_topic_up(relaying: Relaying) -> None:
    """A damaged key has the length of a run's id, which the relay looks up among claims."""
    topic = relaying.topic("runs.standard")
    rows = [relaying.row(topic, key=b"\xff" * 36, tenant="a"), relaying.row(topic, key=b"x" * 36, tenant="a")]
    rows += [relaying.row(topic, key=str(uuid4()).encode(), tenant="a", shard=number % 64) for number in range(500)]
    relaying.write(*rows)
    relaying.drain(topic_prefix=relaying.prefix)
    assert len(relaying.arrived(topic)) == len(rows)
