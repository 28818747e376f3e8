"""Executors that are stopped (SIGSTOP) at random moments under load send nothing after the lease.

The receivers are processes outside that are never stopped. Bytes that a stopped executor had handed to the kernel are
read at once, long before its lease ends. So an attempt that arrives after the next one was claimed was sent too late.
"""

import json
import os
import random
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from tests.fixtures.services import Fleet, Service
from tests.relay.topics import make_topics
from tests.transitions.acts import apply_batch, submit
from tidewheel.clock import monotonic_seconds

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]

# The lease is long enough for the client of Kafka targets, which removes expired messages once a second.
SETTINGS = {
    "LEASE": "PT2S", "HEARTBEAT": "PT0.4S", "SWEEP": "PT0.1S", "SLOTS": "30", "MAX_LOST": "1000",
    "WORKER_PROCESSES": "1", "HTTP_ALLOW_PRIVATE": "true", "STALL_AFTER": "PT600S", "HTTP_PORTS": "*",
    "TARGETS": "handler,http,kafka,shell,lambda", "KAFKA_TOPICS": "*", "LAMBDA_FUNCTIONS": "*", "SHELL_ALLOW": "*",
    "SHELL_CWD": "/",
}  # fmt: skip
FAKE_AWS = {
    "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_DEFAULT_REGION": "eu-west-1",
    "AWS_EC2_METADATA_DISABLED": "true", "AWS_CONFIG_FILE": "/dev/null", "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
}  # fmt: skip
WAVE = {"http": 24, "kafka": 6, "shell": 4, "lambda": 6, "note": 4, "note-sync": 4, "note-process": 1}
# Between the look and the user's first line lie some Python and the lock of the interpreter, so a stop may hit them.
INSIDE = frozenset({"note", "note-sync", "note-process"})
ONE_IN = 100  # stops
_FREED_SECONDS = 120.0  # PostgreSQL keeps the rows of a process that was stopped inside a COPY for 60 s
LONG = pytest.mark.skipif("TIDEWHEEL_FAULTS_MINUTES" not in os.environ, reason="set TIDEWHEEL_FAULTS_MINUTES; hours")

Arrivals = Mapping[str, list[tuple[str, int, float]]]
Claims = Mapping[tuple[str, int], float]


def sent_too_late(arrivals: Arrivals, claims: Claims) -> Counter[str]:
    """Return the number of attempts that arrived after a later one of their run was claimed, by target."""
    found: Counter[str] = Counter()
    last = Counter[str]()
    for run, attempt in claims:
        last[run] = max(last[run], attempt)
    for target, seen in arrivals.items():
        for run, attempt, at in seen:
            later = [claims[run, number] for number in range(attempt + 1, last[run] + 1) if (run, number) in claims]
            found[target] += bool(later) and at > min(later)
    return +found


def test_late_attempt_is_found() -> None:
    claims = {("a", 1): 10.0, ("a", 2): 13.0, ("b", 1): 10.0, ("b", 3): 15.0}
    right = {"http": [("a", 1, 10.5), ("a", 2, 13.1)], "kafka": [("b", 1, 14.9), ("b", 3, 15.1), ("b", 3, 15.2)]}
    assert not sent_too_late(right, claims)
    assert sent_too_late({"http": [("a", 1, 13.2)], "kafka": [("b", 1, 15.5)]}, claims) == {"http": 1, "kafka": 1}


