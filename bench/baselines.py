"""Baselines: the least that could do the work, by plain COPY, produce, consume, UPDATE and DELETE.

No product code but the Kafka clients' settings. A docstring names what its function leaves out. Scenario and baseline
are measured in the same round.
"""

import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import LiteralString, cast
from uuid import UUID, uuid4

from confluent_kafka import Consumer, Producer, TopicPartition

from tidewheel.bench.environment import Environment
from tidewheel.clock import monotonic_seconds
from tidewheel.kafka.clients import consumer, producer
from tidewheel.outbox import OutboxLane, slice_lane_of
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import trusted

COMMIT = 2000  # rows in one transaction, as firing has them
_KAFKA_SECONDS = 60.0
_WARM = b"warm"
_COLUMNS = """
SELECT string_agg(quote_ident(attname), ', ' ORDER BY attnum) FROM pg_attribute
 WHERE attrelid = %s::regclass AND attnum > 0 AND NOT attisdropped AND attidentity = '' AND attgenerated = ''
"""
Header = tuple[str, str | bytes | None]
Made = tuple[bytes | None, bytes | None, list[Header]]


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of one table as binary COPY has them."""

    table: str
    columns: str
    header: bytes
    rows: list[bytes]

    def part(self, first: int, most: int) -> bytes:
        """Some of them, as COPY reads it."""
        return self.header + b"".join(self.rows[first : first + most]) + b"\xff\xff"


def take_rows(connection: Conn, tables: Sequence[str], most: int) -> list[Rows]:
    """The first rows of some tables, those that have any."""
    found = [_take(connection, table, most) for table in tables]
    connection.commit()
    return [rows for rows in found if rows.rows]


def copy_rows(connection: Conn, taken: Sequence[Rows], *, commit: int = COMMIT) -> float:
    """COPY rows into their tables, commits of so many; returns seconds."""
    longest = max(len(each.rows) for each in taken)
    started = monotonic_seconds()
    for first in range(0, longest, commit):
        for each in taken:
            statement = trusted(f"COPY {each.table} ({each.columns}) FROM STDIN (FORMAT BINARY)")
            with connection.cursor() as cursor, cursor.copy(statement) as copy:
                copy.write(each.part(first, commit))
        connection.commit()
    return monotonic_seconds() - started


def produce(environment: Environment, topic: str, messages: Iterable[Made], *, client: Producer | None = None) -> float:
    """Produce messages with the relay's client settings and return the seconds until all acknowledgements."""
    client = client or warm_producer(environment, topic)
    started = monotonic_seconds()
    for key, value, headers in messages:
        while True:
            try:
                client.produce(topic, key=key, value=value, headers=headers)
                break
            except BufferError:
                client.poll(0.01)
    assert client.flush(_KAFKA_SECONDS) == 0
    return monotonic_seconds() - started


def warm_producer(environment: Environment, topic: str) -> Producer:
    """A producer that has its id and knows the topic: its first delivery waits for both."""
    client = producer(environment.kafka, role="bench")
    client.produce(topic, _WARM, key=_WARM)
    assert client.flush(_KAFKA_SECONDS) == 0
    return client


def reader(environment: Environment, topics: Sequence[str]) -> Consumer:
    """A consumer of all partitions of some topics from their beginning, without a group to wait for."""
    client = consumer(
        environment.kafka, group=f"{environment.prefix}.floor-{uuid4().hex[:8]}", role="bench", protocol="classic"
    )
    client.assign([TopicPartition(topic, number, 0) for topic in topics for number in _partitions(client, topic)])
    return client


def ends(environment: Environment, topics: Sequence[str]) -> int:
    """Return the number of messages in some topics."""
    client = reader(environment, topics)
    total = sum(client.get_watermark_offsets(each, _KAFKA_SECONDS)[1] for each in client.assignment())
    client.close()
    return total


def consume(client: Consumer, count: int, *, batch: int = COMMIT) -> Iterator[list[bytes]]:
    """The keys of so many messages, as they come; `warm_producer`'s message is none of them."""
    seen, give_up = 0, monotonic_seconds() + _KAFKA_SECONDS
    while seen < count:
        messages = client.consume(batch, 0.1)
        keys = [key for message in messages if (key := message.key() or b"") != _WARM]
        seen += len(keys)
        if keys:
            give_up = monotonic_seconds() + _KAFKA_SECONDS
            yield keys
        assert monotonic_seconds() < give_up, f"{seen} of {count} messages"


