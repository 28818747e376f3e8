"""The containers of a Compose file: start, kill, replace, measure, remove."""

import os
import secrets
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from tidewheel.clock import SystemClock, monotonic_seconds
from tidewheel.errors import StackError
from tidewheel.local.daemon import log_tail
from tools.containers.engine import Engine, run
from tools.containers.images import KAFKA, POSTGRES, PROMETHEUS, WORK
from tools.containers.progress import step, wait_for

SERVICES = ("intake", "scheduler", "relay", "executor", "api")

_PASSWORDS = ("postgres_password", *SERVICES, "application", "grafana")
# A container that was created and not yet started has no health.
_STATE = "{{.Name}} {{.State.Pid}} {{.State.StartedAt}} {{with .State.Health}}{{.Status}}{{else}}none{{end}}"
_START_SECONDS = 600.0  # 30 s on an idle machine with two cores
_BACK_SECONDS = 600.0  # a broker 23 s on an idle machine, 170 s beside a load of 70


class State(NamedTuple):
    """A running container: the process on this machine, its start, and its health."""

    pid: int
    started_at: datetime
    health: str


@dataclass
class Row:
    """The figures of one container."""

    memory: str = ""
    healthy_seconds: float = 0.0
    back_seconds: float = 0.0


@dataclass
class Site:
    """The containers of a Compose file in an engine, with secrets of their own.

    Attributes:
        files: The Compose file, and what is set beside it.
        project: That of the file.
        services: Those to start, or none for all.
        containers: Those that last, by service; the second one of a service has `-2`.
        work: The image of the executor, with its handler.
        rows: What was measured, by container.
    """

    engine: Engine
    compose: Path
    folder: Path
    files: Sequence[Path]
    project: str
    services: Sequence[str]
    containers: Sequence[str]
    work: str = WORK
    rows: dict[str, Row] = field(init=False)

    def __post_init__(self) -> None:
        self.rows = {name: Row() for name in self.containers}
        passwords = {name: secrets.token_hex(24) for name in _PASSWORDS}
        self.password = passwords["postgres_password"]
        (self.folder / "secrets").mkdir(mode=0o700, parents=True)
        token = f'api_token = "{secrets.token_hex(24)}"\n'
        for name, text in {**passwords, "api.toml": token}.items():
            (self.folder / "secrets" / name).write_text(text)
            (self.folder / "secrets" / name).chmod(0o644)  # the users of the containers read it
        of_before = {
            "POSTGRES_PASSWORD_FILE": str(self.folder / "secrets" / "postgres_password"),
            "TIDEWHEEL_API_TOKEN": secrets.token_hex(24),
        }
        images = {"POSTGRES_IMAGE": POSTGRES, "KAFKA_IMAGE": KAFKA, "PROMETHEUS_IMAGE": PROMETHEUS}
        own = {"SECRETS": str(self.folder / "secrets")}
        self._environment = {**self.engine.variables, **images, **own, **of_before}

    def start(self, *only: str) -> None:
        """Start or replace all containers, or those of these services, and wait until each one is healthy."""
        services = ("--no-deps", *only) if only else self.services
        log, began = self.folder / "up.log", SystemClock().now()
        healthy: dict[str, float] = {}
        with log.open("wb") as output:
            starting = subprocess.Popen(
                [*self._command(), "up", "--detach", "--no-build", *services],
                env={**os.environ, **self._variables()},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

        def all_healthy() -> bool:
            if starting.poll():
                message = f"`docker compose up` ended with {starting.returncode}: {log_tail(log.read_text())}"
                raise StackError(message)
            now, states = SystemClock().now(), self._look()
            for name, state in states.items():
                if state.health == "healthy" and state.started_at > began and name not in healthy:
                    healthy[name] = self.rows[name].healthy_seconds = (now - state.started_at).total_seconds()
            all_there = starting.poll() is not None and len(states) == len(self.containers)
            return all_there and all(state.health == "healthy" for state in states.values())

        try:
            wait_for(all_healthy, "all containers are healthy", _START_SECONDS)
        except BaseException:
            starting.terminate()
            raise
        finally:
            starting.wait()

    def stop(self) -> None:
        """Remove containers, networks and volumes, all of which are judged by now."""
        with step("remove containers, networks and volumes"):
            self.run("down", "--volumes", "--remove-orphans", "--timeout=0")

    def run(self, *arguments: str) -> str:
        """Run a command of Docker Compose; return what it prints."""
        return run([*self._command(), *arguments], variables=self._variables())

    def logs(self) -> str:
        """Return the logs of all containers."""
        return self.run("logs", "--no-color", "--timestamps")

    def tidewheel(self, service: str, *arguments: str) -> str:
        """Run a command of `tidewheel` in a container; return what it prints."""
        return self.run("exec", "-T", service, "tidewheel", *arguments)

    def audit(self, since: datetime) -> str:
        """Run `tidewheel admin audit` in a container; return what it prints."""
        command = ("run", "--rm", "-T", "migrate", "admin", "audit", "--from", since.isoformat(), "--completions")
        return self.run(*command)

    def measure_memory(self) -> None:
        """Read what each container uses now."""
        for line in self.engine.docker("stats", "--no-stream", "--format", "{{.Name}} {{.MemUsage}}").splitlines():
            name, memory, *_ = line.split()
            self.rows[self._service(name)].memory = memory

    def kill(self, *names: str) -> None:
        """Kill containers' processes as a crash does, and wait until the restart policy has brought them back.

        `docker kill` counts as a stop by hand, after which no policy starts a container.
        """
        before, began = self._look(), monotonic_seconds()
        for name in names:
            os.kill(before[name].pid, signal.SIGKILL)
        dead = set(names)

        def are_back() -> bool:
            states = self._look()
            for name in {*dead}:
                state = states.get(name)
                if state is not None and state.started_at > before[name].started_at and state.health == "healthy":
                    self.rows[name].back_seconds = monotonic_seconds() - began
                    dead.discard(name)
            return not dead

        wait_for(are_back, f"{' and '.join(names)} are healthy again, by their restart policy", _BACK_SECONDS)

    def _command(self) -> list[str | Path]:
        return [self.compose, *(part for file in self.files for part in ("-f", file))]

    def _variables(self) -> dict[str, str]:
        return {**self._environment, "WORK_IMAGE": self.work}

    def _look(self) -> Mapping[str, State]:
        """Return the state of each running container that lasts."""
        names = self.engine.docker("ps", "--format", "{{.Names}}").split()
        running = [name for name in names if self._service(name) in self.containers]
        if not running:
            return {}
        try:
            lines = self.engine.docker("inspect", "--format", _STATE, *running).splitlines()
        except StackError:  # one was replaced since
            return {}
        fields = [line.lstrip("/").split() for line in lines]
        return {
            self._service(name): State(int(pid), datetime.fromisoformat(at), health) for name, pid, at, health in fields
        }

    def _service(self, container: str) -> str:
        return container.removeprefix(f"{self.project}-").removesuffix("-1")
