"""Reads the requests topic exactly once: a batch and its offsets are one transaction.

The offsets that count lie in `intake_offsets`, under an epoch that every assignment raises: what a previous owner still
tries to commit hits no row. A batch that fails on its data is repeated request by request, and the one that fails is
rejected; one that takes longer than the database allows is repeated in halves, down to the request that does so alone.
Any other error rejects nobody and is tried again. Kafka's own commits are for lag tools and never read back.
"""

import logging
import socket
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol, cast
from uuid import uuid4

import psycopg
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient

from tidewheel.clock import monotonic_seconds
from tidewheel.db import CommitUnknown, Conn, Session, is_data_fault, is_time_limit
from tidewheel.errors import FieldError, Unavailable, UndecodableMessage, Unusable
from tidewheel.failpoint import failpoint
from tidewheel.intake.accept import apply_requests
from tidewheel.intake.incoming import Encoding, Incoming, rejected_unread
from tidewheel.intake.locks import read_now
from tidewheel.intake.replies import reply_row
from tidewheel.jobs.requests import RequestRefused, request_identity
from tidewheel.kafka import consumer, group_protocol
from tidewheel.metrics import metrics
from tidewheel.outbox import OutboxRow, append
from tidewheel.schemas.codec import is_avro
from tidewheel.schemas.records import RequestOrigin
from tidewheel.schemas.requests import read_document, read_request
from tidewheel.service import Patience, Stop
from tidewheel.settings import IntakeSettings
from tidewheel.skew import Skew
from tidewheel.sql import Statements
from tidewheel.transitions.dead_letters import DeadRequest, bury_request
from tidewheel.transitions.installation import Installation
from tidewheel.wakeup import Channel, Notifier

_LOG = logging.getLogger("tidewheel.intake")

_SQL = Statements("tidewheel.intake")
_TAKE_PARTITION = _SQL["take_partition"]
_MOVE_OFFSETS = _SQL["move_offsets"]
_FORGET_ANSWERS = _SQL["forget_answers"]

_POLL_SECONDS = 0.2
_KAFKA_SECONDS = 10.0
_KEEP_HOUSE_SECONDS = 60.0
# A batch that cannot be written for so long is let go with its partitions, well before the group would evict this
# member for not polling (five minutes).
_GIVE_UP_SECONDS = 60.0
# A request is rejected when it has so often taken too long alone: the first time the database may just have been slow.
_TOO_LONG_TIMES = 2
_FORGOTTEN_AT_ONCE = 5000  # the LIMIT of forget_answers: where it was reached, there is more


class _Described(Protocol):
    topic_id: object


class _Fenced(Exception):
    """The partition has another owner, or what was written is not known: join anew and read where it stands."""


class _TooLong(Exception):
    """One request takes longer than the database allows a transaction."""


@dataclass(slots=True)
class _Place:
    """Where this owner stands in one partition."""

    epoch: int
    next_offset: int


