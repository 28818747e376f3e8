"""Produce to Kafka targets: the payload, with the run's headers.

All attempts share one producer, created with the first. One thread serves the delivery reports, so that an attempt that
waits for its own costs a future. The client's thread sends by itself, also after the process was stopped. So no message
stays in the client for longer than the lease lasts: it expires there, and is produced again while the lease goes on.
The output of an interrupted attempt notes that its message may still be written. Tidewheel's own topics are refused as
targets: a job could then feed itself.
"""

import asyncio
import threading
from collections.abc import Mapping
from contextlib import suppress
from datetime import timedelta
from typing import cast

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from tidewheel.clock import boot_seconds, monotonic_seconds
from tidewheel.executor.attempt import Attempt
from tidewheel.executor.lease import LeaseOver
from tidewheel.executor.outcome import NOT_STARTED, RELEASED, Outcome, failed, succeeded, waiting
from tidewheel.jobs.allow_lists import AllowLists
from tidewheel.jobs.invalid import InvalidValue
from tidewheel.kafka.clients import producer
from tidewheel.kafka.topics import Topics
from tidewheel.schemas.generated.records import KafkaTarget
from tidewheel.task_tokens import TASK_TOKEN_HEADER
from tidewheel.transitions.installation import Installation

REPLY_TOPIC_HEADER = "tidewheel-reply-topic"

_POLL_SECONDS = 0.5  # the longest sleep of the report thread, which wakes with each report; bounds the time of closing
_FULL_SECONDS = 0.05  # the client's queue is full: by then its oldest message has left, or Kafka is down
_LEAVE_SECONDS = 1.0
_RENEWAL_SECONDS = 0.05  # between two looks at a lease that must be renewed before a message is produced
# For an unknown topic: a new one may not have reached every broker yet.
_TOPIC_SEEN = 0.6  # of the time that a message may stay in the client, or it would expire before that error
_PATIENCE_SECONDS = 120.0  # of one attempt, while Kafka does not take its message
_IN_CLIENT = 1 / 3  # of the lease, the time that a message may stay in the client
# Between two removals of expired messages by the client. Source: librdkafka, rd_kafka_broker_producer_serve
_EXPIRY_SECONDS = 1.0
_MOST_OF_LEASE = 0.8  # what produce waits for where the lease is too short for both

# Errors that the next attempt would meet again. Source: librdkafka, rdkafka.h, rd_kafka_resp_err_t.
_FOR_GOOD = frozenset(
    {
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError.INVALID_MSG,
        KafkaError.INVALID_RECORD,
        KafkaError.POLICY_VIOLATION,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    }
)
# Errors after which nothing was written: an at-most-once run may start again.
_NOT_WRITTEN = _FOR_GOOD | {
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
    KafkaError._AUTHENTICATION,
}
_NAMES = {
    KafkaError.UNKNOWN_TOPIC_OR_PART: "kafka_unknown_topic",
    KafkaError._UNKNOWN_TOPIC: "kafka_unknown_topic",
    KafkaError.MSG_SIZE_TOO_LARGE: "kafka_too_large",
    KafkaError.RECORD_LIST_TOO_LARGE: "kafka_too_large",
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "kafka_not_authorised",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "kafka_not_authorised",
    KafkaError._MSG_TIMED_OUT: "kafka_timeout",
}

Headers = list[tuple[str, str | bytes | None]]


