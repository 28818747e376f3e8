"""The demo's services as processes of the `tidewheel` command, and what their rows and groups tell of them."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import NamedTuple, Self, TypeAlias, cast
from uuid import UUID

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ConsumerGroupDescription  # type: ignore[attr-defined]

from tidewheel.errors import StackError
from tidewheel.kafka.topics import DEFAULT_QUEUE, Topics
from tidewheel.postgres.session import Conn
from tidewheel.runs import Lane

Groups: TypeAlias = "Mapping[str, Future[ConsumerGroupDescription]]"

EXECUTORS = ("executor 1", "executor 2")

_COMMAND = "from tidewheel.control.cli.main import main; main()"
_STOP_SECONDS = 10.0
_TAIL_LINES = 5
_REQUEST_SECONDS = 5.0
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


class Services:
    """Processes by name, with the output of each in a file of `logs`; a context manager that ends them."""

    def __init__(self, logs: Path, variables: Mapping[str, str]) -> None:
        self._logs, self._variables = logs, {**os.environ, **variables}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for process in self._processes.values():
            process.send_signal(signal.SIGCONT)
            process.terminate()
        for process in self._processes.values():
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def start(self, name: str, *arguments: str) -> None:
        """Start a service, without waiting until it is ready."""
        with self._log(name).open("wb") as output:
            self._processes[name] = subprocess.Popen(
                _command("service", *arguments),
                env=self._variables,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C goes to the demo alone, which then stops them in order
            )

    def check(self) -> None:
        """Raise StackError with the end of its log if a service has ended by itself."""
        for name, process in self._processes.items():
            if process.poll() is not None:
                lines = self._log(name).read_text(errors="replace").splitlines()[-_TAIL_LINES:]
                message = f"the {name} ended by itself ({process.returncode}): " + "\n".join(lines)
                raise StackError(message)

    def run(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Run a command of `tidewheel` to its end."""
        command = _command(*arguments)
        return subprocess.run(command, env=self._variables, capture_output=True, text=True, check=False)

    def pid(self, name: str) -> int:
        """Return the pid of a service."""
        return self._processes[name].pid

    def freeze(self, name: str) -> None:
        """Stop a process by SIGSTOP."""
        self._processes[name].send_signal(signal.SIGSTOP)

    def kill(self, name: str) -> None:
        """Kill a process by SIGKILL, and forget it."""
        process = self._processes.pop(name)
        process.kill()
        process.wait()

    def _log(self, name: str) -> Path:
        return self._logs / f"{name.replace(' ', '-')}.log"


def _command(*arguments: str) -> list[str]:
    return [sys.executable, "-P", "-c", _COMMAND, *arguments]  # -P: a local file must not shadow a module


def are_ready(connection: Conn, kafka: Mapping[str, str]) -> bool:
    """Return True if each service has its rows, and the executors' groups have all partitions.

    Otherwise the first runs would measure the start of a group.
    """
    intake = _PARTITIONS[Topics().requests] + _PARTITIONS[Topics().target_replies]
    entered = connection.execute(_COUNT_READY).fetchone()
    return entered == (len(EXECUTORS), 2, intake) and _are_assigned(kafka)  # 2: a scheduler and a relay


def _are_assigned(kafka: Mapping[str, str]) -> bool:
    wanted = {f"{topic}.executors": _PARTITIONS[topic] for topic in (Topics().runs(DEFAULT_QUEUE, k) for k in Lane)}
    admin = AdminClient({**kafka, "client.id": "tidewheel-demo", "log_level": 2})
    groups = admin.describe_consumer_groups(list(wanted), request_timeout=_REQUEST_SECONDS)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    try:
        found = {name: future.result() for name, future in cast("Groups", groups).items()}
    except KafkaException:
        return False  # a group does not exist yet, or its coordinator is not known yet
    for name, group in found.items():
        assigned = [len(each.assignment.topic_partitions) for each in group.members if each.assignment]
        if sum(assigned) < wanted[name]:
            return False
    return True


def count_runs(connection: Conn) -> Counts:
    """Count the runs and the messages."""
    return Counts(*cast("tuple[int, int, int]", connection.execute(_COUNT_RUNS).fetchone()))


def attempts_of(connection: Conn, pid: int) -> frozenset[tuple[str, int]]:
    """Return the run and number of each attempt that a process has claimed and not ended."""
    found = cast("list[tuple[UUID, int]]", connection.execute(_HELD_BY, [str(pid)]).fetchall())
    return frozenset((str(run_id), attempt) for run_id, attempt in found)
