"""Memory of every service under hostile input: no process exceeds 256 MB."""

import gzip
import json
import socket
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from random import Random
from typing import LiteralString

import httpx
import pytest
from confluent_kafka import Producer

from tests.control.api.answering import enter
from tests.fixtures.acts import submission
from tests.fixtures.services import Fleet, Role, Service
from tidewheel.clock import monotonic_seconds
from tidewheel.control.client.client import Client
from tidewheel.kafka.topics import DEFAULT_QUEUE
from tidewheel.local.daemon import free_port
from tidewheel.runs import Lane
from tidewheel.schemas.codec import FORMS

pytestmark = [pytest.mark.slow, pytest.mark.kafka]

MEGABYTE = 1 << 20
LIMIT = 256 * MEGABYTE
TOKEN = "correct-horse-battery"

HEADERS = (FORMS["Request"].header, FORMS["RunRequest"].header)
LONGEST = b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01"  # 2^63 - 1, as a length or a count
HELD = 100  # messages that the producer of a test holds
CHANCE = Random(19)  # noqa: S311 - examples, the same in every run
UNREADABLE = (
    b'{"a":' * 200_000,
    b"[" * MEGABYTE,
    b'{"type": "job.submit", "job": {"payload": ' + b"[" * 30_000 + b"]" * 30_000 + b"}}",
    json.dumps({"type": "job.submit", "labels": {f"{n:04}": "x" for n in range(70_000)}}).encode(),
    json.dumps({"type": "job.trigger", "key": "k", "payload": [f"{n:02}" for n in range(150_000)]}).encode(),
    *(header + LONGEST * 100 for header in HEADERS),
    *(header + bytes(MEGABYTE - 100) for header in HEADERS),
    *(header + b"\x02" * (MEGABYTE - 100) for header in HEADERS),
    *(header + CHANCE.randbytes(100_000) for header in HEADERS),
)


def has(fleet: Fleet, rows: int, count: LiteralString) -> bool:
    return fleet.database.value(count) == rows


def peak(service: Service) -> int:
    """The most memory that a process has had, in bytes."""
    lines = Path(f"/proc/{service.process.pid}/status").read_text().splitlines()
    [line] = [each for each in lines if each.startswith("VmHWM:")]
    return int(line.split()[1]) * 1024


def send_to_all(
    fleet: Fleet,
    values: list[bytes],
    codec: str,
    *,
    key: bytes | None = None,
    headers: dict[str, str | bytes | None] | None = None,
    lanes: Iterable[Lane] = Lane,
) -> None:
    """Produce to each topic that a service reads; each value as a batch of its own, all in one partition."""
    told = {"message.max.bytes": 1_000_000_000, "batch.size": 1_000_000_000, "batch.num.messages": 1}
    producer = Producer({**fleet.kafka, **told, "compression.type": codec})
    for topic in (
        fleet.topics.requests,
        fleet.topics.target_replies,
        *(fleet.topics.runs(DEFAULT_QUEUE, lane) for lane in lanes),
    ):
        for value in values:
            producer.produce(topic, value, key, partition=0, headers=headers)
            assert len(producer) < HELD or producer.flush(60) == 0
        assert producer.flush(60) == 0


@pytest.mark.parametrize("sizes", [[60, 80] * 6, [1] * 100], ids=["huge", "small"])
def test_zstd_that_unpacks_to_megabytes(fleet: Fleet, sizes: list[int]) -> None:
    services = fleet.start_all()
    fleet.wait_started()
    send_to_all(fleet, [bytes(size * 1_000_000) for size in sizes], "zstd")
    assert_reads_on(fleet)
    report("zstd", services)


@pytest.mark.parametrize(
    ("codec", "size"),
    [("snappy", 20), ("lz4", 60), ("gzip", 60)],
    ids=["snappy", "lz4", "gzip"],
)
def test_other_codecs_are_unpacked_one_batch_at_a_time(fleet: Fleet, codec: str, size: int) -> None:
    """No setting of the client bounds them.

    An executor has three consumers, each with up to three copies of a message.
    """
    services = fleet.start_all()
    fleet.wait_started()
    send_to_all(fleet, [bytes(size * 1_000_000)] * 12, codec)
    assert_reads_on(fleet)
    report(codec, services, limit=(140 + 9 * size) * MEGABYTE)


@pytest.mark.parametrize("kind", ["garbage", "request"])
def test_thousands_of_messages_of_a_legal_size(fleet: Fleet, kind: str) -> None:
    """Each is a batch of some hundred bytes, and unpacks to less than a request may have."""
    services = fleet.start_all()
    fleet.wait_started()
    request = json.dumps({"type": "job.trigger", "key": "k", "payload": "x" * 900_000}).encode()
    send_to_all(fleet, [bytes(900_000) if kind == "garbage" else request] * 2000, "zstd")
    assert_reads_on(fleet)
    report(kind, services)


@pytest.mark.parametrize("part", ["key", "header", "name"])
def test_thousands_of_messages_with_a_long_key_or_header(fleet: Fleet, part: str) -> None:
    """The value has three bytes, which is all that the client counts of what it has fetched.

    Topics of runs are left out: only the relay may write there, and an executor's queue is bounded in values.
    """
    services = fleet.start_all()
    fleet.wait_started()
    key = bytes(900_000) if part == "key" else None
    longest: dict[str, dict[str, str | bytes | None]] = {
        "header": {"x": bytes(900_000)},
        "name": {"x" * 900_000: b""},
    }
    headers = longest.get(part)
    send_to_all(fleet, [b"abc"] * 2000, "zstd", key=key, headers=headers, lanes=())
    assert_reads_on(fleet)
    report(part, services)