_FIRED: LiteralString = """
SELECT b.key, b.value FROM job_runs AS o JOIN outbox AS b ON b.key = convert_to(o.run_id::text, 'UTF8')
 LIMIT %s
"""
_CLAIM: LiteralString = """
UPDATE job_runs SET state = 'running', attempt = attempt + 1, started_at = now() WHERE run_id = ANY (%s)
"""
_END: LiteralString = """
WITH gone AS (DELETE FROM job_runs WHERE run_id = ANY (%s) RETURNING *)
INSERT INTO finished_runs (run_id, job_id, tenant, job_version, shard, cause, queue, lane, scheduled_at, publish_at,
                           created_at, started_at, finished_at, state, attempt)
SELECT run_id, job_id, tenant, job_version, shard, cause, queue, lane, scheduled_at, publish_at, created_at, started_at,
       now(), 'succeeded', attempt
  FROM gone
"""
_ATTEMPT: LiteralString = """
INSERT INTO attempts (run_id, attempt, tenant, started_at, finished_at, outcome)
SELECT run, 1, 'default', now(), now(), 'failed' FROM unnest(%(runs)s::uuid[]) AS run
"""
_REQUEUE: LiteralString = """
UPDATE job_runs SET state = 'retrying', failed_attempts = 1, publish_at = now() WHERE run_id = ANY (%s)
"""
_OUTPUT: LiteralString = """
INSERT INTO attempt_outputs (run_id, attempt, started_at, tenant, result, output, output_bytes)
SELECT run, 1, now(), 'default', %(output)s, %(output)s, octet_length(%(output)s) FROM unnest(%(runs)s::uuid[]) AS run
"""
_EVENT: LiteralString = """
INSERT INTO outbox (slice_lane, publish_at, topic, key, value, headers)
SELECT %(slice_lane)s, now(), %(topic)s, convert_to(run::text, 'UTF8'), %(value)s, NULL
  FROM unnest(%(runs)s::uuid[]) AS run
"""


def execute(
    connection: Conn, environment: Environment, count: int, topic: str, *, output: bytes | None = None
) -> float:
    """Consume so many messages, claim and end the runs that they name, and return the seconds.

    Claim and end are one statement each, in commits of at most 2,000 runs. Left out: decoding, overlaps, the executor,
    the message's coordinates, and the event's headers. Its value has 300 bytes.

    Args:
        connection: Of the database.
        environment: Of the topic.
        count: As many as the topic has run messages.
        topic: Of the run messages.
        output: Written as result and as output of each run; None writes none.
    """
    client = reader(environment, [topic])
    started = monotonic_seconds()
    for runs in _claimed(connection, client, count):
        connection.execute(_END, [runs])
        if output is not None:
            connection.execute(_OUTPUT, {"runs": runs, "output": output})
        connection.execute(_EVENT, _message(environment, runs))
        connection.commit()
    seconds = monotonic_seconds() - started
    client.close()
    return seconds


def requeue(connection: Conn, environment: Environment, count: int, topic: str) -> float:
    """Consume so many messages, claim and requeue the runs that they name, and return the seconds."""
    client = reader(environment, [topic])
    started = monotonic_seconds()
    for runs in _claimed(connection, client, count):
        connection.execute(_REQUEUE, [runs])
        connection.execute(_ATTEMPT, {"runs": runs})
        connection.execute(_EVENT, _message(environment, runs))
        connection.commit()
    seconds = monotonic_seconds() - started
    client.close()
    return seconds


def _claimed(connection: Conn, client: Consumer, count: int) -> Iterator[list[UUID]]:
    """Claim the runs that so many messages name, and commit, a part at a time."""
    for keys in consume(client, count):
        runs = _named(keys)
        connection.execute(_CLAIM, [runs])
        connection.commit()
        yield runs


def _message(environment: Environment, runs: list[UUID]) -> dict[str, object]:
    return {
        "slice_lane": slice_lane_of(0, OutboxLane.EVENTS),
        "topic": f"{environment.prefix}.completions",
        "value": b"e" * 300,
        "runs": runs,
    }


def burst(connection: Conn, environment: Environment, most: int) -> float:
    """Seconds that messages of runs take which firing has just written: produce, consume, claim."""
    messages = _fired(connection, most)
    with environment.server.environment() as other:
        topic = other.installation.topics.runs("default", "standard")
        sending, client = warm_producer(other, topic), reader(other, [topic])
        client.consume(1, 5.0)
        client.consume(1, 1.0)  # by then it knows where every partition ends
        seconds = produce(other, topic, messages, client=sending)
        started = monotonic_seconds()
        for keys in consume(client, len(messages)):
            connection.execute(_CLAIM, [_named(keys)])
            connection.commit()
        seconds += monotonic_seconds() - started
        client.close()
    return seconds


