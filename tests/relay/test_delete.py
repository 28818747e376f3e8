"""Deletion in the background: acknowledged rows are deleted after failures, and published once."""

import logging

import pytest

from tests.fixtures.services import until
from tests.relay.relaying import Relaying

pytestmark = pytest.mark.kafka

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
