"""The demo's services as processes of the `tidewheel` command, and what their rows tell of them."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, Self, cast
from uuid import UUID

from tidewheel.errors import StackError
from tidewheel.kafka.topics import Topics
from tidewheel.postgres.session import Conn

EXECUTORS = ("executor 1", "executor 2")

_COMMAND = "from tidewheel.control.cli.main import main; main()"
_STOP_SECONDS = 10.0
_TAIL_LINES = 5

_COUNT_ENTERED = """
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
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for process in self.processes.values():
            process.send_signal(signal.SIGCONT)
            process.terminate()
        for process in self.processes.values():
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def start(self, name: str, *arguments: str) -> None:
        """Start a service, without waiting until it is ready."""
        with self._log(name).open("wb") as output:
            self.processes[name] = subprocess.Popen(
                _command("service", *arguments),
                env=self._variables,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C goes to the demo alone, which then stops them in order
            )

    def check(self) -> None:
        """Raise StackError with the end of its log if a service has ended by itself."""
        for name, process in self.processes.items():
            if process.poll() is not None:
                lines = self._log(name).read_text(errors="replace").splitlines()[-_TAIL_LINES:]
                message = f"the {name} ended by itself ({process.returncode}): " + "\n".join(lines)
                raise StackError(message)

    def run(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Run a command of `tidewheel` to its end."""
        command = _command(*arguments)
        return subprocess.run(command, env=self._variables, capture_output=True, text=True, check=False)

    def kill(self, name: str) -> None:
        """Kill a process by SIGKILL, and forget it."""
        process = self.processes.pop(name)
        process.kill()
        process.wait()

    def _log(self, name: str) -> Path:
        return self._logs / f"{name.replace(' ', '-')}.log"


def _command(*arguments: str) -> list[str]:
    return [sys.executable, "-P", "-c", _COMMAND, *arguments]  # -P: a local file must not shadow a module


def have_entered(connection: Conn) -> bool:
    """Return True if each service has written that it is there."""
    plan = {topic.name: topic.partitions for topic in Topics().plan()}
    intake = plan[Topics().requests] + plan[Topics().target_replies]
    return connection.execute(_COUNT_ENTERED).fetchone() == (len(EXECUTORS), 2, intake)  # 2: a scheduler and a relay


def count_runs(connection: Conn) -> Counts:
    """Count the runs and the messages."""
    return Counts(*cast("tuple[int, int, int]", connection.execute(_COUNT_RUNS).fetchone()))


def attempts_of(connection: Conn, pid: int) -> frozenset[tuple[str, int]]:
    """Return the run and number of each attempt that a process has claimed and not ended."""
    found = cast("list[tuple[UUID, int]]", connection.execute(_HELD_BY, [str(pid)]).fetchall())
    return frozenset((str(run_id), attempt) for run_id, attempt in found)