def whole(
    connection: Conn, environment: Environment, most: int, *, retried: bool = False, output: bytes | None = None
) -> float:
    """Runs/s of a run's whole way, one step after the other.

    COPY what firing writes, produce, consume, claim, end, produce the event; of runs that firing has just written. Left
    out: timers, reading and deleting outbox rows, what `execute` leaves out. The events are as long as run messages.

    Args:
        connection: Of the database.
        environment: Of the runs.
        most: The most runs.
        retried: Requeue each run once, and produce, consume and claim it again.
        output: Written as result and as output of each run; None writes none.
    """
    taken = take_rows(connection, ("job_runs", "run_inputs", "outbox"), most)
    messages = _fired(connection, most)
    connection.execute("TRUNCATE finished_runs, job_runs, run_inputs, outbox, attempts, active_runs")
    connection.commit()
    with environment.server.environment() as other:  # with topics that no other writer has used
        topic, completions = (
            other.installation.topics.runs("default", "standard"),
            other.installation.topics.completions,
        )
        sending, reporting = warm_producer(other, topic), warm_producer(other, completions)
        seconds = copy_rows(connection, taken)
        seconds += produce(other, topic, messages, client=sending)
        connection.execute("ANALYZE job_runs")
        connection.execute("TRUNCATE outbox")
        connection.commit()
        if retried:
            again = other.installation.topics.runs("default", "batch")
            resending = warm_producer(other, again)
            seconds += requeue(connection, other, len(messages), topic)
            seconds += produce(other, again, messages, client=resending)
            topic = again
        seconds += execute(connection, other, len(messages), topic, output=output)
        seconds += produce(other, completions, messages, client=reporting)
    return len(messages) / seconds


def hops(environment: Environment, topic: str, legs: int, samples: int, *, per_second: float = 200.0) -> list[float]:
    """Milliseconds of a chain, done one at a time.

    For each leg a commit of one row, a produce, its acknowledgement and the message read again; then one more commit.
    """
    sender, client = producer(environment.kafka, role="bench", linger_ms=0), reader(environment, [topic])
    took: list[float] = []
    with environment.connect() as connection:
        connection.execute("CREATE TABLE IF NOT EXISTS hops (id bigint GENERATED ALWAYS AS IDENTITY, at timestamptz)")
        connection.commit()
        for number in range(samples + 20):
            started = monotonic_seconds()
            for _ in range(legs):
                _commit_one(connection)
                sender.produce(topic, key=b"%d" % number, value=b"x" * 300)
                sender.flush(_KAFKA_SECONDS)
                while (message := client.poll(1.0)) is None or message.key() != b"%d" % number:
                    pass
            _commit_one(connection)
            seconds = monotonic_seconds() - started
            took.append(seconds * 1000)
            threading.Event().wait(max(0.0, 1 / per_second - seconds))
    client.close()
    return took[20:]


def now_seconds() -> float:
    """The machine's clock as handlers note it."""
    return time.time()


def _partitions(client: Consumer, topic: str) -> Sequence[int]:
    """The partitions of a topic; a broker tells of one that was made just now a moment later."""
    give_up = monotonic_seconds() + _KAFKA_SECONDS
    while monotonic_seconds() < give_up:
        known = client.list_topics(topic, timeout=_KAFKA_SECONDS).topics.get(topic)
        if known is not None and known.error is None and known.partitions:
            return list(known.partitions)
        threading.Event().wait(0.1)
    message = f"the broker does not know topic {topic}"
    raise RuntimeError(message)


def _commit_one(connection: Conn) -> None:
    connection.execute("INSERT INTO hops (at) VALUES (now())")
    connection.commit()


def _fired(connection: Conn, most: int) -> list[Made]:
    """The messages of runs that firing has written and no executor has claimed."""
    rows = connection.execute(_FIRED, [most]).fetchall()
    connection.commit()
    return [(cast("bytes", key), cast("bytes", value), []) for key, value in rows]


def _named(keys: Sequence[bytes]) -> list[UUID]:
    """The runs that are the keys of messages."""
    return [UUID(key.decode()) for key in keys]


def _take(connection: Conn, table: str, most: int) -> Rows:
    """Rows as binary COPY has them; generated columns are left to the table."""
    row = connection.execute(_COLUMNS, [table]).fetchone()
    assert row is not None
    columns = cast("str", row[0])
    statement = trusted(f"COPY (SELECT {columns} FROM {table} LIMIT {most}) TO STDOUT (FORMAT BINARY)")  # noqa: S608
    with connection.cursor() as cursor, cursor.copy(statement) as copy:
        text = b"".join(bytes(data) for data in copy)
    header, position = text[:19], 19
    parts: list[bytes] = []
    while (fields := int.from_bytes(text[position : position + 2], signed=True)) >= 0:
        start = position
        position += 2
        for _ in range(fields):
            length = int.from_bytes(text[position : position + 4], signed=True)
            position += 4 + max(length, 0)
        parts.append(text[start:position])
    return Rows(table, columns, header, parts)
