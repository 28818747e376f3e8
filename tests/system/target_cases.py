"""Runs of every kind of target whose first attempt never ends by itself, and their observed ends.

Each effect is recorded where it happens. Handlers and programs write to a file, HTTP and Lambda targets reach a
server, and Kafka targets use their topic.
"""

import base64
import json
import threading
from collections import defaultdict
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, LiteralString
from uuid import UUID

import psutil
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]  # its stub re-exports it not

from tests.executor.http_target import Quiet, listening
from tests.fixtures.reader import TopicReader
from tests.fixtures.services import Fleet
from tidewheel.runs import FINAL
from tidewheel.task_tokens import TASK_TOKEN_HEADER

EVENTS = ("timeout", "cancel", "crash", "restart")
DELIVERIES = ("at_least_once", "at_most_once")

_TIMEOUT = "6s"  # of the runs whose time is to pass; the attempt after it needs a fraction of that
_LONG = "10m"
_HELD_SECONDS = 300.0
# Records its effect; its first attempt ignores every stop request and leaves its process id for the second one.
_PROGRAM = r"""
printf '{"run_id": "%s", "attempt": %s, "pid": %s}\n' "$TIDEWHEEL_RUN_ID" "$TIDEWHEEL_ATTEMPT" $$ >> "$0"
if [ "$TIDEWHEEL_ATTEMPT" = 1 ]; then trap '' TERM; echo $$ > "$0-$TIDEWHEEL_RUN_ID"; sleep 600; fi
if kill -0 "$(cat "$0-$TIDEWHEEL_RUN_ID")" 2> "$0-none"; then echo "$TIDEWHEEL_RUN_ID" >> "$0-overlaps"; fi
"""
_ENDED: LiteralString = """
SELECT j.key, r.run_id, coalesce(o.state, r.state), r.reason,
       ARRAY (SELECT a.outcome FROM ended_attempts AS a WHERE a.run_id = r.run_id ORDER BY a.attempt)
  FROM jobs AS j
  JOIN runs AS r USING (job_id)
  LEFT JOIN job_runs AS o USING (run_id)
"""


@dataclass(frozen=True, order=True)
class Case:
    """One run: what it calls, what happens to it, and whether it may begin twice."""

    target: str
    event: str
    delivery: str

    @property
    def key(self) -> str:
        return f"{self.target}/{self.event}/{self.delivery}"


@dataclass(frozen=True)
class Seen:
    state: str
    reason: str | None
    outcomes: tuple[str, ...]
    effects: int

    def __str__(self) -> str:
        ended = self.state if self.reason is None else f"{self.state} ({self.reason})"
        effects = "1 effect" if self.effects == 1 else f"{self.effects} effects"
        return f"**{ended}**: {', '.join(self.outcomes)}; {effects}"


