"""The trial: start the Compose file, kill each container under load, and judge what is left."""

import os
import secrets
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import NamedTuple

from tidewheel.clock import SystemClock, monotonic_seconds
from tidewheel.errors import StackError
from tidewheel.local.daemon import log_tail
from tools.containers.engine import Engine, run
from tools.containers.images import KAFKA, POSTGRES, ROOT, WORK
from tools.containers.judge import Addresses, run_under_load
from tools.containers.progress import step, wait_for

API_PORT, BROKER_PORT, POSTGRES_PORT = 8080, 29092, 5432

_NAMES = ("postgres", "kafka", "intake", "scheduler", "relay", "executor", "api")
_PREFIX, _SUFFIX = "tidewheel-", "-1"  # of a container's name: the project, and the number in its service
_STATE = "{{.Name}} {{.State.Pid}} {{.State.StartedAt}} {{.State.Health.Status}}"
_START_SECONDS = 600.0  # 30 s on an idle machine with two cores
_BACK_SECONDS = 180.0


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
    """The containers of compose.yaml in an engine, with secrets of their own.

    Attributes:
        rows: What was measured, by container.
    """

    engine: Engine
    compose: Path
    folder: Path
    rows: dict[str, Row] = field(default_factory=lambda: {name: Row() for name in _NAMES})

    def __post_init__(self) -> None:
        password = secrets.token_hex(24)
        self.addresses = Addresses(
            f"http://127.0.0.1:{API_PORT}",
            f"127.0.0.1:{BROKER_PORT}",
            f"postgresql://tidewheel:{password}@127.0.0.1:{POSTGRES_PORT}/tidewheel",
        )
        (self.folder / "secrets").mkdir(mode=0o700)
        token = f'api_token = "{secrets.token_hex(24)}"\n'
        for name, text in (("postgres_password", password), ("api.toml", token)):
            (self.folder / "secrets" / name).write_text(text)
            (self.folder / "secrets" / name).chmod(0o644)  # the users of the containers read it
        own = self.folder / "handler.yaml"
        own.write_text(f"services: {{executor: {{image: {WORK}}}}}\n")
        images = {"POSTGRES_IMAGE": POSTGRES, "KAFKA_IMAGE": KAFKA, "SECRETS": str(self.folder / "secrets")}
        self._variables = {**self.engine.variables, **images}
        self._command = (self.compose, "-f", ROOT / "compose" / "compose.yaml", "-f", own)

    def start(self) -> None:
        """Start all containers, and wait until each is healthy."""
        log = self.folder / "up.log"
        with log.open("wb") as output:
            starting = subprocess.Popen(
                [*self._command, "up", "--detach", "--no-build"],
                env={**os.environ, **self._variables},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )

        def all_healthy() -> bool:
            if starting.poll():
                message = f"`docker compose up` ended with {starting.returncode}: {log_tail(log.read_text())}"
                raise StackError(message)
            now = SystemClock().now()
            for name, state in self._look().items():
                if state.health == "healthy" and not self.rows[name].healthy_seconds:
                    self.rows[name].healthy_seconds = (now - state.started_at).total_seconds()
            return all(row.healthy_seconds for row in self.rows.values())

        try:
            wait_for(all_healthy, "all containers are healthy", _START_SECONDS)
        except BaseException:
            starting.terminate()
            raise
        finally:
            starting.wait()

    def stop(self) -> None:
        """Remove containers, networks and volumes."""
        with step("remove containers, networks and volumes"):
            run([*self._command, "down", "--volumes", "--timeout=10"], variables=self._variables)

    def logs(self) -> str:
        """Return the logs of all containers."""
        return run([*self._command, "logs", "--no-color", "--timestamps"], variables=self._variables)

    def tidewheel(self, service: str, *arguments: str) -> str:
        """Run a command of `tidewheel` in a container; return what it prints."""
        return self.engine.docker("exec", f"{_PREFIX}{service}{_SUFFIX}", "tidewheel", *arguments)

    def measure_memory(self) -> None:
        """Read what each container uses now."""
        for line in self.engine.docker("stats", "--no-stream", "--format", "{{.Name}} {{.MemUsage}}").splitlines():
            name, memory, *_ = line.split()
            self.rows[_service(name)].memory = memory

    def kill(self, name: str) -> None:
        """Kill a container's process as a crash does, and wait until the restart policy has brought it back.

        `docker kill` counts as a stop by hand, after which no policy starts a container.
        """
        before, began = self._look()[name], monotonic_seconds()
        os.kill(before.pid, signal.SIGKILL)

        def is_back() -> bool:
            state = self._look().get(name)
            return state is not None and state.started_at > before.started_at and state.health == "healthy"

        wait_for(is_back, f"{name} is healthy again after its kill, by its restart policy", _BACK_SECONDS)
        self.rows[name].back_seconds = monotonic_seconds() - began

    def _look(self) -> Mapping[str, State]:
        """Return the state of each running container that lasts."""
        running = [
            name for name in self.engine.docker("ps", "--format", "{{.Names}}").split() if _service(name) in _NAMES
        ]
        if not running:
            return {}
        lines = self.engine.docker("inspect", "--format", _STATE, *running).splitlines()
        fields = [line.lstrip("/").split() for line in lines]
        return {_service(name): State(int(pid), datetime.fromisoformat(at), health) for name, pid, at, health in fields}


def run_trial(site: Site) -> list[str]:
    """Run jobs, kill each container, and wait until nothing is open; return the faults."""
    began = SystemClock().now()
    with step("start compose.yaml until all containers are healthy"):
        site.start()
    key = site.tidewheel("api", "admin", "api-key", "create", "trial", "--scope", "admin").strip()
    return run_under_load(
        site.addresses,
        key,
        {"measure the memory": site.measure_memory} | {f"kill {name}": partial(site.kill, name) for name in _NAMES},
        lambda: site.tidewheel("scheduler", "admin", "audit", "--from", began.isoformat(), "--completions"),
    )


def _service(container: str) -> str:
    return container.removeprefix(_PREFIX).removesuffix(_SUFFIX)