class KafkaRunner:
    """Produces to users' topics; `lease` is how long the executor's lease lasts after a heartbeat."""

    def __init__(
        self, config: Mapping[str, str], installation: Installation, lease: timedelta, allow_lists: AllowLists
    ) -> None:
        self._allow_lists = allow_lists
        seconds = lease.total_seconds()
        self._in_client_ms = int(seconds * _IN_CLIENT * 1000)
        self._needed_seconds = min(seconds * _IN_CLIENT + _EXPIRY_SECONDS, seconds * _MOST_OF_LEASE)
        self._config = {"topic.metadata.propagation.max.ms": str(int(self._in_client_ms * _TOPIC_SEEN)), **config}
        self._topics: Topics = installation.topics
        self._task_tokens = installation.task_tokens
        self._producer: Producer | None = None
        self._threads: list[threading.Thread] = []
        self._closed = False

    async def run(self, attempt: Attempt) -> Outcome:
        """Produce the payload and wait for its delivery report."""
        target = attempt.definition.target.kafka
        if target is None:
            return failed("InvalidTarget", "the job's version has no Kafka target", permanent=True)
        try:
            self._allow_lists.check_topic(target.topic)
        except InvalidValue as refusal:
            name = "OwnTopic" if self._allow_lists.is_own_topic(target.topic) else "TopicRefused"
            return failed(name, str(refusal), permanent=True, not_started=True)
        report = await self._deliver(attempt, target)
        if isinstance(report, Outcome):
            return report
        if target.reply_timeout_ms is not None:
            return waiting(timedelta(milliseconds=target.reply_timeout_ms))
        place = f'{{"topic":"{target.topic}","partition":{report.partition()},"offset":{report.offset()}}}'
        return succeeded(place.encode())

    async def _deliver(self, attempt: Attempt, target: KafkaTarget) -> Message | Outcome:
        """Produce the message, again each time it expires in the client; return its report or the outcome."""
        give_up = monotonic_seconds() + _PATIENCE_SECONDS
        while True:
            try:
                report = await self._produce(attempt, target)
            except LeaseOver:
                return NOT_STARTED
            except KafkaException as error:
                return _undelivered(target, cast("KafkaError", error.args[0]))
            fault = report.error()
            if fault is None:
                return report
            if (outcome := _outcome_of_fault(attempt, target, fault, late=monotonic_seconds() > give_up)) is not None:
                return outcome

    def recall(self) -> None:
        """Remove from the client what it has not sent: the lease is over. The heartbeat's thread calls it."""
        if (client := self._producer) is not None:
            _recall(client)

    async def close(self) -> None:
        """Close the producer; unsent messages are dropped."""
        self._closed = True
        client, self._producer = self._producer, None
        if client is not None:
            client.purge()
            await asyncio.to_thread(client.flush, _LEAVE_SECONDS)
        for thread in self._threads:
            await asyncio.to_thread(thread.join)

    async def _produce(self, attempt: Attempt, target: KafkaTarget) -> Message:
        loop = asyncio.get_running_loop()
        reported: asyncio.Future[Message] = loop.create_future()

        def report(error: KafkaError | None, message: Message) -> None:
            if error is not None and error.fatal():
                self._retire(client)
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(_resolve, reported, message)

        key = attempt.definition.job_key if target.key is None else target.key
        headers = self._headers(attempt, target)
        while True:
            client = self._get_producer()
            while (left := attempt.lease.until - boot_seconds()) < self._needed_seconds:
                if left < 0:
                    raise LeaseOver
                await asyncio.sleep(_RENEWAL_SECONDS)
            try:
                client.produce(
                    target.topic, value=attempt.payload, key=key.encode(), headers=headers, on_delivery=report
                )
                if attempt.lease.is_over():  # stopped right here: the message lingers in the client for a moment
                    _recall(client)
                break
            except BufferError:
                await asyncio.sleep(_FULL_SECONDS)
            except KafkaException as error:
                if cast("KafkaError", error.args[0]).fatal():
                    self._retire(client)
                raise
        try:
            return await reported
        except asyncio.CancelledError:
            attempt.write(
                f"interrupted: the message may have been written to {target.topic}, or may still be\n".encode()
            )
            raise

    def _get_producer(self) -> Producer:
        if self._producer is None:
            self._producer = client = producer(self._config, role="executor-target", timeout_ms=self._in_client_ms)
            self._threads = [thread for thread in self._threads if thread.is_alive()]
            self._threads.append(
                threading.Thread(target=self._report, args=(client,), name="kafka-reports", daemon=True)
            )
            self._threads[-1].start()
        return self._producer

    def _retire(self, client: Producer) -> None:
        if self._producer is client:
            self._producer = None

    def _report(self, client: Producer) -> None:
        """Serve one producer's reports while it is in use or has unreported messages."""
        while (client is self._producer or len(client)) and not self._closed:
            client.poll(_POLL_SECONDS)

    def _headers(self, attempt: Attempt, target: KafkaTarget) -> Headers:
        request = attempt.request
        headers: dict[str, str] = {
            "content-type": attempt.payload_content_type,
            **{name.lower(): value for name, value in target.headers.items()},
            "idempotency-key": request.run_id,
            "tidewheel-run-id": request.run_id,
            "tidewheel-attempt": str(attempt.started.attempt),
            "tidewheel-job-key": attempt.definition.job_key,
            "tidewheel-scheduled-at": request.scheduled_at.isoformat(),
        }
        if attempt.traceparent:
            headers["traceparent"] = attempt.traceparent
        if target.reply_timeout_ms is not None:
            headers[TASK_TOKEN_HEADER] = self._task_tokens.sign(*attempt.key)
            headers[REPLY_TOPIC_HEADER] = self._topics.target_replies
        return [(name, value.encode()) for name, value in headers.items()]


def _recall(client: Producer) -> None:
    client.purge(in_queue=True, in_flight=False, blocking=False)


def _outcome_of_fault(attempt: Attempt, target: KafkaTarget, fault: KafkaError, *, late: bool) -> Outcome | None:
    """Return the outcome of a message that was not delivered; None if it is to be produced again."""
    if fault.code() == KafkaError._PURGE_QUEUE:
        return RELEASED  # also where it was sent, without a response, and waits to be sent again
    if fault.code() == KafkaError._MSG_TIMED_OUT:
        if attempt.lease.is_over():
            return RELEASED  # it may have been written
        if not late and not attempt.definition.at_most_once:
            return None
    return _undelivered(target, fault)


def _undelivered(target: KafkaTarget, error: KafkaError) -> Outcome:
    code = error.code()
    name = _NAMES.get(code, f"kafka_{error.name().strip('_').lower()}")
    message = f"{target.topic}: {error.str()}"
    if code not in _NOT_WRITTEN:
        message += "; the message may have been written"
    return failed(name, message, permanent=code in _FOR_GOOD, not_started=code in _NOT_WRITTEN)


def _resolve(reported: "asyncio.Future[Message]", message: Message) -> None:
    if not reported.done():
        reported.set_result(message)
