"""A batch that unpacks to more memory than a process may have: it does not kill all that follow."""

import json
import re
import resource
import signal
from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from tests.fixtures.acts import submission
from tests.fixtures.services import Fleet, Service
from tidewheel.kafka.topics import DEFAULT_QUEUE
from tidewheel.runs import Lane

pytestmark = [pytest.mark.landing, pytest.mark.kafka]

MEGABYTE = 1 << 20
MAX_STARTS = 16
COORDINATOR_MOVES = {
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
}
HEADROOM = 120 * MEGABYTE  # half of a bomb; a start may have several clients more, of four threads with 8 MB each
BOMBS = [("lz4", 1, 240_000_000), ("gzip", 1, 300_000_000), ("lz4", 5, 48_000_000)]
IDS = ["lz4", "gzip", "several-messages"]


def send(fleet: Fleet, topic: str, *values: bytes, codec: str = "none", partition: int = 0) -> None:
    """Produce messages to one partition, as one batch."""
    told = {"message.max.bytes": 1_000_000_000, "batch.size": 1_000_000_000, "linger.ms": 500}
    producer = Producer({**fleet.kafka, **told, "compression.type": codec})
    refused: list[object] = []
    for value in values:
        producer.produce(
            topic, value, partition=partition, on_delivery=lambda error, _: refused.append(error) if error else None
        )
    assert producer.flush(60) == 0
    assert not refused


def request(key: str) -> bytes:
    return json.dumps({**submission(key, target="note"), "request_id": key}).encode()


def memory(service: Service, name: str = "VmData") -> int:
    [line] = re.findall(rf"{name}:\s*(\d+) kB", Path(f"/proc/{service.process.pid}/status").read_text())
    return int(line) * 1024


def limit(service: Service, limit: int) -> None:
    """Limit the memory of a process: one that takes more aborts, as one in a container is killed."""
    service.meant_to_die = True
    assert service.process.pid is not None
    resource.prlimit(service.process.pid, resource.RLIMIT_DATA, (limit, limit))


@pytest.mark.parametrize(("codec", "messages", "size"), BOMBS, ids=IDS)
def test_huge_batch_of_requests_stops_no_intake_for_ever(fleet: Fleet, codec: str, messages: int, size: int) -> None:
    topic, database = fleet.topics.requests, fleet.database
    first = fleet.start("intake")
    fleet.wait_started()
    send(fleet, topic, request("first"))
    fleet.until(lambda: database.count("jobs") == 1, "the first job is there")
    most = memory(first) + HEADROOM
    first.kill()  # not `terminate`: a close right after the join may wait for ever in the client

    for number in range(2):
        send(fleet, topic, request(f"before-{number}"))
        send(fleet, topic, *[bytes(size)] * messages, codec=codec)
        send(fleet, topic, request(f"after-{number}"))
    starts, service = 0, first
    while database.count("jobs") < 5:
        assert starts < MAX_STARTS, "each start was killed"
        starts += 1
        service = fleet.start("intake")
        limit(service, most)
        fleet.until(lambda: not service.alive or database.count("jobs") == 5, "it is killed, or reads on", seconds=120)  # noqa: B023
        assert service.process.exitcode in (None, -signal.SIGABRT), service.log_tail()
    assert starts > 1
    letters = database.rows('SELECT "offset", cut_from, reason FROM dead_letters ORDER BY "offset"')
    assert [offset for offset, _, _ in letters] == [2, 4 + messages]
    assert all(str(reason).startswith(f"the batch of {messages} messages") for _, _, reason in letters)
    send(fleet, topic, request("last"))
    fleet.until(lambda: database.count("jobs") == 6, "it reads on")
    assert database.value("SELECT count(*) FROM requests") == 6
    assert database.rows("SELECT unmoved FROM intake_offsets WHERE topic = %s AND partition = 0", [topic]) == [(0,)]
    service.terminate()


@pytest.mark.parametrize("group", ["consumer", "classic"])
def test_huge_batch_of_runs_stops_no_executor_for_ever(fleet: Fleet, group: str) -> None:
    database, topic = fleet.database, fleet.topics.runs(DEFAULT_QUEUE, Lane.STANDARD)
    fleet.start_all("intake", "scheduler", "relay")
    first = fleet.start("executor", EXECUTOR_GROUP=group, SWEEP="PT10S")
    fleet.wait_started()
    fleet.ask(submission("job", target="note"))
    run(fleet, 1)
    fleet.until(lambda: database.count("finished_runs") == 1, "the first run has ended")
    most = memory(first) + HEADROOM
    first.terminate()

    run(fleet, 5)
    for partition in range(2):
        send(fleet, topic, bytes(300_000_000), codec="gzip", partition=partition)
    run(fleet, 5)
    deaths = 0
    with closing(Consumer({**fleet.kafka, "group.id": f"{topic}.executors", "log_level": 0})) as reader:
        while True:
            assert deaths < MAX_STARTS, "each start was killed"
            service = fleet.start("executor", EXECUTOR_GROUP=group, SWEEP="PT10S")
            limit(service, most)
            fleet.until(lambda: not service.alive or is_read(reader, topic), "killed, or all is read")  # noqa: B023
            if service.alive:
                break
            deaths += 1
            assert service.process.exitcode == -signal.SIGABRT, service.log_tail()
    assert deaths > 0
    run(fleet, 1)
    fleet.until(lambda: database.count("finished_runs") == 12, "the rest is swept, and it reads on")
    assert database.rows("SELECT DISTINCT state FROM finished_runs") == [("succeeded",)]
    service.terminate()


def is_read(reader: Consumer, topic: str) -> bool:
    """Return True if a group has committed the ends of both partitions; not while its coordinator moves."""
    try:
        known = reader.committed([TopicPartition(topic, partition) for partition in range(2)], timeout=30)
    except KafkaException as error:
        if error.args[0].code() not in COORDINATOR_MOVES:
            raise
        return False
    return all(each.offset == reader.get_watermark_offsets(each, timeout=30)[1] for each in known)


def run(fleet: Fleet, count: int) -> None:
    """Trigger runs, and wait until their messages are in Kafka."""
    for _ in range(count):
        fleet.ask({"type": "job.trigger", "key": "job"})
    fleet.flush()
    fleet.until(lambda: fleet.database.count("requests") == len(fleet.asked), "requests are applied")
    fleet.until(lambda: fleet.database.value("SELECT NOT EXISTS (TABLE outbox)"), "messages are published")
