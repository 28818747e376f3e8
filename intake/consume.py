"""Read requests, or targets' replies, and apply each exactly once.

The members that read requests also read the topics of single tenants. What is wrong with one of those topics pauses its
partitions alone. A partition that cannot be read yet is tried again every 30 s, and the others go on meanwhile.

A batch is applied in the transaction that stores its offsets (partitions.py). The offsets committed to Kafka serve lag
tools only and are never read back.
"""

import logging
import socket
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from uuid import uuid4

from confluent_kafka import OFFSET_END, Consumer, KafkaError, KafkaException, Message, TopicPartition

from tidewheel.clock import monotonic_seconds
from tidewheel.errors import Unavailable, Unusable
from tidewheel.intake.batch import bury_batch, origin_of
from tidewheel.intake.partitions import (
    DeferredPartitions,
    Fenced,
    Partition,
    RequestWaits,
    StoredOffsets,
    Subscription,
    SuspectReader,
    hold_deletions,
    partition_of,
)
from tidewheel.intake.recovery import Applier, RequestBreaker, read_clock
from tidewheel.kafka.clients import consumer, leave_group, poll_batch
from tidewheel.kafka.groups import quickest_protocol
from tidewheel.kafka.offsets import (
    GONE,
    end_of_batch,
    is_unreadable,
    offsets_client,
    read_led_offsets,
    read_topic_id,
    read_topic_ids,
)
from tidewheel.postgres.notify import Notifier
from tidewheel.postgres.session import BY_KEY, Session
from tidewheel.postgres.statements import Statements
from tidewheel.process.clock_skew import ClockSkew
from tidewheel.process.failpoint import failpoint
from tidewheel.process.health import health
from tidewheel.process.logs import OnceAMinute
from tidewheel.process.metrics import metrics
from tidewheel.process.service import Backoff, Shutdown
from tidewheel.schemas.generated.records import RequestOrigin
from tidewheel.settings.services import IntakeSettings
from tidewheel.transitions.installation import Installation
from tidewheel.transitions.tenant_refusals import topics_to_read

_LOG = logging.getLogger("tidewheel.intake")

_PURGE_REPLIES = Statements("tidewheel.intake")["purge_replies"]

_POLL_SECONDS = 0.2
_KAFKA_SECONDS = 10.0
_HOUSEKEEPING_SECONDS = 60.0
_REJOIN_SECONDS = 0.2  # joining takes longer than that by itself
_NO_TROUBLE = "", float("-inf")
_TROUBLED_SECONDS = 30.0  # longer than the longest pause between two tries, plus the duration of one try
_AGAIN_SECONDS = 30.0  # between two tries of a partition that waits: behind a request, for its leader, or for its topic
_READ_AHEAD = 100  # messages that are read behind a postponed request, to find such a request
_PURGE_LIMIT = 5000  # the LIMIT of purge_replies: more rows are due when it was reached


