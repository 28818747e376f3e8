"""The demo's services as processes, the rows they write, and when they are ready.

Readiness is that the services' rows exist and the executors' groups have all partitions. Without that wait the first
runs would measure the start of a group.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import NamedTuple, Self, cast
from uuid import UUID

import psycopg
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ConsumerGroupDescription  # type: ignore[attr-defined]

from examples.demo.handlers import RECEIVER_VARIABLE
from tidewheel.errors import StackError
from tidewheel.kafka.topics import DEFAULT_QUEUE, Topics
from tidewheel.local.stack import StackInfo
from tidewheel.runs import Lane

EXECUTORS = ("executor 1", "executor 2")
LEASE_SECONDS = 5  # a third of the default, so that the killed executor's runs are retried within the demo's minute
HEARTBEAT_SECONDS = 1

_COMMAND = "from tidewheel.control.cli.main import main; main()"
_STOP_SECONDS = 10.0
_TAIL_LINES = 5
_REQUEST_TIMEOUT_SECONDS = 5.0
_PARTITIONS = {topic.name: topic.partitions for topic in Topics().plan()}

_COUNT_READY = """
SELECT (SELECT count(*) FROM executors), (SELECT count(*) FROM members), (SELECT count(*) FROM intake_offsets)"""
_COUNT_RUNS = """
SELECT (SELECT count(*) FROM runs), (SELECT count(*) FROM job_runs), (SELECT count(*) FROM outbox)"""
_HELD_BY = """
SELECT r.run_id, r.attempt FROM job_runs AS r JOIN executors AS e USING (executor_id)
 WHERE r.state = 'running' AND e.name LIKE '%%:' || %s"""


class Counts(NamedTuple):
    """Rows in PostgreSQL: all runs, those that have not ended, and messages that are not on Kafka yet."""

    runs: int
    unfinished: int
    outbox: int

    @property
    def is_quiet(self) -> bool:
        """True if nothing is left to do."""
        return not self.unfinished and not self.outbox


class Rows:
    """The rows of the demo's database; a context manager."""

    def __init__(self, database_url: str) -> None:
        self._connection = psycopg.connect(database_url, autocommit=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._connection.close()

    def are_ready(self) -> bool:
        """Return True if each service has written that it is there."""
        intake = _PARTITIONS[Topics().requests] + _PARTITIONS[Topics().target_replies]
        expected = (len(EXECUTORS), 2, intake)  # 2: a scheduler and a relay
        return self._connection.execute(_COUNT_READY).fetchone() == expected

    def count(self) -> Counts:
        """Count the runs and the messages."""
        return Counts(*(self._connection.execute(_COUNT_RUNS).fetchone() or (0, 0, 0)))

    def held_by(self, pid: int) -> frozenset[tuple[str, int]]:
        """Return the run and number of each attempt that a process has claimed and not ended."""
        found = self._connection.execute(_HELD_BY, [str(pid)]).fetchall()
        return frozenset((str(run_id), attempt) for run_id, attempt in cast("list[tuple[UUID, int]]", found))


class Services:
    """Intake, scheduler, relay and two executors; a context manager that ends them."""

    def __init__(self, info: StackInfo, logs: Path) -> None:
        self._logs = logs
        self._variables = {
            **os.environ,
            "TIDEWHEEL_HOME": str(info.data_dir),
            "TIDEWHEEL_HTTP_ALLOW_PRIVATE": "true",  # the receiver is on this machine
            "TIDEWHEEL_LEASE": f"PT{LEASE_SECONDS}S",
            "TIDEWHEEL_HEARTBEAT": f"PT{HEARTBEAT_SECONDS}S",
        }
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._killed: set[str] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for process in self._processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.terminate()
        deadline = _STOP_SECONDS
        for process in self._processes.values():
            try:
                process.wait(timeout=deadline)
            except subprocess.TimeoutExpired:
                deadline = 0.1
                process.kill()
                process.wait()

    def start(self, receiver: str) -> None:
        """Start all services, without waiting until they are ready."""
        self._variables[RECEIVER_VARIABLE] = receiver
        for name in ("intake", "scheduler", "relay"):
            self._start(name, name)
        for name in EXECUTORS:
            self._start(name, "executor", "--handlers", "examples.demo.handlers")

    def check(self) -> None:
        """Raise StackError with the last lines of its log if a service has ended by itself."""
        for name, process in self._processes.items():
            if name not in self._killed and process.poll() is not None:
                lines = self._log(name).read_text(errors="replace").splitlines()[-_TAIL_LINES:]
                message = f"the {name} ended by itself ({process.returncode}): " + "\n".join(lines)
                raise StackError(message)

    def command(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Run a command of `tidewheel` on the demo's stack."""
        command = [*_python(), *arguments]
        return subprocess.run(command, env=self._variables, capture_output=True, text=True, check=False)

    def pid(self, name: str) -> int:
        """Return the pid of a service."""
        return self._processes[name].pid

    def freeze(self, name: str) -> None:
        """Stop a process by SIGSTOP."""
        self._processes[name].send_signal(signal.SIGSTOP)

    def kill(self, name: str) -> None:
        """Kill a process by SIGKILL."""
        self._killed.add(name)
        self._processes[name].kill()
        self._processes[name].wait()

    def states(self) -> Mapping[str, tuple[int, str]]:
        """Return the pid and state of each service, for the display."""
        return {
            name: (process.pid, "killed" if name in self._killed else "running")
            for name, process in self._processes.items()
        }

    def _log(self, name: str) -> Path:
        return self._logs / f"{name.replace(' ', '-')}.log"

    def _start(self, name: str, *arguments: str) -> None:
        with self._log(name).open("wb") as output:
            self._processes[name] = subprocess.Popen(
                [*_python(), *arguments],
                env=self._variables,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C goes to the demo alone, which then stops them in order
            )


def _python() -> Sequence[str]:
    return [sys.executable, "-P", "-c", _COMMAND]  # -P: a file in the current folder must not shadow a module


def are_assigned(kafka: Mapping[str, str]) -> bool:
    """Return True if the executors have all partitions of runs."""
    admin = AdminClient({**kafka, "client.id": "tidewheel-demo", "log_level": 2})
    names = [Topics().runs(DEFAULT_QUEUE, lane) for lane in Lane]
    groups = admin.describe_consumer_groups(  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType] - its stub leaves a Future bare
        [f"{name}.executors" for name in names], request_timeout=_REQUEST_TIMEOUT_SECONDS
    )
    futures = cast("dict[str, Future[ConsumerGroupDescription]]", groups)
    return all(_assigned(futures[f"{name}.executors"]) >= _PARTITIONS[name] for name in names)


def _assigned(future: "Future[ConsumerGroupDescription]") -> int:
    try:
        found = future.result()
    except KafkaException:
        return 0  # the group does not exist yet, or its coordinator is not known yet
    counts = [len(member.assignment.topic_partitions) for member in found.members if member.assignment]
    return sum(counts)
