"""Reads requests, or targets' replies, exactly once: a batch and its offsets are one transaction.

The offsets that count lie in `intake_offsets`, under an epoch that every assignment raises: what a previous owner still
tries to commit hits no row. A batch that fails on its data is repeated request by request, and the one that fails is
rejected; one that takes longer than the database allows is repeated in halves, down to the request that does so alone.
A request that needs what a transaction of somebody else has in hand waits with its own partition, and no other.
Any other error rejects nobody and is tried again. Kafka's own commits are for lag tools and never read back.
"""

import logging
import socket
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from datetime import datetime
from typing import Protocol, TypeAlias, cast
from uuid import uuid4

import psycopg
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient

from tidewheel.clock import monotonic_seconds
from tidewheel.errors import Unavailable
from tidewheel.intake.batch import Apart, TooLong, origin_of, take_in
from tidewheel.intake.lock_wait import Busy
from tidewheel.intake.locks import read_now
from tidewheel.intake.offsets import Fenced, HeldBack, Partition, Places, ends_of, partition_of
from tidewheel.kafka.clients import consumer
from tidewheel.kafka.groups import quickest_protocol
from tidewheel.postgres.notify import Channel, Notifier
from tidewheel.postgres.session import BY_KEY, CommitUnknown, Conn, Session, is_data_fault, is_time_limit
from tidewheel.postgres.statements import Statements
from tidewheel.process.clock_skew import Skew
from tidewheel.process.failpoint import failpoint
from tidewheel.process.health import health
from tidewheel.process.metrics import metrics
from tidewheel.process.service import Patience, Stop
from tidewheel.settings import IntakeSettings
from tidewheel.transitions.installation import Installation

_LOG = logging.getLogger("tidewheel.intake")

_FORGET_ANSWERS = Statements("tidewheel.intake")["forget_answers"]

_POLL_SECONDS = 0.2
_KAFKA_SECONDS = 10.0
_KEEP_HOUSE_SECONDS = 60.0
# A batch that cannot be written for so long is let go with its partitions, well before the group would evict this
# member for not polling (five minutes).
_GIVE_UP_SECONDS = 60.0
_JOIN_ANEW_SECONDS = 0.2  # joining takes longer than that by itself
_NO_TROUBLE = "", float("-inf")
_TROUBLED_SECONDS = 30.0  # longer than the longest pause between two tries, and what a try takes
# A request is rejected when it has so often taken too long alone: the first time the database may just have been slow.
_TOO_LONG_TIMES = 2
_FORGOTTEN_AT_ONCE = 5000  # the LIMIT of forget_answers: where it was reached, there is more


_Address: TypeAlias = tuple[Partition, int]  # of one message


class _Described(Protocol):
    topic_id: object


