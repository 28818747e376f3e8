"""Kafka targets: what is written to the user's topic, and what becomes of it when it cannot be."""

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest

from tests.executor.attempting import NOON, RUN, attempt_of
from tests.fixtures.database import Database
from tests.fixtures.reader import Seen, TopicReader
from tests.fixtures.services import until
from tests.relay.topics import make_topics
from tidewheel.executor.attempt import Attempt
from tidewheel.executor.outcome import Outcome
from tidewheel.executor.runners.kafka import KafkaRunner
from tidewheel.jobs.allow_lists import AllowLists
from tidewheel.local.stack import StackInfo
from tidewheel.runs import AttemptOutcome

pytestmark = pytest.mark.kafka

LEASE = timedelta(seconds=15)
TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Sending:
    """A runner for one broker, and topics of a test's own."""

    def __init__(self, database: Database, kafka: Mapping[str, str]) -> None:
        self.installation, self.kafka = database.installation, kafka
        self.topic = f"orders-{uuid4().hex[:8]}"
        self.allow_lists = AllowLists(
            enforces=True, topic_prefix=self.installation.topics.prefix, topics=("orders-*", "nowhere-*")
        )

    def make_topic(self, **config: str) -> None:
        make_topics(self.kafka, [self.topic], config={name.replace("_", "."): text for name, text in config.items()})

    def attempt(
        self, job: dict[str, Any] | None = None, *, run: dict[str, Any] | None = None, **target: object
    ) -> Attempt:
        described = {"type": "kafka", "topic": self.topic} | target
        return attempt_of({"target": described} | (job or {}), **(run or {}))

    def within(self, work: Callable[[KafkaRunner], Awaitable[Any]], kafka: Mapping[str, str] | None = None) -> Any:  # noqa: ANN401 - the work's
        """Do something with a runner that is closed afterwards."""

        async def around() -> Any:  # noqa: ANN401 - the work's
            runner = KafkaRunner(kafka or self.kafka, self.installation, LEASE, self.allow_lists)
            try:
                return await work(runner)
            finally:
                await runner.close()

        return asyncio.run(around())

    def send(self, attempt: Attempt) -> Outcome:
        """Run one attempt to its end."""
        outcome = self.within(lambda runner: runner.run(attempt))
        assert isinstance(outcome, Outcome)
        return outcome

    def written(self, count: int = 1) -> list[Seen]:
        """Return the messages of the topic, once there are this many."""
        reader = TopicReader(self.kafka, [self.topic])

        def there() -> bool:
            reader.poll()
            return len(reader.seen) >= count

        until(there, f"{count} messages lie on {self.topic}")
        return reader.seen


@pytest.fixture
def sending(database: Database, info: StackInfo) -> Sending:
    return Sending(database, info.kafka)


@pytest.mark.landing
def test_message_has_the_payload_and_the_runs_identity(sending: Sending) -> None:
    sending.make_topic()
    attempt = sending.attempt(
        {"key": "Bücher", "payload": {"to": "ann"}}, headers={"X-Team": "billing"}, run={"traceparent": TRACE}
    )
    outcome = sending.send(attempt)
    [message] = sending.written()
    assert outcome.kind is AttemptOutcome.SUCCEEDED
    assert json.loads(outcome.result or b"") == {"topic": sending.topic, "partition": 0, "offset": 0}
    assert (message.key, message.value) == ("Bücher".encode(), b'{"to":"ann"}')
    assert dict(message.headers) == {
        "content-type": b"application/json",
        "x-team": b"billing",
        "idempotency-key": str(RUN).encode(),
        "tidewheel-run-id": str(RUN).encode(),
        "tidewheel-attempt": b"1",
        "tidewheel-job-key": "Bücher".encode(),
        "tidewheel-scheduled-at": NOON.isoformat().encode(),
        "traceparent": TRACE.encode(),
    }
    sending.send(sending.attempt(key="customer-7"))
    assert [message.key for message in sending.written(2)] == ["Bücher".encode(), b"customer-7"]


def test_concurrent_messages_share_one_producer_and_thread(sending: Sending) -> None:
    sending.make_topic()

    async def work(runner: KafkaRunner) -> tuple[list[Outcome], list[str]]:
        outcomes = await asyncio.gather(*(runner.run(sending.attempt({"payload": n})) for n in range(300)))
        return outcomes, [thread.name for thread in threading.enumerate()]

    outcomes, threads = sending.within(work)
    assert "kafka-reports" not in {thread.name for thread in threading.enumerate()}
    assert {outcome.kind for outcome in outcomes} == {AttemptOutcome.SUCCEEDED}
    assert threads.count("kafka-reports") == 1
    assert sorted(int(message.value or b"-1") for message in sending.written(300)) == list(range(300))


def test_tidewheels_own_topics_are_refused(sending: Sending) -> None:
    for name in ("", ".requests", ".runs.standard", ".target-replies", ".anything"):
        topic = f"{sending.installation.topics.prefix}{name}"
        for spelling in (topic, topic.upper(), topic.replace(".", "_")):
            outcome = sending.send(sending.attempt(topic=spelling))
            assert (outcome.kind, outcome.error_type, outcome.permanent) == (AttemptOutcome.FAILED, "OwnTopic", True)
            assert spelling in (outcome.error_message or "")


@pytest.mark.landing
def test_unknown_topic_is_retried(sending: Sending) -> None:
    outcome = sending.send(sending.attempt())
    assert (outcome.kind, outcome.error_type) == (AttemptOutcome.FAILED, "kafka_unknown_topic")
    assert (outcome.permanent, outcome.not_started) == (False, True)
    assert sending.topic in (outcome.error_message or "")


def test_refused_message_fails_permanently(sending: Sending) -> None:
    sending.make_topic(max_message_bytes="2000")
    # The client packs messages: what does not pack is too large all the same.
    outcome = sending.send(sending.attempt({"payload": "".join(str(uuid4()) for _ in range(500))}))
    assert (outcome.kind, outcome.error_type, outcome.permanent) == (AttemptOutcome.FAILED, "kafka_too_large", True)


def test_interrupted_attempt_notes_that_its_message_may_be_written(sending: Sending) -> None:
    attempt = sending.attempt()

    async def work(runner: KafkaRunner) -> None:
        task = asyncio.create_task(runner.run(attempt))
        async with asyncio.timeout(30):
            while runner._producer is None or not len(runner._producer):  # pyright: ignore[reportPrivateUsage]
                await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    sending.within(work, {"bootstrap.servers": "127.0.0.1:1"})
    assert attempt.output is not None
    assert f"may have been written to {sending.topic}" in (attempt.output.tail() or b"").decode()


def test_topic_that_is_not_named_is_refused_at_the_call(sending: Sending) -> None:
    outcome = sending.send(sending.attempt(topic="invoices"))
    assert (outcome.error_type, outcome.permanent, outcome.not_started) == ("TopicRefused", True, True)
    assert "TIDEWHEEL_KAFKA_TOPICS" in (outcome.error_message or "")