@dataclass
class Field:
    """A fleet of executors, with a receiver for each kind of target."""

    fleet: Fleet
    port: int
    choose: random.Random
    topic: str = "orders"
    runs: dict[str, str] = field(default_factory=dict[str, str])
    stops: int = 0

    def submit(self) -> None:
        """Submit a job for each target."""
        self.topic = f"{self.fleet.topics.prefix}-orders"
        make_topics(self.fleet.kafka, [self.topic], config={"message.timestamp.type": "LogAppendTime"})
        line = f'echo "$TIDEWHEEL_RUN_ID $TIDEWHEEL_ATTEMPT $(date +%s.%N)" >> {self.shell_log}'
        targets: dict[str, Any] = {
            "http": {"type": "http", "url": f"http://127.0.0.1:{self.port}/"},
            "kafka": {"type": "kafka", "topic": self.topic},
            "shell": {"type": "shell", "argv": ["/bin/sh", "-c", line]},
            "lambda": {"type": "lambda", "function": "echo"},
            "note": "note", "note-sync": "note-sync", "note-process": "note-process",
        }  # fmt: skip
        for key, target in targets.items():
            submit(self.fleet.database, key, target=target, payload={"to": key})

    @property
    def shell_log(self) -> Path:
        return self.fleet.folder / "shell.log"

    def wave(self) -> None:
        """Trigger runs of every target."""
        keys = [key for key, count in WAVE.items() for _ in range(count)]
        self.choose.shuffle(keys)
        replies = apply_batch(self.fleet.database, *({"type": "job.trigger", "key": key} for key in keys))
        self.runs |= {str(reply.run_id): key for key, reply in zip(keys, replies, strict=True)}

    def stop_some(self, executors: list[Service], count: int) -> None:
        """Stop executors at random moments of a wave, until others have claimed what they had."""
        never = threading.Event()
        chosen = self.choose.sample(executors, count)
        self.wave()
        for each in chosen:
            never.wait(self.choose.uniform(0.02, 0.25))
            each.pause()
            self.stops += 1
        stopped_at = monotonic_seconds()
        names = [f"%:{each.process.pid}" for each in chosen]
        held = "SELECT count(*) FROM executors WHERE name LIKE ANY (%s)"
        self.fleet.until(
            lambda: self.fleet.database.value(held, [names]) == 0, "their leases have ended", seconds=_FREED_SECONDS
        )
        assert monotonic_seconds() - stopped_at > 1.0
        never.wait(self.choose.uniform(0.1, 0.6))  # the others claim what was theirs
        for each in chosen:
            each.resume()

    def arrivals(self, log: Path) -> Arrivals:
        """Read what every receiver has."""
        found: dict[str, list[tuple[str, int, float]]] = {key: [] for key in WAVE}
        for line in map(json.loads, log.read_text().splitlines()):
            found[line["target"]].append((line["run"], line["attempt"], line["at"]))
        for words in map(str.split, self.shell_log.read_text().splitlines()):
            found["shell"].append((words[0], int(words[1]), float(words[2])))
        for line in map(json.loads, self.fleet.effects.read_text().splitlines()):
            found[self.runs[line["run_id"]]].append((line["run_id"], line["attempt"], line["at"]))
        found["kafka"] += self.messages()
        return found

    def messages(self) -> list[tuple[str, int, float]]:
        """Read the topic from its beginning."""
        consumer = Consumer({**self.fleet.kafka, "group.id": "none", "log_level": 0})
        place = TopicPartition(self.topic, 0, OFFSET_BEGINNING)
        _, end = consumer.get_watermark_offsets(TopicPartition(self.topic, 0), timeout=30)
        consumer.assign([place])
        found: list[tuple[str, int, float]] = []
        while len(found) < end:
            message = consumer.poll(30)
            assert message is not None
            assert message.error() is None
            headers = dict(message.headers() or [])
            run, attempt = headers["tidewheel-run-id"], headers["tidewheel-attempt"]
            assert isinstance(run, bytes)
            assert isinstance(attempt, bytes)
            found.append((run.decode(), int(attempt), message.timestamp()[1] / 1000))
        consumer.close()
        return found

    def claims(self) -> Claims:
        """Return when each attempt was claimed."""
        rows = self.fleet.database.rows("SELECT run_id, attempt, extract(epoch FROM started_at) FROM ended_attempts")
        return {(str(run), attempt): float(at) for run, attempt, at in rows if isinstance(run, UUID)}


@pytest.fixture
def receiver(tmp_path: Path) -> Generator[tuple[int, Path]]:
    """The port of a receiver, and its log."""
    log = tmp_path / "arrivals.jsonl"
    with subprocess.Popen(
        [sys.executable, "-m", "tests.faults.arrivals", str(log)],
        stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2],
    ) as process:  # fmt: skip
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline()), log
        finally:
            process.kill()


@pytest.mark.skipif(os.environ.get("TIDEWHEEL_FAULTS") != "full", reason="run by `make faults`")
@pytest.mark.slow
@pytest.mark.parametrize(("executors", "stops"), [(3, 12), pytest.param(6, 1000, marks=LONG)])
def test_stopped_executor_sends_nothing_after_its_lease(
    fleet: Fleet, receiver: tuple[int, Path], monkeypatch: pytest.MonkeyPatch, executors: int, stops: int
) -> None:
    seed = int(os.environ.get("TIDEWHEEL_TEST_SEED", "19"))
    port, log = receiver
    for name, text in (FAKE_AWS | {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"}).items():
        monkeypatch.setenv(name, text)
    work = Field(fleet, port, random.Random(seed))  # noqa: S311 - a test's
    work.submit()
    started = [fleet.start("executor", **SETTINGS) for _ in range(executors)]
    fleet.wait_started()
    while work.stops < stops:
        work.stop_some(started, executors * 2 // 3)
    fleet.until(lambda: fleet.database.count("job_runs") == 0, "every run has ended", seconds=120)
    arrivals, claims = work.arrivals(log), work.claims()
    fleet.stop()
    repeated = Counter(work.runs[run] for run, attempt in claims if attempt > 1)
    late = sent_too_late(arrivals, claims)
    shown = f"seed {seed}: {work.stops} stops, {len(work.runs)} runs, repeated {dict(repeated)}, late {dict(late)}"
    print(shown)  # noqa: T201 - the verdict of a long run
    assert {work.runs[run] for run, _, _ in (one for seen in arrivals.values() for one in seen)} == set(WAVE)
    assert repeated["http"] >= work.stops // 4, "too few attempts were interrupted to show anything"
    inside = sum(late[target] for target in INSIDE)
    assert inside <= work.stops / ONE_IN
    assert +late - Counter({target: late[target] for target in INSIDE}) == Counter()
