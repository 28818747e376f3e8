"""The audit reads completions to the end of each partition, whatever lies there."""

from datetime import UTC, datetime
from uuid import uuid4

import pytest
from confluent_kafka import Producer

from tests.fixtures.database import Database
from tests.fixtures.services import until
from tests.relay.topics import make_topics
from tidewheel.control.occurrence_audit.records import Scope
from tidewheel.control.occurrence_audit.result import unrecorded_ends
from tidewheel.local.stack import StackInfo

pytestmark = pytest.mark.kafka

_FIRST, _BEFORE = datetime(2020, 1, 1, tzinfo=UTC), datetime(2199, 1, 1, tzinfo=UTC)
_UNREADABLE = 60_000_000  # bytes that the client does not unpack from zstd


@pytest.fixture
def topic(info: StackInfo) -> str:
    name = f"completions-{uuid4().hex[:10]}"
    make_topics(info.kafka, [name], partitions=2)
    return name


def send(info: StackInfo, topic: str, size: int = 0, *, transaction: bool = False) -> str:
    """Send the completion of a run as a batch of its own; return the run's id."""
    run_id, job_id = str(uuid4()), str(uuid4())
    sizes = {"message.max.bytes": 1_000_000_000, "batch.size": 1_000_000_000, "compression.type": "zstd"}
    producer = Producer({**info.kafka, **sizes, **({"transactional.id": topic} if transaction else {})})
    if transaction:
        producer.init_transactions(60)
        producer.begin_transaction()
    headers: list[tuple[str, str | bytes | None]] = [
        ("ce_time", b"2026-11-20T12:00:00Z"),
        ("ce_subject", run_id.encode()),
    ]
    producer.produce(topic, bytes(size), job_id.encode(), partition=0, headers=headers)
    assert producer.flush(60) == 0
    if transaction:
        producer.commit_transaction(60)
    return run_id


def unrecorded(database: Database, info: StackInfo, topic: str) -> list[str]:
    """Return the runs that the audit finds on Kafka alone."""
    with database.transaction() as connection:
        scope = Scope(_FIRST, _BEFORE, None, None)
        found = list(unrecorded_ends(connection, info.kafka, topic, scope, _BEFORE))
    return [each.finding.words.split()[1] for each in found]


def test_partition_that_ends_with_a_transactions_mark_is_read(database: Database, info: StackInfo, topic: str) -> None:
    sent = [send(info, topic), send(info, topic, transaction=True)]
    # The broker writes the mark after it has answered the commit.
    until(lambda: sorted(unrecorded(database, info, topic)) == sorted(sent), "both messages are read")


def test_unreadable_batch_is_stepped_over(database: Database, info: StackInfo, topic: str) -> None:
    first = send(info, topic)
    send(info, topic, _UNREADABLE)
    assert unrecorded(database, info, topic) == [first], "it is the last one"
    last = send(info, topic)
    assert unrecorded(database, info, topic) == [first, last]