class Intake:
    """One intake process."""

    def __init__(
        self, settings: IntakeSettings, url: str, kafka: dict[str, str], installation: Installation, stop: Stop
    ) -> None:
        self._settings, self._kafka, self._installation, self._stop = settings, kafka, installation, stop
        self._topic = installation.topics.requests
        self._session = Session(url, "tidewheel-intake")
        self._notifier = Notifier(url, "tidewheel-intake-notify")
        self._owner = f"{socket.gethostname()}/{uuid4()}"
        self._skew = Skew(settings.max_clock_skew)
        self._places: dict[int, _Place] = {}
        self._topic_id = ""
        self._next_house = 0.0
        # Both outlive the membership: a batch that takes too long costs it, and must not come back whole.
        self._most = settings.intake_batch
        self._too_long: dict[tuple[int, int], int] = {}

    def run(self) -> None:
        """Take in requests until asked to stop."""
        patience = Patience(self._stop, "intake")
        try:
            while not self._stop.asked():
                try:
                    self._membership(patience)
                except (_Fenced, Unavailable, KafkaException) as error:
                    patience.wait(error)
        finally:
            self._notifier.close()
            self._session.close()

    def _membership(self, patience: Patience) -> None:
        """One membership of the group: from joining to whatever ends it."""
        self._topic_id = self._read_topic_id()
        self._places = {}
        protocol = group_protocol(self._kafka, "auto")
        client = consumer(self._kafka, group=f"{self._topic}.intake", role="intake", protocol=protocol, reset="error")
        client.subscribe([self._topic], on_assign=self._on_assign, on_revoke=self._on_gone, on_lost=self._on_gone)
        try:
            while not self._stop.asked():
                messages = self._poll(client)
                if messages:
                    self._apply_patiently(messages)
                    self._commit(client, messages)
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
                place = self._places.get(message.partition() or 0)
                # What was read under an assignment that is gone, or before the place we stand at, is not ours.
                if place is not None and (message.offset() or 0) >= place.next_offset:
                    good.append(message)
            elif error.code() == KafkaError._AUTO_OFFSET_RESET:
                self._leave_out(client, message, error)
            elif error.code() != KafkaError._PARTITION_EOF:
                text = f"{self._topic}: {error.str()}"
                raise Unavailable(text)
        return good

    def _leave_out(self, client: Consumer, message: Message, error: KafkaError) -> None:
        """One partition whose place is not in the topic is left alone; the others go on."""
        partition = message.partition() or 0
        self._places.pop(partition, None)
        client.pause([TopicPartition(self._topic, partition)])
        metrics.count("intake_partitions_left")
        _LOG.error(
            "%s/%d is left alone: its stored offset is not in the topic (%s), requests have expired unread. Decide"
            " where to go on, set next_offset in intake_offsets, and restart intake",
            self._topic,
            partition,
            error.str(),
        )

    def _apply_patiently(self, messages: Sequence[Message]) -> None:
        failpoint("intake.received")
        patience = Patience(self._stop, "applying requests")
        since = monotonic_seconds()
        while left := [m for m in messages if (m.offset() or 0) >= self._places[m.partition() or 0].next_offset]:
            piece = left[: self._most]
            try:
                self._apply(piece, self._given_up(piece))
            except CommitUnknown as error:
                raise _Fenced(str(error)) from error
            except Unavailable as error:
                if is_time_limit(error):
                    self._take_less(piece, error)
                if self._stop.asked() or monotonic_seconds() - since > _GIVE_UP_SECONDS:
                    raise _Fenced(str(error)) from error
                patience.wait(error)
                continue
            patience.over()
            self._most = min(2 * self._most, self._settings.intake_batch)
        self._too_long.clear()

    def _take_less(self, messages: Sequence[Message], error: Unavailable) -> None:
        self._most = max(len(messages) // 2, 1)
        if len(messages) > 1:
            _LOG.warning("%d requests took too long (%s); applying %d at once", len(messages), error, self._most)
            return
        place = _place(messages[0])
        self._too_long[place] = self._too_long.get(place, 0) + 1

    def _given_up(self, messages: Sequence[Message]) -> _TooLong | None:
        """Why a request is to be rejected that has taken too long by itself."""
        if len(messages) > 1 or self._too_long.get(_place(messages[0]), 0) < _TOO_LONG_TIMES:
            return None
        _LOG.error("a request takes too long and is rejected", extra={"origin": _origin(messages[0])})
        return _TooLong()

    def _apply(self, messages: Sequence[Message], failure: _TooLong | None = None) -> None:
        # Those that an earlier try has applied one by one are behind us.
        messages = [m for m in messages if (m.offset() or 0) >= self._places[m.partition() or 0].next_offset]
        if not messages:
            return
        try:
            self._apply_at_once(messages, failure)
        except (_Fenced, Unavailable):
            raise
        except Exception as error:
            if isinstance(error, psycopg.Error) and not is_data_fault(error):
                raise Unavailable(str(error)) from error
            if len(messages) > 1:
                _LOG.warning("a batch of %d requests failed (%s); applying them one by one", len(messages), error)
                for message in messages:
                    self._apply([message])
                return
            _LOG.exception("a request failed and is rejected", extra={"origin": _origin(messages[0])})
            self._apply_at_once(messages, failure=error)

    def _apply_at_once(self, messages: Sequence[Message], failure: Exception | None = None) -> None:
        ends = self._ends(messages)
        with self._session.transaction() as connection:
            self._fence(connection, ends)
            self._answer(connection, messages, failure)
            failpoint("intake.before_commit")
        failpoint("intake.after_commit")
        for partition, end in ends.items():
            self._places[partition].next_offset = end
        self._notifier.poke(Channel.TIMERS)
        self._notifier.poke(Channel.OUTBOX)
        self._notifier.poke(Channel.SIGNALS)

    def _fence(self, connection: Conn, ends: Mapping[int, int]) -> None:
        partitions = sorted(ends)
        columns = {
            "topic": self._topic,
            "partitions": partitions,
            "epochs": [self._places[partition].epoch for partition in partitions],
            "bases": [self._places[partition].next_offset for partition in partitions],
            "next_offsets": [ends[partition] for partition in partitions],
        }
        if len(connection.execute(_MOVE_OFFSETS, columns).fetchall()) < len(partitions):
            message = "another intake has taken a partition over"
            raise _Fenced(message)

    def _answer(self, connection: Conn, messages: Sequence[Message], failure: Exception | None) -> None:
        rows: list[OutboxRow] = []
        batch: list[Incoming] = []
        now = self._read_clock(connection)
        for message in messages:
            origin = _origin(message)
            key, value = _bytes(message.key()), _bytes(message.value())
            try:
                if failure is not None:
                    raise _failed_on_data(value, failure)
                request, encoding = read_request(value or b"")
                batch.append(Incoming(request, origin, encoding, key))
            except UndecodableMessage as error:
                metrics.count("undecodable_requests")
                dead = DeadRequest(origin.topic, origin.partition, origin.offset, key, value, str(error))
                rows.append(bury_request(connection, self._installation, dead, now))
            except RequestRefused as refused:
                reply = rejected_unread(refused.identity, refused, origin)
                metrics.count("requests", 1, reply.type, reply.status)
                rows.append(reply_row(self._installation, reply, key, _encoding(value), now))
        replies = apply_requests(connection, self._installation, batch)
        rows += [
            reply_row(self._installation, reply, incoming.reply_key, incoming.encoding, now)
            for incoming, reply in zip(batch, replies, strict=True)
        ]
        append(connection, rows, shards=self._installation.shards)

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

    def _take(self, client: Consumer, partition: TopicPartition) -> int:
        low, _ = client.get_watermark_offsets(partition, timeout=_KAFKA_SECONDS, cached=False)
        columns = {
            "topic": self._topic,
            "partition": partition.partition,
            "topic_id": self._topic_id,
            "first_offset": low,
            "owner": self._owner,
        }
        with self._session.transaction() as connection:
            row = connection.execute(_TAKE_PARTITION, columns).fetchone()
        next_offset, epoch, topic_id = cast("tuple[int, int, str]", row)
        if topic_id != self._topic_id:
            message = (
                f"{self._topic} was deleted and made again: its offsets mean nothing here any more. If its old requests"
                " are done with, delete the topic's rows from intake_offsets"
            )
            raise Unusable(message)
        self._places[partition.partition] = _Place(epoch, next_offset)
        return next_offset

    def _on_gone(self, client: Consumer, partitions: list[TopicPartition]) -> None:
        del client
        for partition in partitions:
            self._places.pop(partition.partition, None)

    def _ends(self, messages: Sequence[Message]) -> dict[int, int]:
        ends: dict[int, int] = {}
        for message in messages:
            partition, offset = message.partition() or 0, message.offset() or 0
            ends[partition] = max(ends.get(partition, 0), offset + 1)
        return ends

    def _commit(self, client: Consumer, messages: Sequence[Message]) -> None:
        offsets = [TopicPartition(self._topic, partition, end) for partition, end in self._ends(messages).items()]
        try:
            client.commit(offsets=offsets, asynchronous=True)
        except KafkaException as error:
            _LOG.info("offsets not told to Kafka (they are stored in the database): %s", error)

    def _read_topic_id(self) -> str:
        admin = AdminClient({**self._kafka, "client.id": "tidewheel-intake-check", "log_level": 2})
        try:
            asked = TopicCollection([self._topic])
            found = cast(
                "dict[str, Future[_Described]]",
                admin.describe_topics(asked, request_timeout=_KAFKA_SECONDS),  # pyright: ignore[reportUnknownMemberType]
            )
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


def _origin(message: Message) -> RequestOrigin:
    return RequestOrigin(topic=message.topic() or "", partition=message.partition() or 0, offset=message.offset() or 0)


def _place(message: Message) -> tuple[int, int]:
    return message.partition() or 0, message.offset() or 0


def _bytes(value: object) -> bytes | None:
    return value if isinstance(value, bytes) else None


def _encoding(value: bytes | None) -> Encoding:
    return "avro" if value and is_avro(value) else "json"


def _failed_on_data(value: bytes | None, failure: Exception) -> RequestRefused:
    """The rejection of a request that can be read but not written."""
    document, _ = read_document(value or b"")
    if isinstance(failure, _TooLong):
        error = FieldError("", "it takes longer than a transaction may, and was undone", "ask for less in one request")
        return RequestRefused((error,), request_identity(document))
    # PostgreSQL's own words in one line, without the row that it would quote beside them.
    said = failure.diag.message_primary if isinstance(failure, psycopg.Error) else None
    reason = said or type(failure).__name__
    error = FieldError(
        "", f"it could not be applied: {reason}", "correct the request, or report this with its request_id"
    )
    return RequestRefused((error,), request_identity(document))
