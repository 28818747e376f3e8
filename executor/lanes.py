"""Create the consumers of an executor, one a lane of a queue; consume a lane in a share group.

A message is acknowledged after the durable claim, whichever executor won it, and never kept for the work. A message
that finds no slot in time is acknowledged too: from then on the sweep of an executor with a free slot finds its run. It
is released to the group only if the database did not answer, or when this member leaves. A batch that cannot be
unpacked is rejected.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

from confluent_kafka import AcknowledgeType, KafkaException, Message, ShareConsumer, TopicPartition

from tidewheel.clock import monotonic_seconds
from tidewheel.errors import Unavailable
from tidewheel.executor.consume import LaneConsumer
from tidewheel.executor.run_messages import BatchClaimer, FetchedMessage, without_errors
from tidewheel.executor.slots import Slots
from tidewheel.kafka.clients import RUNS_QUEUED, consumer, share_consumer
from tidewheel.kafka.groups import GroupProtocol, group_protocol, read_from_start
from tidewheel.kafka.offsets import is_unreadable
from tidewheel.kafka.topics import Topics, missing_topic_remedy, missing_topics
from tidewheel.process.failpoint import failpoint
from tidewheel.process.health import health
from tidewheel.process.service import Backoff, Shutdown
from tidewheel.runs import Lane
from tidewheel.settings.executor import ExecutorSettings

_LOG = logging.getLogger("tidewheel.executor")

_POLL_SECONDS = 0.2
_FULL_SECONDS = 0.5  # between two checks while no slot is free
_LINGER_SECONDS = 0.002
_MAX_CLAIMS = 500  # claims in one transaction
_MAX_SHARED = 500  # messages requested from a share group at once
_LONGEST_WAIT = timedelta(seconds=5)  # far below 15 s, the shortest lock on a message that a broker may set


class ShareLaneConsumer:
    """The thread that consumes one topic; it joins the group again after a fatal error of the client."""

    def __init__(
        self,
        join_group: Callable[[], ShareConsumer],
        topic: str,
        lane: Lane,
        *,
        claimer: BatchClaimer,
        slots: Slots,
        max_wait: timedelta,
        overloaded: Callable[[], bool],
        stop: Shutdown,
    ) -> None:
        self._join_group, self._topic, self._lane = join_group, topic, lane
        self._claimer, self._slots, self._overloaded, self._stop = claimer, slots, overloaded, stop
        self._max_wait_seconds = max_wait.total_seconds()
        self._client: ShareConsumer | None = None
        self._idle = True
        self._claim_failed = False  # the database did not answer the last claim
        self._thread = threading.Thread(target=self._run, name=f"share-{lane}", daemon=True)

    def start(self) -> None:
        """Start the thread, which joins the group."""
        self._thread.start()

    @property
    def idle(self) -> bool:
        """True if the last poll was empty."""
        return self._idle

    @property
    def has_backlog(self) -> bool:
        """False always: a share consumer never overcommits."""
        return False

    def join(self) -> None:
        """Wait until it has left its group."""
        self._thread.join(timeout=30)

    def _run(self) -> None:
        backoff = Backoff(self._stop, f"consuming {self._topic}")
        while not self._stop.requested():
            health.report(f"consuming {self._topic}")
            try:
                self._poll_cycle()
            except (Unavailable, KafkaException) as error:
                self._idle = True
                self._drop_if_fatal(error)
                backoff.wait(error)
                continue
            except Exception as error:  # noqa: BLE001 - a lane that stops in silence is worse than any error
                self._leave()
                backoff.wait(error, unexpected=True)
                continue
            backoff.reset()
        health.remove_loop()
        self._leave()
        self._claimer.close()

    def _poll_cycle(self) -> None:
        if not self._wait_for_slots():
            return
        if self._claim_failed:
            # Each released delivery counts, and after the fifth the broker drops the message.
            self._claimer.check()
            self._claim_failed = False
        client = self._client or self._join()
        messages = without_errors(self._reject_unreadable(client, client.poll(_POLL_SECONDS)), self._topic)
        self._idle = not messages
        if messages:
            self._serve(client, messages)

    def _reject_unreadable(self, client: ShareConsumer, delivered: Iterable[Message]) -> list[Message]:
        """Reject messages that the client cannot unpack, and return the others; the sweep starts their runs.

        The client would release them. The broker delivers a released batch five times, to one member after another.
        """
        found: list[Message] = []
        unreadable: list[Message] = []
        for message in delivered:
            error = message.error()
            (unreadable if error is not None and is_unreadable(error) else found).append(message)
        if unreadable:
            first = unreadable[0]
            _LOG.error(
                "%s/%s: %d messages from offset %s cannot be read (%s); the sweep starts their runs",
                *(self._topic, first.partition(), len(unreadable), first.offset(), first.error()),
            )
            self._acknowledge(client, unreadable, AcknowledgeType.REJECT)
        return found

    def _serve(self, client: ShareConsumer, messages: Sequence[Message]) -> None:
        """Claim messages as slots come free, leave the rest to the sweep, and acknowledge all of them.

        Messages that are not for this executor take no slot.
        """
        until = monotonic_seconds() + self._max_wait_seconds
        fetched = self._claimer.decode(messages)
        self._acknowledge(client, [each.message for each in fetched if each.run is None], AcknowledgeType.ACCEPT)
        left: Sequence[FetchedMessage] = [each for each in fetched if each.run is not None]
        try:
            while left and not self._stop.requested() and self._wait_free(until):
                left = self._claim_some(client, left)
        finally:
            # After an error or during a shutdown: another member may get them at once.
            failed = left and (self._claim_failed or self._stop.requested())
            kind = AcknowledgeType.RELEASE if failed else AcknowledgeType.ACCEPT
            self._acknowledge(client, [each.message for each in left], kind)

    def _claim_some(self, client: ShareConsumer, fetched: Sequence[FetchedMessage]) -> Sequence[FetchedMessage]:
        taken = self._slots.take(self._lane, min(len(fetched), _MAX_CLAIMS))
        batch, left = fetched[:taken], fetched[taken:]
        started = 0
        try:
            if batch:
                self._claim_failed = True
                started = self._claimer.claim(batch, real=taken).started
                self._claim_failed = False
        finally:
            self._slots.release(self._lane, taken - started)
        self._acknowledge(client, [each.message for each in batch], AcknowledgeType.ACCEPT)
        failpoint("claim.offsets_committed")
        return left

    def _acknowledge(self, client: ShareConsumer, messages: Sequence[Message], kind: AcknowledgeType) -> None:
        if not messages:
            return
        try:
            for message in messages:
                client.acknowledge(message, kind)
            client.commit_async()
        except KafkaException as error:
            # The lock on the message expires, and the claim drops a repeated delivery.
            _LOG.info("messages of %s not acknowledged: %s", self._topic, error)

    def _wait_for_slots(self) -> bool:
        """Wait until a slot is free: a full executor requests no messages."""
        while not self._stop.requested():
            if not self._overloaded() and self._slots.wait_free(self._lane, _FULL_SECONDS):
                return True
            health.report_waiting()
            self._stop.wait(_LINGER_SECONDS)
        return False

    def _wait_free(self, until: float) -> bool:
        left = until - monotonic_seconds()
        if not self._slots.wait_free(self._lane, max(left, 0)):
            return False
        if self._slots.free(self._lane) < self._slots.total // 4:
            # More slots come free in a moment, and a claim costs as much for one run as for a dozen.
            self._stop.wait(_LINGER_SECONDS)
        return True

    def _join(self) -> ShareConsumer:
        self._client = self._join_group()
        self._client.set_acknowledgement_commit_callback(self._on_acknowledged)
        self._client.subscribe([self._topic])
        return self._client

    def _leave(self) -> None:
        """Leave the group; unacknowledged messages return to it."""
        client, self._client = self._client, None
        if client is not None:
            try:
                client.close()
            except KafkaException as error:
                _LOG.info("leaving the group of %s failed: %s", self._topic, error)

    def _drop_if_fatal(self, error: Unavailable | KafkaException) -> None:
        if isinstance(error, KafkaException) and error.args[0].fatal():
            self._leave()

    def _on_acknowledged(self, offsets: Mapping[TopicPartition, set[int]], error: KafkaException | None) -> None:
        if error is not None:
            count = sum(map(len, offsets.values()))
            _LOG.info("%d acknowledgements on %s were too late: %s", count, self._topic, error)


@dataclass(frozen=True, slots=True)
class Lanes:
    """The topics of an executor, and how it consumes them."""

    kafka: Mapping[str, str]
    protocol: GroupProtocol
    topics: Sequence[tuple[str, Lane]]

    def consumers(
        self,
        batch_claimer: Callable[[str, Lane], BatchClaimer],
        *,
        slots: Slots,
        max_wait: timedelta,
        overloaded: Callable[[Lane], bool],
        stop: Shutdown,
    ) -> Sequence[LaneConsumer | ShareLaneConsumer]:
        """Return a consumer for each topic, none of them started."""
        created: list[LaneConsumer | ShareLaneConsumer] = []
        if self.protocol == "share":
            read_from_start(self.kafka, [_share_group(topic) for topic, _ in self.topics])
        for topic, lane in self.topics:
            claimer, role = batch_claimer(topic, lane), f"executor-{lane}"
            if self.protocol == "share":
                max_records, max_wait = min(slots.total, _MAX_SHARED), min(max_wait, _LONGEST_WAIT)

                def join_group(topic: str = topic, role: str = role, max_records: int = max_records) -> ShareConsumer:
                    return share_consumer(self.kafka, group=_share_group(topic), role=role, max_records=max_records)

                shared = ShareLaneConsumer(
                    join_group,
                    topic,
                    lane,
                    claimer=claimer,
                    slots=slots,
                    max_wait=max_wait,
                    overloaded=partial(overloaded, lane),
                    stop=stop,
                )
                created.append(shared)
            else:
                group = f"{topic}.executors"
                member = consumer(self.kafka, group=group, role=role, protocol=self.protocol, queued=RUNS_QUEUED)
                created.append(
                    LaneConsumer(
                        member,
                        topic,
                        lane,
                        claimer=claimer,
                        slots=slots,
                        max_wait=max_wait,
                        overloaded=partial(overloaded, lane),
                        stop=stop,
                    )
                )
        return created


def choose_lanes(settings: ExecutorSettings, kafka: Mapping[str, str], topics: Topics, queues: Sequence[str]) -> Lanes:
    """Return the lanes of an executor of these queues, with a group protocol that the brokers support.

    A queue without topics is reported: its runs start by the sweep alone.
    """
    found = [(topics.runs(queue, lane), lane) for queue in queues for lane in Lane]
    if missing := missing_topics(kafka, [name for name, _ in found]):
        for remedy in dict.fromkeys(map(missing_topic_remedy, missing)):
            names = ", ".join(name for name in missing if missing_topic_remedy(name) == remedy)
            _LOG.error("topics %s are missing: only the sweep starts their runs; run `%s`", names, remedy)
    # Below `<prefix>.runs.`, like the executors' own groups: one ACL covers them all.
    probe = f"{topics.prefix}.runs.probe"
    return Lanes(kafka, group_protocol(kafka, settings.executor_group, topic=found[0][0], probe=probe), found)


def _share_group(topic: str) -> str:
    """Return the name of a share group; a consumer group cannot have the same one."""
    return f"{topic}.share"