def test_two_thousand_runs_of_the_largest_payload_and_result(fleet: Fleet) -> None:
    """Each service finds all of them waiting; the executor has a slot for each."""
    services = fleet.start_all("intake")
    fleet.wait_started()
    once = {"once": "2020-01-01T00:00:00Z"}
    for number in range(2000):
        fleet.ask(submission(f"big-{number}", target="shorten", schedule=once, payload="x" * 250_000))
        if number % HELD == 0:
            fleet.flush()
    fleet.flush()
    waiting: dict[Role, LiteralString] = {
        "scheduler": "SELECT count(*) FROM timers",
        "relay": "SELECT count(*) FROM outbox WHERE topic LIKE '%.runs.%'",
        "executor": "SELECT count(*) FROM job_runs",
    }
    for role, count in waiting.items():
        fleet.until(partial(has, fleet, 2000, count), f"the {role} has all before it", seconds=120)
        services[role] = fleet.start(role, SLOTS="2000")
        fleet.wait_started()
    fleet.until(fleet.settled, "every run has ended", seconds=120)
    report("payloads", services)


def test_messages_that_are_deep_or_count_too_much(fleet: Fleet) -> None:
    services = fleet.start_all()
    fleet.wait_started()
    send_to_all(fleet, [*UNREADABLE] * 3, "none")
    for number in range(40):
        job = submission(
            f"big-{number}", target="note", schedule={"once": "2020-01-01T00:00:00Z"}, payload="x" * 250_000
        )
        fleet.ask(job)
    fleet.flush()
    assert_reads_on(fleet)
    fleet.until(fleet.settled, "every run has ended")
    report("deep", services)


def test_bodies_of_requests_to_the_api(fleet: Fleet) -> None:
    port = free_port()
    api = fleet.start("api", API_PORT=str(port), API_TOKEN=TOKEN)
    fleet.wait_started()
    url = f"http://127.0.0.1:{port}"
    strings = json.dumps({"a": [f"{n:02}" for n in range(150_000)]}).encode()
    names = json.dumps({f"{n:05}": n for n in range(80_000)}).encode()
    bodies = (*UNREADABLE, strings, names, bytes(50_000_000), gzip.compress(bytes(500_000_000)))
    run = "/api/v1/runs/01a1f866-b48a-80af-96e8-cb1df771f593:complete"

    def ask(number: int) -> int:
        body, path = bodies[number % len(bodies)], (run, "/api/v1/executors")[number % 2]
        headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
        if number % 2:
            headers["Authorization"] = f"Bearer {TOKEN}"
        try:
            content = iter([body]) if number % 3 else body  # chunked, or with its length
            return httpx.post(url + path, content=content, headers=headers, timeout=60, trust_env=False).status_code
        except httpx.HTTPError:  # closed before all was sent
            return 413

    with ThreadPoolExecutor(40) as askers:
        found = set(askers.map(ask, range(30 * len(bodies))))
    assert found <= {400, 401, 413, 415, 422, 503}
    with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {TOKEN}"}, trust_env=False) as client:
        assert enter(client).heartbeat() == []
    report("bodies", {"api": api})


def test_answers_of_the_api_that_no_client_reads(fleet: Fleet) -> None:
    """60 pages and 60 streams of 6 MB each, of which a socket takes 4 MB; four threads encode pages."""
    port = free_port()
    api = fleet.start("api", API_PORT=str(port), API_TOKEN=TOKEN, API_CONNECTIONS_PER_ADDRESS="400")
    fleet.wait_started()
    fleet.database.submit()
    since = fleet.database.now().isoformat()
    fleet.database.succeed(fleet.database.begun())
    fleet.database.copy_ends(3000, size=6000)
    with Client(fleet.database.url) as client:
        keys = [client.api_keys.create("reader", ["read"], rate=10_000).key for _ in range(5)]
    asked = ["/api/v1/runs?limit=1000", "/api/v1/run-events"] * 60
    url = f"http://127.0.0.1:{port}"
    with (
        ExitStack() as held,
        httpx.Client(base_url=url, headers={"Authorization": f"Bearer {TOKEN}"}, timeout=60, trust_env=False) as own,
    ):
        executor = enter(own)
        took: list[float] = []
        for number, path in enumerate(asked):
            one = held.enter_context(socket.socket())
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            one.connect(("127.0.0.1", port))
            head = f"GET {path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {keys[number % len(keys)]}\r\n"
            one.sendall(f"{head}Last-Event-ID: {since}\r\n\r\n".encode())
            began = monotonic_seconds()
            assert executor.heartbeat() == []
            took.append(monotonic_seconds() - began)
        print("BEATS", f"{sorted(took)[len(took) // 2] * 1000:.0f} ms, worst {max(took) * 1000:.0f} ms")  # noqa: T201
        assert sorted(took)[len(took) // 2] < 1.0  # of a heartbeat each second
    report("unread", {"api": api})


def assert_reads_on(fleet: Fleet) -> None:
    """Wait until a job that is submitted and triggered behind all this has run."""
    fleet.ask(submission("behind", target="note"))
    fleet.ask({"type": "job.trigger", "key": "behind"})
    fleet.flush()
    fleet.until(
        lambda: fleet.database.value(
            "SELECT count(*) FROM finished_runs JOIN jobs USING (job_id) WHERE key = 'behind'"
        ),
        "the job behind has run",
        seconds=120,
    )


def report(what: str, services: Mapping[Role, Service], *, limit: int = LIMIT) -> None:
    """Check the most memory that each service has had."""
    peaks = {role: peak(service) for role, service in services.items()}
    print("PEAK", what, {role: f"{size // MEGABYTE} MB" for role, size in peaks.items()})  # noqa: T201
    assert all(size < limit for size in peaks.values()), peaks
