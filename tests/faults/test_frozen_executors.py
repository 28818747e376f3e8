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
from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

from tests.fixtures.services import Fleet, Service
from tests.relay.topics import make_topics
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
_WATCHERS = 2  # executors that are never stopped: a reaper that was stopped counts nothing for 5 s
_LEAST_STOP_SECONDS = 2.5  # longer than the lease
_FREED_SECONDS = 60.0
_FULL = 300  # open runs, above which no wave is added
_WAVE_SECONDS = 0.5
LONG = pytest.mark.skipif("TIDEWHEEL_FAULTS_MINUTES" not in os.environ, reason="set TIDEWHEEL_FAULTS_MINUTES; long")
# The server does this too, after 15 s or 60 s: of a process stopped inside a transaction, or inside a COPY.
_END_STOPPED = """
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE datname = current_database() AND wait_event = 'ClientRead' AND state <> 'idle'
    AND xact_start < clock_timestamp() - interval '3 seconds'
"""
_NAMES = "SELECT name FROM executors"

SEED = int(os.environ.get("TIDEWHEEL_TEST_SEED", "19"))

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


@dataclass(eq=False)
class Stopped:
    """An executor that is stopped and goes on, again and again, each time at a random moment.

    Args:
        service: Its process.
        choose: Chooses the moments.
        next_at: When it is stopped, or goes on; in a stop None until another executor has ended its lease.
        since: When it was stopped; None while it runs.
    """

    service: Service
    choose: random.Random
    next_at: float | None
    since: float | None = None

    def step(self, names: Collection[str]) -> bool:
        """Stop it or let it go on if it is time; return True if it was stopped.

        Args:
            names: Ends of the names of the executors whose lease goes on.
        """
        now = monotonic_seconds()
        if self.since is not None and self.next_at is None:
            stopped = now - self.since
            assert stopped < _FREED_SECONDS, f"executor {self.service.process.pid} keeps its lease while it is stopped"
            if stopped > _LEAST_STOP_SECONDS and str(self.service.process.pid) not in names:
                self.next_at = now + self.choose.uniform(0.05, 0.6)  # the others claim what was its
        if self.next_at is None or now < self.next_at:
            return False
        if self.since is None:
            self.service.pause()
            self.since, self.next_at = monotonic_seconds(), None
            return True
        self.service.resume()
        self.since, self.next_at = None, now + self.choose.uniform(0.05, 2.5)
        return False


@dataclass
class Field:
    """A fleet of executors, with a receiver for each kind of target."""

    fleet: Fleet
    port: int
    choose: random.Random
    topic: str = "orders"
    runs: dict[str, str] = field(default_factory=dict[str, str])
    stops: int = 0
    ended_sessions: int = 0
    never: threading.Event = field(default_factory=threading.Event)

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
            self.fleet.database.submit(key, target=target, payload={"to": key})

    @property
    def shell_log(self) -> Path:
        return self.fleet.folder / "shell.log"

    def wave(self) -> None:
        """Trigger runs of every target."""
        keys = [key for key, count in WAVE.items() for _ in range(count)]
        self.choose.shuffle(keys)
        replies = self.fleet.database.apply_batch(*({"type": "job.trigger", "key": key} for key in keys))
        self.runs |= {str(reply.run_id): key for key, reply in zip(keys, replies, strict=True)}

    def stop_often(self, executors: Sequence[Service], stops: int) -> None:
        """Stop each of these again and again under load, at moments of its own; then let all go on."""
        now = monotonic_seconds()
        each = [Stopped(service, self.choose, now + self.choose.uniform(0.1, 2.5)) for service in executors]
        next_wave = next_end = 0.0
        while self.stops < stops:
            self.fleet.assert_well()
            now = monotonic_seconds()
            if now > next_wave and self.fleet.database.count("job_runs") < _FULL:
                self.wave()
                next_wave = now + _WAVE_SECONDS
            if now > next_end:
                self.ended_sessions += len(self.fleet.database.rows(_END_STOPPED))
                next_end = now + 1.0
            names = {str(name).rpartition(":")[2] for (name,) in self.fleet.database.rows(_NAMES)}
            for one in each:
                if one.step(names):
                    self.stops += 1
                    if self.stops % ONE_IN == 0:
                        print(f"{self.stops} stops, {len(self.runs)} runs", flush=True)  # noqa: T201 - of a long run
            self.never.wait(self.choose.uniform(0.005, 0.03))
        self.fleet.until(lambda: self.all_go_on(each), "every executor goes on")

    def all_go_on(self, each: Iterable[Stopped]) -> bool:
        """Let those go on whose lease was ended; return True if all do."""
        self.fleet.database.rows(_END_STOPPED)
        names = {str(name).rpartition(":")[2] for (name,) in self.fleet.database.rows(_NAMES)}
        left = [one for one in each if one.since is not None]
        for one in left:
            one.step(names)
        return not left

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


