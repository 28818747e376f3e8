"""Records in the topics of a standby site that no site of ours has written."""

import zlib
from datetime import UTC, datetime
from uuid import uuid4

import pytest
from confluent_kafka import Producer

from tests.relay.topics import make_topics
from tidewheel.control.standby.raising import read_topic
from tidewheel.errors import UndecodableMessage
from tidewheel.local.stack import StackInfo
from tidewheel.schemas.codec import encode
from tidewheel.schemas.generated.records import StandbyRow
from tidewheel.standby import key_of


@pytest.mark.kafka
def test_row_that_unpacks_to_hundreds_of_megabytes_is_refused(info: StackInfo) -> None:
    topic, site = f"standby-{uuid4()}", str(uuid4())
    make_topics(info.kafka, [topic])
    packed = zlib.compress(bytes(200 << 20))
    at = datetime(2026, 11, 28, tzinfo=UTC)
    row = encode(StandbyRow(site=site, batch=1, as_of=at, kind="jobs", row=packed, is_compressed=True))
    producer = Producer({**info.kafka})
    producer.produce(topic, row, key_of("jobs", "{}"), headers={"site": site.encode(), "batch": b"1"})
    assert producer.flush(30) == 0
    with pytest.raises(UndecodableMessage, match="unpacks to more than 67108864 bytes"):
        list(read_topic(info.kafka, topic, []))
