"""Relayed messages/s, beside a plain produce of the same messages."""

import random
from datetime import UTC, datetime

from bench.stage import Stage
from tidewheel.clock import monotonic_seconds
from tidewheel.db import Conn
from tidewheel.kafka import producer
from tidewheel.outbox import OutboxRow, append
from tidewheel.relay.loop import Relay
from tidewheel.service import Stop
from tidewheel.settings import RelaySettings

MESSAGES = 200_000
# 300 bytes that do not compress to nothing, unlike a run of one letter: the floor would be a fiction.
_VALUES = [random.Random(number).randbytes(150).hex().encode() for number in range(1000)]  # noqa: S311
_PAST = datetime(2026, 1, 1, tzinfo=UTC)


def measure(stage: Stage) -> dict[str, float]:
    """Relay a full outbox; then produce the same messages with the same client settings and nothing else."""
    topic = stage.installation.topics.runs("default", "standard")
    with stage.connect() as connection:
        _fill(connection, stage, topic)
    relay = Relay(
        RelaySettings.load(database_url=stage.url, kafka_bootstrap=stage.bootstrap),
        stage.url,
        {"bootstrap.servers": stage.bootstrap},
        Stop(),
    )
    relay.enter()
    relay.step()
    relay.step()  # proves the first batch: the producer has its id now, for which its first delivery waits
    with stage.connect() as connection:
        left = _count(connection)
        started = monotonic_seconds()
        while relay.step() == 0.0:
            pass
        relay_seconds = monotonic_seconds() - started
        assert _count(connection) == 0
    relay.leave()
    floor_seconds = _produce(stage, topic, left)
    return {
        "relayed_per_second": left / relay_seconds,
        "produced_per_second": left / floor_seconds,
        "ratio": floor_seconds / relay_seconds,
    }


def _fill(connection: Conn, stage: Stage, topic: str) -> None:
    rows = (
        OutboxRow(number % 64, "standard", topic, b"%036d" % number, _VALUES[number % 1000], _PAST)
        for number in range(MESSAGES)
    )
    append(connection, rows, shards=stage.installation.shards)
    connection.commit()
    connection.autocommit = True
    connection.execute("VACUUM ANALYZE outbox")


def _count(connection: Conn) -> int:
    row = connection.execute("SELECT count(*) FROM outbox").fetchone()
    connection.rollback()
    assert row is not None
    return int(str(row[0]))


def _produce(stage: Stage, topic: str, count: int) -> float:
    client = producer({"bootstrap.servers": stage.bootstrap}, role="bench")
    client.produce(topic, b"warm")
    client.flush()
    started = monotonic_seconds()
    for number in range(count):
        while True:
            try:
                client.produce(topic, key=b"%036d" % number, value=_VALUES[number % 1000])
                break
            except BufferError:
                client.poll(0.01)
    assert client.flush(60) == 0
    return monotonic_seconds() - started
