"""The trials: start a Compose file, kill its containers under load, fail over, and judge what is left."""

import os
import secrets
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
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

PORTS = (5432, 5433, 8080, 8081, 29092, 29093, 29094)

_API, _BROKERS = "http://127.0.0.1:8080", "127.0.0.1:29092,127.0.0.1:29093,127.0.0.1:29094"
_SERVICES = ("intake", "scheduler", "relay", "executor", "api")
_SERVERS = ("postgres", "postgres-2", "kafka", "kafka-2", "kafka-3")
_PASSWORDS = ("postgres_password", *_SERVICES, "application", "grafana")
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
    """The containers of a Compose file in an engine, with secrets of their own.

    Attributes:
        project: That of the file.
        services: Those to start, or none for all.
        containers: Those that last, by service; the second one of a service has `-2`.
        rows: What was measured, by container.
    """

    engine: Engine
    compose: Path
    folder: Path
    file: str
    project: str
    services: Sequence[str]
    containers: Sequence[str]
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
        own = self.folder / "handler.yaml"
        own.write_text(f"services: {{executor: {{image: {WORK}}}}}\n")
        images = {"POSTGRES_IMAGE": POSTGRES, "KAFKA_IMAGE": KAFKA, "SECRETS": str(self.folder / "secrets")}
        self._variables = {**self.engine.variables, **images}
        self._command = (self.compose, "-f", ROOT / "compose" / self.file, "-f", own)

    def start(self) -> None:
        """Start all containers, and wait until each is healthy."""
        log = self.folder / "up.log"
        with log.open("wb") as output:
            starting = subprocess.Popen(
                [*self._command, "up", "--detach", "--no-build", *self.services],
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
            self.run("down", "--volumes", "--timeout=10")

    def run(self, *arguments: str) -> str:
        """Run a command of Docker Compose; return what it prints."""
        return run([*self._command, *arguments], variables=self._variables)

    def logs(self) -> str:
        """Return the logs of all containers."""
        return self.run("logs", "--no-color", "--timestamps")

    def tidewheel(self, service: str, *arguments: str) -> str:
        """Run a command of `tidewheel` in a container; return what it prints."""
        return self.run("exec", "-T", service, "tidewheel", *arguments)

    def measure_memory(self) -> None:
        """Read what each container uses now."""
        for line in self.engine.docker("stats", "--no-stream", "--format", "{{.Name}} {{.MemUsage}}").splitlines():
            name, memory, *_ = line.split()
            self.rows[self._service(name)].memory = memory

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
        names = self.engine.docker("ps", "--format", "{{.Names}}").split()
        running = [name for name in names if self._service(name) in self.containers]
        if not running:
            return {}
        lines = self.engine.docker("inspect", "--format", _STATE, *running).splitlines()
        fields = [line.lstrip("/").split() for line in lines]
        return {
            self._service(name): State(int(pid), datetime.fromisoformat(at), health) for name, pid, at, health in fields
        }

    def _service(self, container: str) -> str:
        return container.removeprefix(f"{self.project}-").removesuffix("-1")


def compose_site(engine: Engine, compose: Path, folder: Path) -> Site:
    """Return the site of compose.yaml."""
    return Site(engine, compose, folder, "compose.yaml", "tidewheel", (), ("postgres", "kafka", *_SERVICES))


def deployed_site(engine: Engine, compose: Path, folder: Path) -> Site:
    """Return the site of deployed.yaml, without Prometheus and Grafana."""
    containers = (*_SERVERS, *(f"{name}{number}" for name in _SERVICES for number in ("", "-2")))
    return Site(engine, compose, folder, "deployed.yaml", "tidewheel-deployed", (*_SERVERS, *_SERVICES), containers)


def run_compose(site: Site) -> list[str]:
    """Kill each container of compose.yaml; return the faults."""
    database = f"postgresql://tidewheel:{site.password}@127.0.0.1/tidewheel"
    changes = {f"kill {name}": partial(site.kill, name) for name in site.containers}
    return _run(site, Addresses(_API, "127.0.0.1:29092", database), changes)


def run_deployed(site: Site) -> list[str]:
    """Kill brokers of deployed.yaml, and fail over as compose/README.md describes; return the faults."""
    servers = "127.0.0.1:5432,127.0.0.1:5433"
    database = f"postgresql://tidewheel:{site.password}@{servers}/tidewheel?target_session_attrs=read-write"
    changes = {
        "kill kafka-2": partial(site.kill, "kafka-2"),
        "stop the primary, promote the standby": partial(_fail_over, site),
        "give the new primary a standby": partial(_give_standby, site),
        "kill kafka": partial(site.kill, "kafka"),
    }
    return _run(site, Addresses(_API, _BROKERS, database), changes)


def _run(site: Site, at: Addresses, changes: Mapping[str, Callable[[], object]]) -> list[str]:
    began = SystemClock().now()
    with step(f"start {site.file} until all containers are healthy"):
        site.start()
    key = site.tidewheel("api", "admin", "api-key", "create", "trial", "--scope", "admin").strip()
    return run_under_load(
        at,
        key,
        {"measure the memory": site.measure_memory, **changes},
        lambda: site.run(
            "run", "--rm", "-T", "migrate", "admin", "audit", "--from", began.isoformat(), "--completions"
        ),
    )


def _fail_over(site: Site) -> None:
    site.run("stop", "postgres")
    _query_second(site, "SELECT pg_promote()")


def _give_standby(site: Site) -> None:
    site.run("rm", "--force", "postgres")
    site.engine.docker("volume", "rm", f"{site.project}_postgres")
    site.run("up", "--detach", "postgres")
    _query_second(site, "ALTER SYSTEM SET synchronous_standby_names = '*'", "SELECT pg_reload_conf()")


def _query_second(site: Site, *statements: str) -> None:
    site.run("exec", "-T", "postgres-2", "psql", "-U", "tidewheel", *(f"--command={each}" for each in statements))
