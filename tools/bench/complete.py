"""Wait for all runs of a round and verify that each happened exactly once and on time.

Counts of completion events come from the broker's offsets, because reading the events would cost.
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import LiteralString, Protocol, cast

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]  # its stub re-exports none of these
from psycopg import sql

from tidewheel.clock import monotonic_seconds
from tidewheel.postgres.session import Conn
from tidewheel.runs import RunState
from tidewheel.schemas.codec import decode
from tidewheel.schemas.generated.records import RunCompleted, RunStatus
from tools.bench.environment import Environment
from tools.bench.measurement import Incomplete, Points, percentile
from tools.bench.messages import ends, now_seconds, reader
from tools.bench.starts import Start

STALL_SECONDS = 60.0  # without progress
_EARLY_SECONDS = 0.001  # what two readings of one clock may differ by
_POLL_SECONDS = 0.05
_POLL_EVENTS_SECONDS = 0.5  # each poll is work for the broker
_RESPONSE_SECONDS = 30.0
_NO_LEADER = frozenset({KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE, KafkaError._NOENT})
_COUNTS: LiteralString = """
SELECT (SELECT count(*) FROM runs),
       (SELECT count(*) FROM runs WHERE state = %(succeeded)s AND attempt = 1),
       (SELECT count(*) FROM runs WHERE state = %(succeeded)s AND attempt = 2),
       (SELECT count(*) FROM runs WHERE started_at < scheduled_at),
       (SELECT count(*) FROM job_runs),
       (SELECT coalesce(sum(occurrences), 0) FROM skips)