@dataclass
class Cases:
    """The cases of one fleet."""

    fleet: Fleet
    server: "Server"
    gate: Path
    _reader: TopicReader | None = None
    _answered: set[str] = field(default_factory=set[str])

    @property
    def topic(self) -> str:
        return f"orders-{self.fleet.topics.prefix}"

    def prepare(self) -> None:
        """Make what targets need."""
        admin = self.fleet.admin()  # its futures end with it
        new = NewTopic(self.topic, num_partitions=1, replication_factor=1)
        admin.create_topics([new])[self.topic].result(60)
        self.fleet.until(lambda: self.topic in admin.list_topics(timeout=10).topics, "its topic is known")
        self._reader = TopicReader(self.fleet.kafka, [self.topic])
        Path(f"{self.gate}-2").touch()  # later attempts of handlers end at once

    def targets(self, timeout: str) -> dict[str, object]:
        """Every kind of target by its name here; where an answer is outstanding, for so long."""
        program = ["/bin/sh", "-c", _PROGRAM, str(self.fleet.effects)]
        return {
            "handler on the loop": "gated",
            "handler on a thread": "gated-sync",
            "handler in a process": "stubborn-process",
            "http": {"type": "http", "url": self.server.url("/held")},
            "http, async": {
                "type": "http", "url": self.server.url("/later"), "async": True, "async_timeout": timeout
            },
            "kafka": {"type": "kafka", "topic": self.topic},
            "kafka, await_reply": {
                "type": "kafka", "topic": self.topic, "await_reply": True, "reply_timeout": timeout
            },
            "shell": {"type": "shell", "argv": program},
            "lambda": {"type": "lambda", "function": "held"},
        }  # fmt: skip

    def start(self, event: str) -> list[Case]:
        """Submit and trigger the cases of an event; return when each has had its effect or timed out."""
        timeout = _TIMEOUT if event == "timeout" else _LONG
        started: list[Case] = []
        for name, target in self.targets(timeout).items():
            for delivery in DELIVERIES:
                case = Case(name, event, delivery)
                job = {"key": case.key, "schedule": "manual", "target": target, "delivery": delivery}
                retry = {"max_attempts": 2, "initial": "50ms", "jitter": "0%"}
                self.fleet.ask(
                    {"type": "job.submit", "job": job | {
                        "start_to_close": timeout, "retry": retry, "payload": str(self.gate), "overlap": "allow_all",
                    }}
                )  # fmt: skip
                self.fleet.ask({"type": "job.trigger", "key": case.key})
                started.append(case)
        self.fleet.flush()
        if event == "timeout":
            return started
        self.fleet.until(lambda: all(self.effects().get(case.key) for case in started), f"{event}: every run begins")
        return started

    def wait_settled(self, cases: list[Case]) -> None:
        """Wait until no executor owns the runs that wait for an end from outside."""
        states = {"http, async": "waiting", "kafka": "succeeded", "kafka, await_reply": "waiting"}
        wanted = {case.key: states[case.target] for case in cases if case.target in states}

        def settled() -> bool:
            rows = self._rows()
            return all(rows[key][1] == state for key, state in wanted.items())

        self.fleet.until(settled, "no executor owns what needs no executor")

    def cancel(self, cases: list[Case]) -> None:
        """Request the end of their runs, where a request can end them."""
        for case in cases:
            self.fleet.ask({"type": "run.cancel", "run_id": str(self._rows()[case.key][0])})
        self.fleet.flush()

    def ended(self, cases: list[Case], *, answer_from: int) -> dict[Case, Seen]:
        """Wait for the ends of cases, complete waiting ones from this attempt on, and return the ends."""
        keys = {case.key for case in cases}

        def over() -> bool:
            self._answer(keys, answer_from)
            rows = self._rows()
            return keys <= rows.keys() and all(rows[key][1] in FINAL for key in keys)

        self.fleet.until(over, f"the runs of {cases[-1].event} end")
        assert self._reader is not None
        self._reader.read_to_end()
        rows, effects = self._rows(), self.effects()
        assert {case.key for case in cases} <= effects.keys()
        return {case: Seen(*rows[case.key][1:], effects=len(effects[case.key])) for case in cases}

    def effects(self) -> dict[str, list[int]]:
        keys = {str(row[0]): key for key, row in self._rows().items()}
        found: dict[str, list[int]] = defaultdict(list)
        for run_id, attempt in [*self._noted(), *self.server.received, *((r, a) for r, a, _ in self._sent())]:
            if run_id in keys:
                found[keys[run_id]].append(attempt)
        return found

    def left_alive(self) -> list[int]:
        """Processes of first attempts that are still there."""
        first = [line for line in self._lines() if line["attempt"] == 1]
        killed = [line["pid"] for line in first if "process" in line.get("job_key", "process")]
        return [pid for pid in killed if psutil.pid_exists(pid)]

    def overlaps(self) -> str:
        """Runs of programs whose second attempt began while the first was there."""
        file = Path(f"{self.fleet.effects}-overlaps")
        return file.read_text() if file.exists() else ""

    def _answer(self, keys: set[str], first: int) -> None:
        rows = self._rows()
        runs = {str(rows[key][0]) for key in keys & rows.keys() if rows[key][1] not in FINAL}
        tokens = dict.fromkeys(self.server.tokens, "http") | {token: "kafka" for _, _, token in self._sent() if token}
        for token, way in tokens.items():
            read = self.fleet.database.installation.task_tokens.read(token)
            assert read is not None
            if str(read[0]) not in runs or read[1] < first or token in self._answered:
                continue
            self._answered.add(token)
            if way == "http":
                self.fleet.ask({"type": "run.complete", "token": token, "result": 1})
            else:
                producer = Producer({**self.fleet.kafka, "log_level": 0})
                producer.produce(self.fleet.topics.target_replies, value=b"1", headers={TASK_TOKEN_HEADER: token})
                assert producer.flush(60) == 0
        self.fleet.flush()

    def _rows(self) -> dict[str, tuple[UUID, str, str | None, tuple[str, ...]]]:
        rows: list[Any] = self.fleet.database.rows(_ENDED)
        return {key: (run_id, state, reason, tuple(outcomes)) for key, run_id, state, reason, outcomes in rows}

    def _lines(self) -> list[dict[str, Any]]:
        file = self.fleet.effects
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def _noted(self) -> Iterator[tuple[str, int]]:
        return ((line["run_id"], line["attempt"]) for line in self._lines())

    def _sent(self) -> list[tuple[str, int, str | None]]:
        assert self._reader is not None
        self._reader.poll()
        told: list[Mapping[str, bytes]] = [dict(message.headers) for message in self._reader.seen]
        return [
            (
                each["tidewheel-run-id"].decode(),
                int(each["tidewheel-attempt"]),
                each.get(TASK_TOKEN_HEADER, b"").decode(),
            )
            for each in told
        ]


@dataclass
class Server:
    """The server that HTTP and Lambda targets call: run and attempt of each call, and the tokens."""

    port: int = 0
    received: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])
    tokens: list[str] = field(default_factory=list[str])

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}{path}"


@contextmanager
def serving_targets() -> Generator[Server]:
    """A server that holds each run's first call until the end, and answers the others."""
    made, closing = Server(), threading.Event()

    class Handler(Quiet):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("content-length", 0)))
            later = self.path == "/later"
            run_id, attempt = self._told()
            if token := self.headers.get(TASK_TOKEN_HEADER):
                made.tokens.append(token)
            made.received.append((run_id, attempt))
            if attempt == 1 and not later:
                closing.wait(_HELD_SECONDS)
            try:
                self.send_response(202 if later else 200)
                self.send_header("content-length", "1")
                self.end_headers()
                self.wfile.write(b"1")
            except OSError:
                pass  # the caller has hung up

        def _told(self) -> tuple[str, int]:
            if context := self.headers.get("x-amz-client-context"):
                custom = json.loads(base64.b64decode(context))["custom"]
                return custom["run_id"], int(custom["attempt"])
            return self.headers["tidewheel-run-id"], int(self.headers["tidewheel-attempt"])

    with listening(Handler) as made.port:
        try:
            yield made
        finally:
            closing.set()
