"""`relay`: messages/s from the outbox to Kafka, beside a plain produce of the same messages."""

import os
import random
from collections.abc import Iterator
from datetime import UTC, datetime

import psutil

from tidewheel.bench.baselines import Made, ends, produce, warm_producer
from tidewheel.bench.environment import Server, Stage
from tidewheel.bench.load import count_of, vacuum
from tidewheel.bench.measurement import Incomplete, Options, Round, rate
from tidewheel.clock import monotonic_seconds
from tidewheel.outbox import OutboxRow, append
from tidewheel.postgres.session import Conn
from tidewheel.process.service import Shutdown
from tidewheel.relay.loop import Relay
from tidewheel.settings import RelaySettings

MESSAGES = 300_000
_WARM_BATCHES = 4
# 300 bytes that do not compress to nothing, unlike a run of one letter: the floor would be a fiction.
_VALUES = [random.Random(number).randbytes(150).hex().encode() for number in range(1000)]  # noqa: S311
_PAST = datetime(2026, 1, 1, tzinfo=UTC)


def measure(server: Server, options: Options) -> Round:
    """Relay a full outbox; then produce the same messages with the same client settings and nothing else."""
    messages = options.jobs or MESSAGES
    with server.stage() as stage, stage.connect() as connection:
        topic = stage.installation.topics.runs("default", "standard")
        options.tell(f"{messages:,} messages")
        _fill(connection, stage, topic, messages)
        options.tell("relaying")
        relay = relay_of(stage)
        relay.enter()
        for _ in range(_WARM_BATCHES):
            relay.step()  # the first one waits for the producer's id
        left = count_of(connection, "SELECT count(*) FROM outbox")
        if left < messages // 2:
            message = f"{messages:,} messages are too few: {left:,} were left when the clock was started"
            raise Incomplete(message)
        with stage.meter({"relay": psutil.Process(os.getpid())}) as meter:
            before, started = meter.mark(), monotonic_seconds()
            while relay.step() == 0.0:
                pass
            seconds = monotonic_seconds() - started
            spent = meter.since(before, left)
        relay.leave()
        _check(connection, stage, topic, messages)
        options.tell("the floor")
        with stage.server.stage() as other:  # a topic that is as empty as the first one was
            apart = other.installation.topics.runs("default", "standard")
            floor = left / produce(other, apart, _messages(left), client=warm_producer(other, apart))
    return Round({"messages_per_second": rate(left / seconds, "messages/s", floor=floor, spent=spent)})


def relay_of(stage: Stage) -> Relay:
    """A relay in this process."""
    settings = RelaySettings.load(database_url=stage.url, kafka_bootstrap=stage.bootstrap, topic_prefix=stage.prefix)
    return Relay(settings, stage.url, stage.kafka, Shutdown())


def relay_all(stage: Stage) -> None:
    """Publish whatever is due, in this process."""
    relay = relay_of(stage)
    relay.enter()
    while relay.step() == 0.0:
        pass
    relay.leave()


def _fill(connection: Conn, stage: Stage, topic: str, messages: int) -> None:
    rows = (
        OutboxRow(number % 64, "standard", topic, key or b"", value or b"", _PAST)
        for number, (key, value, _) in enumerate(_messages(messages))
    )
    append(connection, rows, shards=stage.installation.shards)
    vacuum(connection, ["outbox"])


def _messages(count: int) -> Iterator[Made]:
    return ((b"%036d" % number, _VALUES[number % 1000], []) for number in range(count))


def _check(connection: Conn, stage: Stage, topic: str, messages: int) -> None:
    left, there = count_of(connection, "SELECT count(*) FROM outbox"), ends(stage, [topic])
    if left or there != messages:
        message = f"{messages} messages were due; {left} are left, {there} are on Kafka"
        raise Incomplete(message)