"""
_WORDS = (
    "runs",
    "succeeded at the first attempt",
    "at the second",
    "began early",
    "open runs",
    "occurrences passed over",
)


def wait_for(number: Callable[[], int], wanted: int, what: str) -> None:
    """Wait until a number that grows is there.

    Raises:
        Incomplete: It has not grown for a minute.
    """
    seen, since = -1, monotonic_seconds()
    while (found := number()) < wanted:
        if found > seen:
            seen, since = found, monotonic_seconds()
        if monotonic_seconds() - since > STALL_SECONDS:
            message = f"{found:,} of {wanted:,} {what}, and none for {STALL_SECONDS:.0f} s"
            raise Incomplete(message)
        threading.Event().wait(_POLL_SECONDS)


def until(condition: Callable[[], bool], what: str) -> None:
    """Wait until something holds."""
    wait_for(lambda: int(condition()), 1, what)


def until_empty(connection: Conn, *tables: str) -> None:
    """Wait until tables have no rows; each look is a transaction of its own."""
    for table in tables:
        until(partial(is_empty, connection, table), f"{table} is empty")


def is_empty(connection: Conn, table: str) -> bool:
    """Return True if a table has no rows; the look is a transaction of its own."""
    statement = sql.SQL("SELECT NOT EXISTS (SELECT FROM {})").format(sql.Identifier(table))
    row = connection.execute(statement).fetchone()
    connection.rollback()
    return row == (True,)


class Counted(Protocol):
    """A record of calls."""

    def count(self) -> int:
        """Return their number."""
        ...


def check_runs(
    connection: Conn, expected: int, starts: Counted, *, retried: int = 0, may_be_released: bool = False
) -> None:
    """Verify that each run succeeded at its first attempt with one call of a handler.

    Args:
        connection: Of the database.
        expected: All runs.
        starts: The recorded starts, or the requests that a receiver has counted.
        retried: So many succeeded at their second attempt, with two calls.
        may_be_released: True if others may have succeeded at their second attempt with one call: an executor releases
            attempts that it has claimed beyond its slots and cannot start soon.

    Raises:
        Incomplete: The database or the recorded starts differ.
    """
    row = connection.execute(_COUNTS, {"succeeded": RunState.SUCCEEDED}).fetchone()
    connection.rollback()
    assert row is not None
    found, handled = tuple(int(str(number)) for number in row), starts.count()
    released = found[2] - retried if may_be_released else 0
    first = expected - retried - released
    if (*found, handled) != (expected, first, retried + released, 0, 0, 0, first + released + 2 * retried):
        counts = ", ".join(f"{count:,} {words}" for count, words in zip(found, _WORDS, strict=True))
        message = f"{expected:,} runs were expected; {counts}, {handled:,} calls of handlers"
        raise Incomplete(message)


def check_starts(starts: Sequence[Start], expected: int) -> None:
    """Verify that each run was started once, and none early.

    Raises:
        Incomplete: One was not.
    """
    distinct = len({start.run for start in starts})
    early = sum(start.at < start.due - _EARLY_SECONDS for start in starts)
    if (len(starts), distinct, early) != (expected, expected, 0):
        message = (
            f"{expected:,} runs were expected; {len(starts):,} calls, of {distinct:,} runs, {early:,} of them early"
        )
        raise Incomplete(message)


def check_events(environment: Environment, expected: int) -> None:
    """Read all completion events; each run must have one of success. A repeat is allowed.

    Raises:
        Incomplete: A run has none, or another status.
    """
    topics = [environment.installation.topics.completions]
    there = ends(environment, topics)
    client, read = reader(environment, topics), 0
    seen = {status: set[str]() for status in RunStatus}
    while read < there:
        for message in client.consume(1000, 1.0):
            event = decode(message.value() or b"", RunCompleted)
            read += 1
            seen[event.status].add(event.run_id)
    client.close()
    ended = {status: len(runs) for status, runs in seen.items() if runs}
    if ended != {RunStatus.SUCCEEDED: expected}:
        fault = f"{expected:,} runs were expected; by their events {ended}"
        raise Incomplete(fault)


def lateness_ms(starts: Sequence[Start]) -> list[float]:
    """Return the lateness of each run, in milliseconds."""
    return [(start.at - start.due) * 1000 for start in starts]


def p99_by_second(starts: Sequence[Start]) -> Points:
    """Return the p99 lateness of each second, in milliseconds."""
    first = min(start.due for start in starts)
    seconds: dict[int, list[float]] = {}
    for start in starts:
        seconds.setdefault(int(start.due - first), []).append((start.at - start.due) * 1000)
    return [(float(second), percentile(late, 99)) for second, late in sorted(seconds.items())]


class _Offset(Protocol):
    offset: int
    timestamp: int  # in milliseconds, where the newest message was requested


class Ends:
    """Counts the messages of one topic."""

    def __init__(self, environment: Environment, topic: str) -> None:
        self._admin = AdminClient({**environment.kafka, "client.id": "tidewheel-bench", "log_level": 2})
        partitions = self._admin.list_topics(topic, timeout=_RESPONSE_SECONDS).topics[topic].partitions
        latest = cast("OffsetSpec", OffsetSpec.latest())  # type: ignore[no-untyped-call]
        newest = cast("OffsetSpec", OffsetSpec.max_timestamp())  # type: ignore[no-untyped-call]
        self._latest = {TopicPartition(topic, number): latest for number in partitions}
        self._newest = {TopicPartition(topic, number): newest for number in partitions}

    def count(self) -> int:
        """Return the number of messages in the topic.

        Raises:
            KafkaException: A partition has no leader for half a minute, or the broker refuses.
        """
        return sum(each.offset for each in self._read(self._latest))

    def last_seconds(self) -> float:
        """Return the time of the newest message in seconds.

        Raises:
            KafkaException: As `count`.
        """
        return max(each.timestamp for each in self._read(self._newest)) / 1000

    def _read(self, specs: dict[TopicPartition, OffsetSpec]) -> list[_Offset]:
        give_up = monotonic_seconds() + _RESPONSE_SECONDS
        while True:
            listed = self._admin.list_offsets(specs, request_timeout=_RESPONSE_SECONDS)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
            offsets = cast("dict[TopicPartition, Future[_Offset]]", listed)
            try:
                return [each.result() for each in offsets.values()]
            except KafkaException as error:
                # A busy broker reports a leader in its metadata before the partition serves requests.
                if error.args[0].code() not in _NO_LEADER or monotonic_seconds() >= give_up:
                    raise
            threading.Event().wait(_POLL_EVENTS_SECONDS)

    def watch(self, wanted: int) -> list[tuple[float, int]]:
        """Wait until so many are there; returns how many there were when.

        Raises:
            Incomplete: None has come for a minute.
        """
        seen = [(now_seconds(), self.count())]
        since = monotonic_seconds()
        while seen[-1][1] < wanted:
            threading.Event().wait(_POLL_EVENTS_SECONDS)
            before = seen[-1][1]
            seen.append((now_seconds(), self.count()))
            since = monotonic_seconds() if seen[-1][1] > before else since
            if monotonic_seconds() - since > STALL_SECONDS:
                message = f"{seen[-1][1]:,} of {wanted:,} completion events, and none for {STALL_SECONDS:.0f} s"
                raise Incomplete(message)
        return seen