@dataclass(frozen=True)
class Verdict:
    """Result of stopping executors: the repeated and the late attempts, by target."""

    repeated: Counter[str]
    late: Counter[str]
    reached: frozenset[str]


def stop_and_judge(work: Field, log: Path, *, executors: int, stops: int, **settings: str) -> Verdict:
    """Stop executors, except two, until so many stops have been; let every run end, and judge."""
    work.submit()
    started = [work.fleet.start("executor", **SETTINGS, **settings) for _ in range(executors)]
    work.fleet.wait_started()
    work.stop_often(started[_WATCHERS:], stops)
    work.fleet.until(lambda: work.fleet.database.count("job_runs") == 0, "every run has ended", seconds=120)
    arrivals, claims = work.arrivals(log), work.claims()
    repeated = Counter(work.runs[run] for run, attempt in claims if attempt > 1)
    late = sent_too_late(arrivals, claims)
    reached = frozenset(work.runs[run] for seen in arrivals.values() for run, _, _ in seen)
    counts = f"{work.stops} stops, {len(work.runs)} runs, {work.ended_sessions} sessions ended"
    print(f"seed {SEED}: {counts}, repeated {dict(repeated)}, late {dict(late)}")  # noqa: T201 - of a long run
    return Verdict(repeated, late, reached)


FULL_FAULTS = pytest.mark.skipif(os.environ.get("TIDEWHEEL_FAULTS") != "full", reason="run by `make faults`")


@pytest.fixture
def work(fleet: Fleet, receiver: tuple[int, Path], monkeypatch: pytest.MonkeyPatch) -> Field:
    """A field without executors."""
    for name, text in (FAKE_AWS | {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{receiver[0]}"}).items():
        monkeypatch.setenv(name, text)
    return Field(fleet, receiver[0], random.Random(SEED))  # noqa: S311 - a test's


@FULL_FAULTS
@pytest.mark.slow
@pytest.mark.parametrize(("executors", "stops"), [(5, 24), pytest.param(8, 1000, marks=LONG)])
def test_stopped_executor_sends_nothing_after_its_lease(
    work: Field, receiver: tuple[int, Path], executors: int, stops: int
) -> None:
    found = stop_and_judge(work, receiver[1], executors=executors, stops=stops)
    work.fleet.stop()
    assert found.reached == set(WAVE)
    assert found.repeated["http"] >= work.stops // 4, "too few attempts were interrupted to show anything"
    assert sum(found.late[target] for target in INSIDE) <= work.stops / ONE_IN
    assert not {target: count for target, count in found.late.items() if target not in INSIDE}


@FULL_FAULTS
@pytest.mark.slow
def test_executor_that_does_not_look_at_its_lease_is_found(work: Field, receiver: tuple[int, Path]) -> None:
    found = stop_and_judge(work, receiver[1], executors=5, stops=24, HANDLERS="tests.faults.endless_leases")
    assert found.late["http"]
