"""`relay`: messages/s from the outbox to Kafka."""

import os
import random
from collections.abc import Iterator
from datetime import UTC, datetime

import psutil

from tidewheel.clock import monotonic_seconds
from tidewheel.outbox import OutboxRow, append
from tidewheel.process.service import Shutdown
from tidewheel.relay.loop import Relay
from tidewheel.settings.services import RelaySettings
from tools.bench.environment import Server
from tools.bench.load import vacuum
from tools.bench.measurement import Figure, Incomplete, Options, Round
from tools.bench.messages import Ends

MESSAGES = 300_000
_WARM_BATCHES = 4
# 300 bytes that do not compress to nothing, unlike a run of one letter.
_VALUES = [random.Random(number).randbytes(150).hex().encode() for number in range(1000)]  # noqa: S311
_PAST = datetime(2026, 1, 1, tzinfo=UTC)


def measure(server: Server, options: Options) -> Round:
    """Relay a full outbox."""
    messages = options.jobs or MESSAGES
    with server.environment() as environment:
        topic, connection = environment.topics.runs("default", "standard"), environment.connection
        options.report(f"{messages:,} messages")
        append(connection, _rows(topic, messages), shards=environment.installation.shards)
        vacuum(connection, ["outbox"])
        options.report("relaying")
        settings = RelaySettings.load(
            database_url=environment.url, topic_prefix=environment.topics.prefix, fairness="off"
        )
        relay = Relay(settings, environment.url, environment.kafka, Shutdown())
        relay.enter()
        for _ in range(_WARM_BATCHES):
            relay.step()  # the first one waits for the producer's id
        left = environment.count("SELECT count(*) FROM outbox")
        if left < messages // 2:
            message = f"{messages:,} messages are too few: {left:,} were left when the clock was started"
            raise Incomplete(message)
        with environment.meter({"relay": [psutil.Process(os.getpid())]}) as meter:
            before, started = meter.mark(), monotonic_seconds()
            while relay.step() == 0.0:
                pass
            seconds, spent = monotonic_seconds() - started, meter.since(before, left)
        relay.leave()
        environment.expect("SELECT count(*) FROM outbox", 0)
        if (there := Ends(environment, topic).count()) != messages:
            message = f"{messages:,} messages were due; {there:,} are on Kafka"
            raise Incomplete(message)
    return Round({"messages_per_second": Figure(left / seconds, "messages/s", spent)})


def _rows(topic: str, messages: int) -> Iterator[OutboxRow]:
    for number in range(messages):
        yield OutboxRow(number % 64, "standard", topic, b"%036d" % number, _VALUES[number % 1000], _PAST)
