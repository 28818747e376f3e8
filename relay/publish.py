"""Produce a batch of rows and wait for its acknowledgement.

A batch is acknowledged when the producer's queue is empty and no failure was reported. There are five kinds of
failure:

- A row's headers cannot be read. It is refused like the next kind, without a try.
- Kafka refuses a row for good. Bisection finds it, since one such row fails the whole record batch that holds it.
- A topic accepts less than Tidewheel sends. Bisection finds the row, which is postponed.
- A topic does not exist or is not authorized. The relay backs off from this topic only.
- Everything else is produced again.

"Failed" does not mean "not written": a repeat is always possible, and receivers drop it by id.
"""

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import lru_cache

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from tidewheel.errors import Unavailable
from tidewheel.kafka.clients import producer
from tidewheel.message_signatures import SIGNATURE_HEADER, MessageKeys
from tidewheel.process.failpoint import failpoint
from tidewheel.process.service import Shutdown
from tidewheel.relay.outbox_rows import HEADERS, ID, KEY, TOPIC, VALUE, DueRow, Published
from tidewheel.relay.topics import TopicBackoff, TopicLimits, size_of

_METADATA_SECONDS = 10.0
_FLUSH_SECONDS = 1.0  # between two checks for a shutdown

# By the broker, of a row that the producer has accepted: the topic's limit is lower than Tidewheel's.
_TOO_LARGE_FOR_TOPIC = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE})
_REFUSED_FOR_GOOD = _TOO_LARGE_FOR_TOPIC | {
    KafkaError.INVALID_MSG,
    KafkaError.INVALID_MSG_SIZE,
    KafkaError.INVALID_RECORD,
    KafkaError._INVALID_ARG,
}
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
    """One idempotent producer. A new one is created after a fatal error only."""

    def __init__(
        self,
        config: dict[str, str],
        *,
        timeout_ms: int,
        runs_prefix: str,
        keys: MessageKeys,
        stop: Shutdown,
        keep_alive: Callable[[], None],
    ) -> None:
        self._config, self._timeout_ms, self._stop = config, timeout_ms, stop
        self._runs_prefix, self._keys, self._keep_alive = runs_prefix, keys, keep_alive
        self._dropped: list[DueRow] = []
        self._failed: list[tuple[KafkaError, str, bytes | None]] = []
        self._sent: Sequence[DueRow] = ()
        self._refused: list[tuple[DueRow, str]] = []
        self._fatal_error = ""
        self._producer = self._new_producer()
        self._topics: frozenset[str] = frozenset()
        self._backoff = TopicBackoff()
        self._limits = TopicLimits()
        self._too_large: list[DueRow] = []

    def paused_topics(self) -> list[str]:
        """Return the topics whose rows must not be read now; call it before each read."""
        self._limits.settle()
        return self._backoff.paused_topics()

    def failing_topics(self, seconds: float) -> Collection[str]:
        """Return the topics whose tries have all failed for so long."""
        return self._backoff.failing_topics(seconds)

    def send(self, rows: Sequence[DueRow]) -> None:
        """Give rows to the producer; `await_acks` returns the result."""
        self._too_large = []
        self._sent, self._refused = self._produce(self._sendable(rows))
        failpoint("relay.produced")

    def await_acks(self) -> Published:
        """Wait until each row sent last is acknowledged or refused; after Unavailable none is acknowledged."""
        rows, self._sent = self._sent, ()
        result = Published()
        result.acknowledged, self._dropped = self._dropped, []
        self._collect_acks(rows, result)
        self._backoff.reset_retried()
        too_large, self._too_large = self._too_large, []
        pauses = {topic: self._limits.pause(topic) for topic in {row[TOPIC] for row in too_large}}
        result.postponed.extend((row, pauses[row[TOPIC]]) for row in too_large)
        return result

    def close(self) -> None:
        """Wait up to 5 s for rows in flight. Rows without an acknowledgement stay in the outbox."""
        self._producer.flush(5)

    def _collect_acks(self, rows: Sequence[DueRow], result: Published) -> None:
        refused, self._refused = self._refused, []
        self._await_delivery()
        self._replace_if_fatal()
        failed, self._failed = self._failed, []
        result.refused.extend(refused)
        if not failed:
            result.acknowledged.extend(rows)
            return
        self._sort_failures(failed)
        touched = {(topic, key) for _, topic, key in failed}
        doubtful = [row for row in rows if (row[TOPIC], row[KEY]) in touched]
        result.acknowledged.extend(row for row in rows if (row[TOPIC], row[KEY]) not in touched)
        bad = {topic for error, topic, _ in failed if error.code() in _REFUSED_FOR_GOOD}
        self._bisect([row for row in doubtful if row[TOPIC] in bad], failed, result)

    def _bisect(
        self, rows: Sequence[DueRow], failed: Sequence[tuple[KafkaError, str, bytes | None]], result: Published
    ) -> None:
        if len(rows) == 1:
            row = rows[0]
            error = next(e for e, topic, _ in failed if topic == row[TOPIC] and e.code() in _REFUSED_FOR_GOOD)
            if error.code() in _TOO_LARGE_FOR_TOPIC:
                self._limits.refuse(row, error.str())
                self._too_large.append(row)
            else:
                result.refused.append((row, error.str()))
        elif rows:
            middle = len(rows) // 2
            for half in (rows[:middle], rows[middle:]):
                # If the first half made its topic pause, rows of the second half would overtake those it left behind.
                sent, self._refused = self._produce([row for row in half if self._backoff.may_follow(row[TOPIC])])
                self._collect_acks(sent, result)

    def _sort_failures(self, failed: Sequence[tuple[KafkaError, str, bytes | None]]) -> None:
        for error, topic, _ in failed:
            if error.code() in _TOPIC_TROUBLE:
                self._backoff.back_off(topic, error.str())
            elif error.code() not in _REFUSED_FOR_GOOD | {KafkaError._INVALID_DIFFERENT_RECORD}:
                raise Unavailable(f"Kafka did not accept a message for {topic}: {error.str()}")

    def _produce(self, rows: Sequence[DueRow]) -> tuple[Sequence[DueRow], list[tuple[DueRow, str]]]:
        """Give rows to the producer. Return those it accepted and those it refuses for good; the rest stay."""
        if limits := self._limits.in_force():
            smaller = [row for row in rows if row[TOPIC] not in limits or size_of(row) < limits[row[TOPIC]]]
            left = {row[ID] for row in smaller}
            self._too_large.extend(row for row in rows if row[ID] not in left)
            rows = smaller
        not_taken: set[bytes] = set()
        troubled: set[str] = set()
        refused: list[tuple[DueRow, str]] = []
        produce = self._producer.produce
        for row in rows:
            _, _, topic, key, value, headers, _, row_id = row
            if topic in troubled:
                not_taken.add(row_id)  # even if the topic exists by now: the row would overtake
                continue
            try:
                try:
                    if topic.startswith(self._runs_prefix):
                        produce(topic, value, key, headers=self._signed(row))
                    elif headers is None:
                        produce(topic, value, key)
                    else:
                        produce(topic, value, key, headers=_headers(headers))
                except BufferError:
                    self._produce_when_there_is_room(row)
            except _DamagedHeaders as damaged:
                not_taken.add(row_id)
                refused.append((row, str(damaged)))
            except KafkaException as failure:
                not_taken.add(row_id)
                error = self._why_not_taken(topic, failure)
                if error is None:
                    troubled.add(topic)
                else:
                    refused.append((row, error))
        return [row for row in rows if row[ID] not in not_taken] if not_taken else rows, refused

    def _produce_when_there_is_room(self, row: DueRow) -> None:
        """Produce a row when the producer's queue is full: the broker is slow or unreachable."""
        topic, parts = row[TOPIC], row[HEADERS] or []
        headers = self._signed(row) if topic.startswith(self._runs_prefix) else _headers(parts)
        while True:
            self._keep_alive()
            self._producer.poll(0.1)
            if self._stop.requested():
                raise Unavailable("stopped before the broker answered")
            with suppress(BufferError):
                self._producer.produce(topic, row[VALUE], row[KEY], headers=headers)
                return

    def _signed(self, row: DueRow) -> list[tuple[str, str | bytes | None]]:
        """Return the headers of a run message: executors refuse one without a signature."""
        signature = SIGNATURE_HEADER, self._keys.sign(row[TOPIC], row[KEY] or b"", row[VALUE] or b"")
        return [*_headers(parts), signature] if (parts := row[HEADERS]) else [signature]

    def _why_not_taken(self, topic: str, failure: KafkaException) -> str | None:
        """Return the error of a message that is refused for good; None if its topic is paused for it."""
        error = failure.args[0]
        if error.fatal():
            self._fatal_error = error.str()
            self._replace_if_fatal()
        if error.code() in _TOPIC_TROUBLE:
            self._topics -= {topic}
            self._backoff.back_off(topic, error.str())
            return None
        if error.code() in _REFUSED_FOR_GOOD:
            return str(error.str())
        raise Unavailable(f"the producer did not accept a message for {topic}: {error.str()}") from failure

    def _await_delivery(self) -> None:
        # Rows in the producer's queue are never produced again: an outage would multiply them.
        while self._producer.flush(_FLUSH_SECONDS) > 0:
            self._keep_alive()
            if self._stop.requested():
                raise Unavailable("stopped before the broker answered")

    def _sendable(self, rows: Sequence[DueRow]) -> Sequence[DueRow]:
        """Return the rows whose topics exist. The producer would wait for an unknown topic and delay all rows."""
        named = {row[TOPIC] for row in rows}
        self._dropped = []
        if named - self._topics:
            try:
                self._topics = frozenset(self._producer.list_topics(timeout=_METADATA_SECONDS).topics)
            except KafkaException as error:
                raise Unavailable(f"the broker does not answer: {error.args[0].str()}") from error
            for topic in named - self._topics:
                self._backoff.back_off(topic, "there is no such topic")
        usable = self._backoff.usable(named & self._topics)
        if usable == named:
            return rows
        # The sweep serves a queue without topics from job_runs. Its messages would stay in the outbox for ever.
        self._dropped = [
            row for row in rows if row[TOPIC] not in self._topics and row[TOPIC].startswith(self._runs_prefix)
        ]
        return [row for row in rows if row[TOPIC] in usable]

    def _replace_if_fatal(self) -> None:
        why, self._fatal_error = self._fatal_error, ""
        if why:
            self._producer = self._new_producer()
            self._failed = []
            raise Unavailable(f"the producer failed and was replaced: {why}")

    def _new_producer(self) -> Producer:
        return producer(self._config, role="relay", timeout_ms=self._timeout_ms, on_delivery=self._report)

    def _report(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            key = message.key()
            self._failed.append((error, message.topic() or "", key if isinstance(key, bytes) else None))
            if error.fatal():
                self._fatal_error = error.str()


# Header names are few and fixed. Decoding all eight of each message would cost as much as producing it.
@lru_cache(maxsize=1000)
def _names(names: tuple[bytes, ...]) -> tuple[str, ...]:
    return tuple(name.decode() for name in names)


def _headers(parts: list[bytes]) -> list[tuple[str, str | bytes | None]]:
    try:
        return list(zip(_names(tuple(parts[::2])), parts[1::2], strict=True))
    except (AttributeError, TypeError, ValueError) as error:  # no name, no list of bytes, no value or no UTF-8
        raise _DamagedHeaders(f"its headers cannot be read: {error}") from error


class _DamagedHeaders(Exception):
    """A row's headers are not name, value, name, value."""
