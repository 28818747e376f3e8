"""Producing a batch and proving its delivery.

A batch is proven when the producer's queue is empty and no failure was reported. What failed is told apart: a row that
Kafka refuses for good (found by bisection, since one such row fails the whole batch it travels in), a topic that is not
there or not allowed (parked alone), and everything else, which is tried again. "Failed" does not mean "not written":
a repeat is always possible and receivers drop it by id.
"""

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from tidewheel.errors import Unavailable
from tidewheel.kafka.clients import producer
from tidewheel.process.failpoint import failpoint
from tidewheel.process.service import Shutdown
from tidewheel.relay.due_rows import HEADERS, ID, KEY, TOPIC, VALUE, DueRow, Published
from tidewheel.relay.topic_backoff import Parking

_LOG = logging.getLogger("tidewheel.relay")

_METADATA_SECONDS = 10.0
_FLUSH_SECONDS = 1.0  # between two looks at the wish to stop

_REFUSED_FOR_GOOD = frozenset(
    {
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.INVALID_MSG,
        KafkaError.INVALID_MSG_SIZE,
        KafkaError.INVALID_RECORD,
        KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError._INVALID_ARG,
    }
)
_TOPIC_TROUBLE = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.TOPIC_EXCEPTION,
    }
)


class Publisher:
    """One idempotent producer, created once and again only after a fatal error."""

    def __init__(
        self,
        config: dict[str, str],
        *,
        timeout_ms: int,
        batch: int,
        runs_prefix: str,
        stop: Shutdown,
        meanwhile: Callable[[], None],
    ) -> None:
        self._config, self._timeout_ms, self._batch, self._stop = config, timeout_ms, batch, stop
        self._runs_prefix, self._meanwhile = runs_prefix, meanwhile
        self._dropped: list[DueRow] = []
        self._failed: list[tuple[KafkaError, str, bytes | None]] = []
        self._sent: Sequence[DueRow] = ()
        self._refused: list[tuple[DueRow, str]] = []
        self._gave_up = ""
        self._producer = self._new_producer()
        self._topics: frozenset[str] = frozenset()
        self._parking = Parking()

    def parked(self) -> list[str]:
        """Topics that are left alone for now, because they are not there or not allowed; asked before each read."""
        return self._parking.ask()

    def send(self, rows: Sequence[DueRow]) -> None:
        """Hand rows to the producer; `prove` tells what became of them.

        Raises:
            Unavailable: The broker does not take them now.
        """
        self._sent, self._refused = self._produce(self._reachable(rows))
        failpoint("relay.produced")

    def prove(self) -> Published:
        """Wait until each row sent last is proven or refused.

        Raises:
            Unavailable: The broker does not take them now; none is proven.
        """
        rows, self._sent = self._sent, ()
        result = Published()
        result.proven, self._dropped = self._dropped, []
        self._prove(rows, result)
        self._parking.served()
        return result

    def close(self) -> None:
        """Wait briefly for what is under way; rows without proof stay in the outbox."""
        self._producer.flush(5)

    def _prove(self, rows: Sequence[DueRow], result: Published) -> None:
        refused, self._refused = self._refused, []
        self._await_delivery()
        self._replace_if_fatal()
        failed, self._failed = self._failed, []
        result.refused.extend(refused)
        if not failed:
            result.proven.extend(rows)
            return
        self._sort_failures(failed)
        touched = {(topic, key) for _, topic, key in failed}
        doubtful = [row for row in rows if (row[TOPIC], row[KEY]) in touched]
        result.proven.extend(row for row in rows if (row[TOPIC], row[KEY]) not in touched)
        bad = {topic for error, topic, _ in failed if error.code() in _REFUSED_FOR_GOOD}
        self._bisect([row for row in doubtful if row[TOPIC] in bad], failed, result)

    def _bisect(
        self, rows: Sequence[DueRow], failed: Sequence[tuple[KafkaError, str, bytes | None]], result: Published
    ) -> None:
        if len(rows) == 1:
            result.refused.append((rows[0], failed[0][0].str()))
        elif rows:
            middle = len(rows) // 2
            for half in (rows[:middle], rows[middle:]):
                # Where a topic was parked for the first half, the second would overtake what that left.
                sent, self._refused = self._produce([row for row in half if self._parking.may_follow(row[TOPIC])])
                self._prove(sent, result)

    def _sort_failures(self, failed: Sequence[tuple[KafkaError, str, bytes | None]]) -> None:
        for error, topic, _ in failed:
            if error.code() in _TOPIC_TROUBLE:
                self._parking.park(topic, error.str())
            elif error.code() not in _REFUSED_FOR_GOOD:
                message = f"Kafka did not take a message for {topic}: {error.str()}"
                raise Unavailable(message)

    def _produce(self, rows: Sequence[DueRow]) -> tuple[Sequence[DueRow], list[tuple[DueRow, str]]]:
        """Hand rows to the producer; returns those it took, and those it refuses for good. The others stay."""
        not_taken: set[bytes] = set()
        troubled: set[str] = set()
        refused: list[tuple[DueRow, str]] = []
        produce = self._producer.produce
        for row in rows:
            _, _, topic, key, value, headers, _, row_id = row
            if topic in troubled:
                not_taken.add(row_id)  # even if it were there by now: it would overtake
                continue
            try:
                try:
                    if headers is None:
                        produce(topic, value, key)
                    else:
                        produce(topic, value, key, headers=_headers(headers))
                except BufferError:
                    self._produce_when_there_is_room(row)
            except KafkaException as failure:
                not_taken.add(row_id)
                error = self._why_not_taken(topic, failure)
                if error is None:
                    troubled.add(topic)
                else:
                    refused.append((row, error))
        return [row for row in rows if row[ID] not in not_taken] if not_taken else rows, refused

    def _produce_when_there_is_room(self, row: DueRow) -> None:
        """For when the queue is full: the broker is slow or away."""
        while True:
            self._meanwhile()
            self._producer.poll(0.1)
            if self._stop.requested():
                message = "stopped before the broker had answered"
                raise Unavailable(message)
            with suppress(BufferError):
                self._producer.produce(row[TOPIC], row[VALUE], row[KEY], headers=_headers(row[HEADERS] or []))
                return

    def _why_not_taken(self, topic: str, failure: KafkaException) -> str | None:
        """Why the producer refuses a message for good; nothing when its topic is parked for it.

        Raises:
            Unavailable: It may take it later.
        """
        error = failure.args[0]
        if error.fatal():
            self._gave_up = error.str()
            self._replace_if_fatal()
        if error.code() in _TOPIC_TROUBLE:
            self._topics -= {topic}
            self._parking.park(topic, error.str())
            return None
        if error.code() in _REFUSED_FOR_GOOD:
            return str(error.str())
        message = f"the producer did not take a message for {topic}: {error.str()}"
        raise Unavailable(message) from failure

    def _await_delivery(self) -> None:
        # Never produced again while they are still in the producer's queue: an outage would multiply them.
        while self._producer.flush(_FLUSH_SECONDS) > 0:
            self._meanwhile()
            if self._stop.requested():
                message = "stopped before the broker had answered"
                raise Unavailable(message)

    def _reachable(self, rows: Sequence[DueRow]) -> Sequence[DueRow]:
        """The rows whose topics exist; an unknown topic would make the producer wait for it, and all others with it."""
        wanted = {row[TOPIC] for row in rows}
        self._dropped = []
        if wanted - self._topics:
            try:
                self._topics = frozenset(self._producer.list_topics(timeout=_METADATA_SECONDS).topics)
            except KafkaException as error:
                message = f"the broker does not answer: {error.args[0].str()}"
                raise Unavailable(message) from error
            for topic in wanted - self._topics:
                self._parking.park(topic, "there is no such topic")
        served = self._parking.try_others(wanted & self._topics)
        if served == wanted:
            return rows
        # A queue without topics is served by the sweep, which reads open_runs: its messages would lie here for ever.
        self._dropped = [
            row for row in rows if row[TOPIC] not in self._topics and row[TOPIC].startswith(self._runs_prefix)
        ]
        return [row for row in rows if row[TOPIC] in served]

    def _replace_if_fatal(self) -> None:
        why, self._gave_up = self._gave_up, ""
        if why:
            self._producer = self._new_producer()
            self._failed = []
            message = f"the producer gave up and was replaced: {why}"
            raise Unavailable(message)

    def _new_producer(self) -> Producer:
        return producer(
            self._config, role="relay", timeout_ms=self._timeout_ms, batch=self._batch, on_delivery=self._report
        )

    def _report(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            key = message.key()
            self._failed.append((error, message.topic() or "", key if isinstance(key, bytes) else None))
            if error.fatal():
                self._gave_up = error.str()


# The names are few and ours: to decode each of eight a message would cost as much as to produce it.
@lru_cache(maxsize=1000)
def _names(names: tuple[bytes, ...]) -> tuple[str, ...]:
    return tuple(name.decode() for name in names)


def _headers(parts: list[bytes]) -> list[tuple[str, str | bytes | None]]:
    return list(zip(_names(tuple(parts[::2])), parts[1::2], strict=True))