class Member:
    """One member of a consumer group, on its own thread; numbered from 1 within process and topic."""

    def __init__(
        self,
        settings: IntakeSettings,
        url: str,
        kafka: dict[str, str],
        *,
        topic: str,
        number: int,
        skew: ClockSkew,
        breaker: RequestBreaker,
        installation: Installation,
        stop: Shutdown,
    ) -> None:
        self._name = f"intake of {topic}, member {number}"
        self._trouble = _NO_TROUBLE  # the last error that ended a membership, and its time
        self._settings, self._kafka, self._installation, self._stop = settings, kafka, installation, stop
        self._topic, self._group = topic, group_of(topic, installation)
        self._session = Session(url, "tidewheel-intake", options=BY_KEY, renews=True)
        self._notifier = Notifier(url, "tidewheel-intake-notify")
        self._owner = f"{socket.gethostname()}/{uuid4()}"
        self._skew, self._breaker = skew, breaker
        self._topic_ids: dict[str, str] = {}
        self._offsets = StoredOffsets(self._owner, self._topic_ids)
        self._deferred, self._lines = DeferredPartitions(), OnceAMinute()
        self._paused: set[Partition] = set()
        self._waiting: set[Partition] = set()  # assigned, and to be tried again
        self._try_at = 0.0
        self._fenced: Fenced | None = None  # by a callback
        self._next_housekeeping = 0.0
        self._applier = Applier(
            self._session,
            self._notifier,
            installation,
            breaker=breaker,
            skew=skew,
            max_batch=settings.intake_batch,
            stop=stop,
        )

    def run(self) -> None:
        """Process messages until shutdown is requested."""
        backoff = Backoff(self._stop, self._name)
        health.requires(self._name, self.why_not_ready)
        try:
            while not self._stop.requested():
                try:
                    self._membership(backoff)
                except Fenced as error:
                    # A rebalance is no failure, and does not end the backoff: no work has succeeded since.
                    level = logging.INFO if error.__cause__ is None else logging.WARNING
                    _LOG.log(level, "%s rejoins its group: %s", self._name, error)
                    self._stop.wait(_REJOIN_SECONDS)
                except (Unavailable, KafkaException) as error:
                    self._trouble = str(error), monotonic_seconds()
                    backoff.wait(error)
        finally:
            health.remove_loop()
            self._notifier.close()
            self._session.close()

    def why_not_ready(self) -> str | None:
        """Return the last error, until partitions are assigned again.

        A member without partitions is ready too, so an error is reported for 30 s only.
        """
        what, at = self._trouble
        return what if monotonic_seconds() - at < _TROUBLED_SECONDS else None

    def _membership(self, backoff: Backoff) -> None:
        self._breaker.forget(self._offsets.partitions)
        self._topic_ids = {self._topic: read_topic_id(self._kafka, self._topic)}
        self._offsets = StoredOffsets(self._owner, self._topic_ids)
        self._deferred, self._paused, self._waiting = DeferredPartitions(), set(), set()
        self._applier.begin(self._offsets, self._deferred)
        self._fenced = None
        protocol = quickest_protocol(self._kafka, topic=self._topic, probe=f"{self._group}.probe")
        client = consumer(self._kafka, group=self._group, role="intake", protocol=protocol, reset="error")
        find = partial(self._find_topics, client)
        subscription = Subscription(find, partial(self._subscribe, client))
        try:
            while not self._stop.requested():
                health.report(self._name)
                subscription.refresh()
                if self._waiting and monotonic_seconds() >= self._try_at:
                    self._try_again(client)
                self._process(client, self._poll(client))  # in no variable: the next poll would hold both
                self._process(client, self._deferred.take())
                backoff.reset()
                self._housekeeping()
        finally:
            leave_group(client)

    def _subscribe(self, client: Consumer, topics: list[str]) -> None:
        client.subscribe(topics, on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_revoke)

    def _find_topics(self, client: Consumer) -> list[str]:
        if self._topic != self._installation.topics.requests:
            return [self._topic]
        present = client.list_topics(timeout=_KAFKA_SECONDS).topics
        return self._session.within(topics_to_read, self._installation.topics, present)

    def _poll(self, client: Consumer) -> list[Message]:
        messages = poll_batch(client, self._settings.intake_batch, _POLL_SECONDS)
        if self._fenced is not None:
            raise self._fenced
        good: list[Message] = []
        for message in messages:
            error = message.error()
            if error is None:
                # Kafka may still deliver messages of a revoked assignment, or from before the stored offset.
                if self._offsets.is_pending(message):
                    good.append(message)
            elif is_unreadable(error):
                # Reported again, and buried then, if messages before it are still to be applied.
                if not good and partition_of(message) not in self._deferred.partitions:
                    self._bury_batch(client, message, error)
            elif error.code() == KafkaError._AUTO_OFFSET_RESET:
                self._abandon_partition(client, message, error)
            elif error.code() in GONE and self._is_of_tenant(message.topic()):
                _LOG.warning("%s is not read: %s", message.topic(), error.str())
            elif error.code() != KafkaError._PARTITION_EOF:
                raise Unavailable(f"{message.topic()}: {error.str()}")
        return good

    def _is_of_tenant(self, topic: str | None) -> bool:
        """Return True for a tenant's own topic: what is wrong with it stops no other one."""
        return self._installation.topics.tenant_of(topic or "") is not None

    def _abandon_partition(self, client: Consumer, message: Message, error: KafkaError) -> None:
        """Pause a partition whose stored offset is not in the topic; the other partitions go on."""
        topic, number = partition_of(message)
        self._offsets.drop((topic, number))
        client.pause([TopicPartition(topic, number)])
        metrics.count("intake_partitions_abandoned")
        _LOG.error(
            "partition %s/%d is paused: its stored offset is not in the topic (%s), so requests expired before"
            " intake read them. Set next_offset in intake_offsets to the offset to continue from, and restart intake",
            topic,
            number,
            error.str(),
        )

    def _bury_batch(self, client: Consumer, message: Message, error: KafkaError) -> None:
        """Step over a batch that the client cannot unpack."""
        if not self._offsets.is_pending(message):
            return
        first = TopicPartition(*partition_of(message), message.offset() or 0)
        end = end_of_batch(self._kafka, self._group, first)
        self._bury(first, end, error.str())
        client.seek(TopicPartition(first.topic, first.partition, end))

    def _bury(self, first: TopicPartition, end: int, reason: str = "it is too large") -> None:
        """Store a dead letter in the place of a batch, and the offset behind it."""
        ends = {(first.topic, first.partition): end}
        if self._lines.is_due(first.topic):
            text = "the batch of messages at %s/%d/%d cannot be read and becomes a dead letter, as may others: %s"
            _LOG.error(text, first.topic, first.partition, first.offset, reason)
        origin = RequestOrigin(topic=first.topic, partition=first.partition, offset=first.offset)
        with self._session.transaction() as connection:
            self._offsets.store(connection, ends)
            bury_batch(connection, self._installation, origin, end, read_clock(connection, self._skew))
            failpoint("intake.before_commit")
        self._offsets.committed(ends)

    def _process(self, client: Consumer, messages: Sequence[Message]) -> None:
        if not messages:
            return
        self._applier.apply(messages)
        # Nothing more is read from a deferred partition, but for a few requests behind a postponed one.
        deferred = {
            partition
            for partition in self._deferred.partitions
            if len(self._deferred) >= _READ_AHEAD
            or self._deferred.is_cut(partition)
            or not self._breaker.is_postponed(partition)
        }
        client.pause([TopicPartition(*partition) for partition in deferred - self._paused])
        for partition, offset in self._deferred.rewinds().items():
            client.seek(TopicPartition(*partition, offset))
        client.resume([TopicPartition(*partition) for partition in self._paused - deferred])
        self._paused = deferred
        self._commit(client, self._offsets.next_offsets({partition_of(message) for message in messages}))

    def _on_assign(self, client: Consumer, partitions: list[TopicPartition]) -> None:
        backoff, unreadable = Backoff(self._stop, "acquiring partitions"), partitions
        while not self._stop.requested():
            try:
                unreadable = self._acquire(partitions)
                break
            except (Unavailable, KafkaException) as error:
                backoff.wait(error)
            except Fenced as error:
                # Raised by the loop: after an exception from here the client reads from the committed offsets.
                self._fenced = error
                break
        backoff.reset()
        for each in unreadable:
            each.offset = OFFSET_END
        client.incremental_assign(partitions)
        if unreadable:
            client.pause(unreadable)
        self._trouble = _NO_TROUBLE

    def _try_again(self, client: Consumer) -> None:
        """Try to read the partitions that wait; the others go on."""
        waiting, self._waiting = self._waiting, set()
        partitions = [TopicPartition(*each) for each in sorted(waiting)]
        try:
            unreadable = {(each.topic, each.partition) for each in self._acquire(partitions)}
            for each in partitions:
                if (each.topic, each.partition) not in unreadable:
                    client.seek(each)
                    client.resume([each])
        except (Unavailable, KafkaException) as error:
            _LOG.info("waiting partitions are retried in %d s: %s", _AGAIN_SECONDS, error)
            self._wait_for(waiting)

    def _wait_for(self, partitions: Iterable[Partition]) -> None:
        self._waiting.update(partitions)
        self._try_at = monotonic_seconds() + _AGAIN_SECONDS

    def _acquire(self, partitions: Sequence[TopicPartition]) -> list[TopicPartition]:
        """Set the next offset of each partition; return those that must not be read, set to OFFSET_END."""
        offsets = self._read_offsets([(each.topic, each.partition) for each in partitions])
        health.report(self._name)
        of_tenants = {place: tenant for place in offsets if (tenant := self._installation.topics.tenant_of(place[0]))}
        with self._session.transaction() as connection:
            removed = hold_deletions(connection, of_tenants.values()) if of_tenants else set[str]()
            kept = {place: each for place, each in offsets.items() if of_tenants.get(place) not in removed}
            acquired = self._offsets.acquire(connection, kept)
        unreadable: list[TopicPartition] = []
        for each in partitions:
            place = (each.topic, each.partition)
            each.offset = acquired.get(place, OFFSET_END)
            if place in kept and place not in acquired:
                self._report_recreated(*place)
            health.report(self._name)
            if place not in acquired or not self._read_suspect(each):
                unreadable.append(each)
        if late := {(each.topic, each.partition) for each in partitions} - offsets.keys():
            _LOG.warning("%s: no leader answers; retrying in %d s", _listed(late), _AGAIN_SECONDS)
            self._wait_for(late)
        return unreadable

    def _read_offsets(self, places: Sequence[Partition]) -> dict[Partition, tuple[int, int]]:
        """Return the first and the next offset of each partition; none of a tenant's that cannot be read now."""
        shared = [place for place in places if place[0] == self._topic]
        of_tenants = [place for place in places if place[0] != self._topic]
        topics = sorted({topic for topic, _ in of_tenants})
        for topic in topics:
            self._topic_ids.pop(topic, None)  # it may have been deleted and created again
        self._topic_ids |= read_topic_ids(self._kafka, topics)
        # By a client of its own: after `list_topics` in a callback, the next callback of the same poll ends the process
        # (`CallState_get` of confluent-kafka).
        with offsets_client(self._kafka) as client:
            offsets = read_led_offsets(client, shared)
            if missing := set(shared) - offsets.keys():
                raise Unavailable(f"{_listed(missing)}: no leader answers")
            return offsets | read_led_offsets(client, [place for place in of_tenants if place[0] in self._topic_ids])

    def _report_recreated(self, topic: str, number: int) -> None:
        problem = (
            f"{topic} was deleted and created again: its stored offsets are no longer valid. If its old requests are no"
            " longer needed, delete the topic's rows from intake_offsets"
        )
        if topic == self._topic:
            raise Unusable(problem)
        metrics.count("intake_partitions_abandoned")
        _LOG.error("partition %s/%d is paused: %s, and restart intake", topic, number, problem)

    def _read_suspect(self, partition: TopicPartition) -> bool:
        """Read the next messages of a suspect partition; return False if the client must not read it."""
        address = (partition.topic, partition.partition)
        if not self._offsets.is_suspect(address):
            return True
        _LOG.warning(
            "%s/%d: no progress after several starts; intake reads its messages under a memory limit", *address
        )
        reader = SuspectReader(
            self._kafka,
            self._group,
            batch=self._settings.intake_batch,
            apply=self._apply_suspect,
            bury=self._bury,
            on_step=self._go_on,
        )
        try:
            offset = reader.read(partition)
        except RequestWaits as wait:
            _LOG.info("%s/%d is read again in %d s: %s", *address, _AGAIN_SECONDS, wait)
            self._wait_for([address])
            offset = None
        else:
            if offset is None:
                metrics.count("intake_partitions_abandoned")
                _LOG.error(
                    "partition %s/%d is paused: the batch at its next_offset in intake_offsets is too large, and its"
                    " end is not found. Set the next_offset behind the batch, and restart intake",
                    *address,
                )
        if offset is None:
            self._offsets.drop(address)
            self._deferred.drop(address)
            partition.offset = OFFSET_END
            return False
        self._offsets.trust(address)
        partition.offset = offset
        return True

    def _apply_suspect(self, messages: Sequence[Message]) -> None:
        self._applier.apply(messages)
        if partition_of(messages[0]) in self._deferred.partitions:
            raise RequestWaits(f"a request at or behind {origin_of(messages[0])} waits")

    def _go_on(self) -> None:
        """Report progress in the middle of an assignment, and end it at a shutdown."""
        health.report(self._name)
        if self._stop.requested():
            raise Fenced(self._name)

    def _on_revoke(self, client: Consumer, partitions: list[TopicPartition]) -> None:
        revoked = {(partition.topic, partition.partition) for partition in partitions}
        with suppress(KafkaException):  # a lost partition cannot be resumed
            client.resume([TopicPartition(*partition) for partition in revoked & self._paused])
        self._paused -= revoked
        self._waiting -= revoked
        self._breaker.forget(revoked)
        for partition in revoked:
            self._offsets.drop(partition)
            self._deferred.drop(partition)

    def _commit(self, client: Consumer, ends: Mapping[Partition, int]) -> None:
        if not ends:
            return
        try:
            client.commit(
                offsets=[TopicPartition(*partition, end) for partition, end in ends.items()], asynchronous=True
            )
        except KafkaException as error:
            _LOG.info("offsets not committed to Kafka (they are stored in the database): %s", error)

    def _housekeeping(self) -> None:
        """Delete expired replies, every 60 s or as long as there are more."""
        if monotonic_seconds() >= self._next_housekeeping:
            self._next_housekeeping = monotonic_seconds() + _HOUSEKEEPING_SECONDS
            try:
                deleted = self._purge_replies()
            except Unavailable as error:
                _LOG.info("expired replies cannot be deleted now: %s", error)
                return
            if deleted == _PURGE_LIMIT:
                self._next_housekeeping = 0.0

    def _purge_replies(self) -> int:
        with self._session.transaction() as connection:
            read_clock(connection, self._skew)
            return connection.execute(_PURGE_REPLIES, {"kept": self._settings.requests_kept}).rowcount


def _listed(partitions: Iterable[Partition]) -> str:
    first, *others = (f"{topic}/{number}" for topic, number in sorted(partitions))
    return f"{first} and {len(others)} others" if others else first


def group_of(topic: str, installation: Installation) -> str:
    """Return the consumer group of a topic.

    Each topic has its own group. One group for both would assign the partitions of both topics together, and one member
    could get most partitions of the requests. Both names have one prefix, for access rules that grant a prefix.
    """
    requests = f"{installation.topics.requests}.intake"
    return requests if topic == installation.topics.requests else f"{requests}.replies"