class Member:
    """One member of the group that reads one topic, on the thread that runs it.

    Args:
        settings: The batch.
        url: The database.
        kafka: The brokers.
        topic: What it reads.
        number: Which of those that read this topic in this process, from 1.
        skew: What this process knows of its clock.
        installation: Shards, topics, encoding.
        stop: The wish to stop.
    """

    def __init__(
        self,
        settings: IntakeSettings,
        url: str,
        kafka: dict[str, str],
        *,
        topic: str,
        number: int,
        skew: Skew,
        installation: Installation,
        stop: Stop,
    ) -> None:
        self._name = f"intake of {topic}, member {number}"
        self._trouble = _NO_TROUBLE  # what kept it from its work last, and when
        self._settings, self._kafka, self._installation, self._stop = settings, kafka, installation, stop
        self._topic, self._group = topic, group_of(topic, installation)
        self._session = Session(url, "tidewheel-intake", options=BY_KEY)
        self._notifier = Notifier(url, "tidewheel-intake-notify")
        self._owner = f"{socket.gethostname()}/{uuid4()}"
        self._skew = skew
        self._places = Places(self._owner, {})
        self._held = HeldBack()
        self._paused: set[Partition] = set()
        self._next_house = 0.0
        # Both outlive the membership: a batch that takes too long costs it, and must not come back whole.
        self._most = settings.intake_batch
        self._too_long: dict[_Address, int] = {}

    def run(self) -> None:
        """Take in requests until asked to stop."""
        patience = Patience(self._stop, self._name)
        health.requires(self._name, self.why_not_ready)
        try:
            while not self._stop.asked():
                try:
                    self._membership(patience)
                except Fenced as error:
                    # That partitions change hands is no trouble, and nothing works again after it.
                    level = logging.INFO if error.__cause__ is None else logging.WARNING
                    _LOG.log(level, "%s joins anew: %s", self._name, error)
                    self._stop.wait(_JOIN_ANEW_SECONDS)
                except (Unavailable, KafkaException) as error:
                    self._trouble = str(error), monotonic_seconds()
                    patience.wait(error)
        finally:
            health.ends()
            self._notifier.close()
            self._session.close()

    def why_not_ready(self) -> str | None:
        """What keeps it from its work, until it has partitions again.

        One that has none given is well too: what it met is told for a while only.
        """
        what, at = self._trouble
        return what if monotonic_seconds() - at < _TROUBLED_SECONDS else None

    def _membership(self, patience: Patience) -> None:
        """One membership of the group: from joining to whatever ends it."""
        self._places = Places(self._owner, {self._topic: self._read_topic_id()})
        self._held, self._paused = HeldBack(), set()
        protocol = quickest_protocol(self._kafka, topic=self._topic, probe=f"{self._group}.probe")
        client = consumer(self._kafka, group=self._group, role="intake", protocol=protocol, reset="error")
        client.subscribe([self._topic], on_assign=self._on_assign, on_revoke=self._on_gone, on_lost=self._on_gone)
        try:
            while not self._stop.asked():
                health.turns(self._name)
                if messages := self._poll(client):
                    self._take_in(client, messages)
                if messages := self._held.take():
                    self._take_in(client, messages)
                patience.over()
                self._keep_house()
        finally:
            client.close()

    def _poll(self, client: Consumer) -> list[Message]:
        first = client.poll(_POLL_SECONDS)
        if first is None:
            return []
        messages = [first, *client.consume(self._settings.intake_batch - 1, 0)]
        good: list[Message] = []
        for message in messages:
            error = message.error()
            if error is None:
                # What was read under an assignment that is gone, or before the place we stand at, is not ours.
                if self._places.ahead(message):
                    good.append(message)
            elif error.code() == KafkaError._AUTO_OFFSET_RESET:
                self._leave_out(client, message, error)
            elif error.code() != KafkaError._PARTITION_EOF:
                text = f"{message.topic()}: {error.str()}"
                raise Unavailable(text)
        return good

    def _leave_out(self, client: Consumer, message: Message, error: KafkaError) -> None:
        """One partition whose place is not in the topic is left alone; the others go on."""
        topic, number = partition_of(message)
        self._places.forget((topic, number))
        client.pause([TopicPartition(topic, number)])
        metrics.count("intake_partitions_abandoned")
        _LOG.error(
            "%s/%d is left alone: its stored offset is not in the topic (%s), requests have expired unread. Decide"
            " where to go on, set next_offset in intake_offsets, and restart intake",
            topic,
            number,
            error.str(),
        )

    def _take_in(self, client: Consumer, messages: Sequence[Message]) -> None:
        self._apply_patiently(messages)
        # Nothing more is read of what is held back.
        held = set(self._held.partitions)
        client.pause([TopicPartition(*partition) for partition in held - self._paused])
        client.resume([TopicPartition(*partition) for partition in self._paused - held])
        self._paused = held
        self._commit(client, self._places.stand({partition_of(message) for message in messages}))

    def _apply_patiently(self, messages: Sequence[Message]) -> None:
        failpoint("intake.received")
        patience = Patience(self._stop, "applying requests")
        since = monotonic_seconds()
        # What comes after a message that is held back is held back too.
        self._held.add([message for message in messages if message in self._held])
        while left := [message for message in messages if self._places.ahead(message) and message not in self._held]:
            piece = left[: self._most]
            try:
                self._apply(piece, self._given_up(piece))
            except CommitUnknown as error:
                raise Fenced(str(error)) from error
            except Busy as error:
                self._hold_back(left, error)
                continue
            except Unavailable as error:
                if is_time_limit(error):
                    self._take_less(piece, error)
                if self._stop.asked() or monotonic_seconds() - since > _GIVE_UP_SECONDS:
                    raise Fenced(str(error)) from error
                patience.wait(error)
                continue
            patience.over()
            self._most = min(2 * self._most, self._settings.intake_batch)
        self._too_long.clear()

    def _hold_back(self, messages: Sequence[Message], error: Busy) -> None:
        for origin in error.origins:
            partition = (origin.topic, origin.partition)
            alike = [message for message in messages if partition_of(message) == partition]
            behind = [message for message in alike if (message.offset() or 0) >= origin.offset]
            self._held.add(behind)
            _LOG.info("%s/%d waits with %d requests: %s", *partition, len(behind), error)

    def _take_less(self, messages: Sequence[Message], error: Unavailable) -> None:
        self._most = max(len(messages) // 2, 1)
        if len(messages) > 1:
            _LOG.warning("%d requests took too long (%s); applying %d at once", len(messages), error, self._most)
            return
        address = _address(messages[0])
        self._too_long[address] = self._too_long.get(address, 0) + 1

    def _given_up(self, messages: Sequence[Message]) -> TooLong | None:
        """Why a request is to be rejected that has taken too long by itself."""
        if len(messages) > 1 or self._too_long.get(_address(messages[0]), 0) < _TOO_LONG_TIMES:
            return None
        _LOG.error("a request takes too long and is rejected", extra={"origin": origin_of(messages[0])})
        return TooLong()

    def _apply(self, messages: Sequence[Message], failure: TooLong | None = None) -> None:
        # Those that an earlier try has applied one by one are behind us.
        messages = [message for message in messages if self._places.ahead(message)]
        if not messages:
            return
        try:
            self._apply_at_once(messages, failure)
        except (Fenced, Unavailable):
            raise
        except Apart as apart:
            for piece in _cut(messages, apart.messages):
                self._apply(piece)
        except Exception as error:
            if isinstance(error, psycopg.Error) and not is_data_fault(error):
                raise Unavailable(str(error)) from error
            if len(messages) > 1:
                _LOG.warning("a batch of %d requests failed (%s); applying them one by one", len(messages), error)
                for message in messages:
                    self._apply([message])
                return
            _LOG.exception("a request failed and is rejected", extra={"origin": origin_of(messages[0])})
            self._apply_at_once(messages, failure=error)

    def _apply_at_once(self, messages: Sequence[Message], failure: Exception | None = None) -> None:
        ends = ends_of(messages)
        with self._session.transaction() as connection:
            self._places.move(connection, ends)
            take_in(connection, self._installation, messages, failure, self._read_clock(connection))
            failpoint("intake.before_commit")
        failpoint("intake.after_commit")
        self._places.moved(ends)
        self._notifier.poke(Channel.TIMERS)
        self._notifier.poke(Channel.OUTBOX)
        self._notifier.poke(Channel.SIGNALS)

    def _on_assign(self, client: Consumer, partitions: list[TopicPartition]) -> None:
        patience = Patience(self._stop, "taking partitions")
        while not self._stop.asked():
            try:
                for partition in partitions:
                    partition.offset = self._take(client, partition)
                break
            except (Unavailable, KafkaException) as error:
                patience.wait(error)
        patience.over()
        client.incremental_assign(partitions)
        self._trouble = _NO_TROUBLE

    def _take(self, client: Consumer, partition: TopicPartition) -> int:
        low, _ = client.get_watermark_offsets(partition, timeout=_KAFKA_SECONDS, cached=False)
        with self._session.transaction() as connection:
            return self._places.take(connection, (partition.topic, partition.partition), low)

    def _on_gone(self, client: Consumer, partitions: list[TopicPartition]) -> None:
        gone = {(partition.topic, partition.partition) for partition in partitions}
        with suppress(KafkaException):  # of one that is lost there is nothing to resume
            client.resume([TopicPartition(*partition) for partition in gone & self._paused])
        self._paused -= gone
        for partition in gone:
            self._places.forget(partition)
            self._held.forget(partition)

    def _commit(self, client: Consumer, ends: Mapping[Partition, int]) -> None:
        if not ends:
            return
        try:
            offsets = [TopicPartition(topic, number, end) for (topic, number), end in ends.items()]
            client.commit(offsets=offsets, asynchronous=True)
        except KafkaException as error:
            _LOG.info("offsets not told to Kafka (they are stored in the database): %s", error)

    def _read_topic_id(self) -> str:
        admin = AdminClient({**self._kafka, "client.id": "tidewheel-intake-check", "log_level": 2})
        found = cast(
            "dict[str, Future[_Described]]",
            admin.describe_topics(TopicCollection([self._topic]), request_timeout=_KAFKA_SECONDS),  # pyright: ignore[reportUnknownMemberType]
        )
        try:
            return str(found[self._topic].result().topic_id)
        except KafkaException as error:
            message = f"{self._topic} cannot be described: {error.args[0].str()}; run `tidewheel topics apply`"
            raise Unavailable(message) from error

    def _keep_house(self) -> None:
        if monotonic_seconds() >= self._next_house:
            self._next_house = monotonic_seconds() + _KEEP_HOUSE_SECONDS
            with self._session.transaction() as connection:
                self._read_clock(connection)
                gone = connection.execute(_FORGET_ANSWERS, {"kept": self._settings.requests_kept}).rowcount
            if gone == _FORGOTTEN_AT_ONCE:
                self._next_house = 0.0

    def _read_clock(self, connection: Conn) -> datetime:
        asked = monotonic_seconds()
        now = read_now(connection)
        self._skew.saw(now, since=asked)
        return now


def group_of(topic: str, installation: Installation) -> str:
    """The group that reads a topic.

    One for each: a group that reads two deals out their partitions together, and one member may get most of the one.
    Both names begin alike, for rules that grant a prefix.
    """
    requests = f"{installation.topics.requests}.intake"
    return requests if topic == installation.topics.requests else f"{requests}.replies"


def _address(message: Message) -> _Address:
    return partition_of(message), message.offset() or 0


def _cut(messages: Sequence[Message], alone: Sequence[Message]) -> list[list[Message]]:
    """Messages in their order, with some of them alone."""
    pieces: list[list[Message]] = [[]]
    for message in messages:
        if message in alone:
            pieces += [[message], []]
        else:
            pieces[-1].append(message)
    return [piece for piece in pieces if piece]
