"""Messages that are too long: their head is kept, and nothing waits behind them."""

from hashlib import sha256

import pytest
from confluent_kafka import Producer

from tests.control.client.test_dead_letters import redrive
from tests.fixtures.acts import submission
from tests.fixtures.database import Database
from tests.intake.running import Requests
from tidewheel.control.client.client import Client
from tidewheel.local.stack import StackInfo

pytestmark = pytest.mark.kafka

HUGE = 60_000_000


@pytest.fixture
def requests(database: Database, info: StackInfo) -> Requests:
    return Requests(database, info.kafka)


def send_packed(requests: Requests, *values: bytes, codec: str, topic: str | None = None) -> int:
    """Produce one batch of messages; return the offset behind it."""
    told = {
        "message.max.bytes": 1_000_000_000,
        "batch.size": 1_000_000_000,
        "linger.ms": 30_000,  # until `flush`, so that a slow machine packs them together
        "compression.type": codec,
    }
    producer = Producer({**requests.kafka, **told})
    ends: list[int] = []
    for value in values:
        producer.produce(
            topic or requests.topics.requests,
            value,
            partition=0,
            on_delivery=lambda _, message: ends.append((message.offset() or 0) + 1),
        )
    assert producer.flush(60) == 0
    return max(ends)


def letters(requests: Requests) -> list[tuple[object, ...]]:
    return requests.database.rows('SELECT "offset", key, value, cut_from, reason FROM dead_letters ORDER BY "offset"')


@pytest.mark.landing
def test_head_length_and_digest_of_a_message_that_is_too_long_are_kept(requests: Requests) -> None:
    value = b'{"type": "job.submit", ' + b"0" * HUGE
    send_packed(requests, value, codec="lz4")
    send_packed(requests, b"x" * (1 << 20), codec="lz4")  # the longest that is read, and no request
    [offset] = requests.send(submission("behind"))
    with requests.running():
        requests.until_read(offset)
    database = requests.database
    (_, _, head, cut_from, reason), (_, _, other, cut_too, _) = letters(requests)
    assert (head, cut_from) == (value[:65536], len(value))
    assert sha256(value).hexdigest() in str(reason)
    assert (other, cut_too) == (b"x" * 65536, 1 << 20)
    assert database.rows("SELECT key FROM jobs") == [("behind",)]
    stored = database.value("SELECT max(length(value)) FROM outbox WHERE value LIKE %s", [b"{%00000000%"])
    assert stored == 65536
    with Client(database.url) as client:
        redriven = redrive(client, database, kind="message")
    assert (redriven.done_count, redriven.rejected_count) == (0, 2)
    assert "only the first are stored" in str(redriven.rejections[0]["errors"])


@pytest.mark.landing
@pytest.mark.parametrize("messages", [1, 3, 100])
def test_batch_that_unpacks_to_too_many_bytes_is_stepped_over_alone(requests: Requests, messages: int) -> None:
    [before] = requests.send(submission("before"))
    end = send_packed(requests, *[b"0" * (HUGE // messages)] * messages, codec="zstd")
    after = requests.send(submission("after"), submission("last"))
    with requests.running():
        requests.until_read(after[-1])
    assert end == before + 1 + messages
    assert {key for (key,) in requests.database.rows("SELECT key FROM jobs")} == {"before", "after", "last"}
    [(offset, key, value, cut_from, reason)] = letters(requests)
    assert (offset, key, value, cut_from) == (before + 1, None, None, 0)
    assert str(reason).startswith(f"the batch of {messages} messages from this offset cannot be unpacked")


@pytest.mark.landing
def test_batch_at_the_end_of_its_partition_is_stepped_over(requests: Requests) -> None:
    end = send_packed(requests, b"0" * HUGE, b"1", codec="zstd")
    with requests.running():
        requests.until_read(end - 1)
        [offset] = requests.send(submission("after"))
        requests.until_read(offset)
    assert len(letters(requests)) == 1


@pytest.mark.landing
def test_batches_that_are_stepped_over_are_one_line_a_minute_of_their_topic(
    requests: Requests, caplog: pytest.LogCaptureFixture
) -> None:
    """A stranger with the right to write would fill the log."""
    topics = (requests.topics.requests, requests.topics.target_replies)
    ends = {
        topic: max(send_packed(requests, b"0" * HUGE, codec="zstd", topic=topic) for _ in range(3)) for topic in topics
    }
    with requests.running():
        for topic, end in ends.items():
            requests.until_read(end - 1, topic=topic)
    assert len(letters(requests)) == 6
    lines = [each for each in caplog.messages if " cannot be read and becomes a dead letter, as may others: " in each]
    assert sorted(line.split()[5].split("/")[0] for line in lines) == sorted(topics)


def test_target_reply_that_is_too_long_is_cut(requests: Requests) -> None:
    topic = requests.topics.target_replies
    end = send_packed(requests, b"0" * HUGE, codec="lz4", topic=topic)
    with requests.running():
        requests.until_read(end - 1, topic=topic)
    [(_, _, head, cut_from, _)] = letters(requests)
    assert (head, cut_from) == (b"0" * 65536, HUGE)


def test_message_with_a_long_key_is_cut(requests: Requests) -> None:
    [offset] = requests.send(submission("long"), key=b"k" * 100_000)
    with requests.running():
        requests.until_read(offset)
    [(_, key, _, cut_from, reason)] = letters(requests)
    assert (key, requests.database.count("jobs")) == (b"k" * 4096, 0)
    assert cut_from is not None
    assert "the key and the headers have 100000 bytes" in str(reason)
