"""The parts of one stack: which there are, and how each is."""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from psycopg.conninfo import conninfo_to_dict

from tidewheel.local.daemon import Daemon
from tidewheel.local.kafka import Cluster
from tidewheel.local.postgres import Postgres, server_url
from tidewheel.local.state import StackState

STANDBY = "standby"
"""The name of a standby among the parts."""
_SERVERS = ("postgres", "postgres-2")  # folders


class PartState(StrEnum):
    """The status of one part of a stack: a dead one has ended without a command that stopped it."""

    RUNNING = "running"
    STOPPED = "stopped"
    DEAD = "dead"
    GIVEN = "given"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartStatus:
    """One part; it has a `pid` if it is ours and runs."""

    name: str
    state: PartState
    address: str
    pid: int | None = None


class Parts:
    """The embedded parts of the stack in `home`, used or replaced by given servers.

    Args:
        lasting: False if the stack is erased with the caller's session.
    """

    def __init__(
        self,
        home: Path,
        state: StackState,
        *,
        shared_buffers_megabytes: int = 128,
        max_wal_size_megabytes: int = 2048,
        lasting: bool = True,
    ) -> None:
        self.state = state
        self._logs = home / "logs"

        def server(name: str, port: int, primary: Postgres | None = None) -> Postgres:
            return Postgres(
                home / name,
                log=self._logs / f"{name}.log",
                port=port,
                password=state.password,
                shared_buffers_megabytes=shared_buffers_megabytes,
                max_wal_size_megabytes=max_wal_size_megabytes,
                lasting=lasting,
                primary=primary,
            )

        first, second = reversed(_SERVERS) if state.is_promoted else _SERVERS
        self.postgres = server(first, state.postgres_port)
        self.standby = server(second, state.standby_port, self.postgres) if state.standby_port is not None else None
        self.cluster = Cluster(
            home / "kafka",
            state.nodes,
            logs=self._logs,
            cluster_id=state.cluster_id,
            passwords=state.kafka_passwords,
            lasting=lasting,
        )

    @property
    def servers(self) -> Sequence[Postgres]:
        """The primary, and its standby if it has one."""
        return (self.postgres,) if self.standby is None else (self.postgres, self.standby)

    @property
    def database_url(self) -> str:
        """The libpq URL of the embedded database, password included: the same before and after a fail-over."""
        return server_url(self.state.password, sorted(server.port for server in self.servers))

    def are_noted_alive(self) -> bool:
        """Return True if all parts run, by recorded pids: cheap, as every service checks it at start.

        Of the primary and the standby one is enough: it is what an operator may promote.
        """
        postgres = self.state.database_url is not None or any(each.daemon.is_noted_alive() for each in self.servers)
        return postgres and (
            self.state.bootstrap is not None or all(each.daemon.is_noted_alive() for each in self.cluster.brokers)
        )

    def status(self) -> tuple[PartStatus, ...]:
        """One line for each part."""
        return (*self._postgres_status(), *self._kafka_status())

    def erase(self) -> None:
        """Remove all data and logs of the stopped parts."""
        for server in self.servers:
            server.erase()
        self.cluster.erase()
        shutil.rmtree(self._logs, ignore_errors=True)

    def _postgres_status(self) -> Sequence[PartStatus]:
        given = self.state.database_url
        if given is not None:
            return [PartStatus(name="PostgreSQL", state=PartState.GIVEN, address=database_addresses(given))]
        named = zip(("PostgreSQL", STANDBY), self.servers, strict=False)
        return [_status(name, f"127.0.0.1:{server.port}", server.daemon) for name, server in named]

    def _kafka_status(self) -> Sequence[PartStatus]:
        given = self.state.bootstrap
        if given is not None:
            return [PartStatus(name="Kafka", state=PartState.GIVEN, address=given)]
        brokers = self.cluster.brokers
        return [_status(f"Kafka node {broker.node.node_id}", broker.node.address, broker.daemon) for broker in brokers]


def _status(name: str, address: str, daemon: Daemon) -> PartStatus:
    process = daemon.process()
    if process is None:
        return PartStatus(name=name, state=PartState.DEAD if daemon.is_noted else PartState.STOPPED, address=address)
    return PartStatus(name=name, state=PartState.RUNNING, address=address, pid=process.pid)


def database_addresses(url: str) -> str:
    """Host and port of each server of a libpq string, for showing: never the password.

    >>> database_addresses("postgresql://ann:pw@db1:5432,db2:5433/app")
    'db1:5432,db2:5433'
    """
    parts = conninfo_to_dict(url)
    hosts = str(parts.get("host") or parts.get("hostaddr") or "local socket").split(",")
    ports = str(parts.get("port") or "5432").split(",")
    ports = ports * len(hosts) if len(ports) == 1 else ports
    return ",".join(f"{host}:{port}" for host, port in zip(hosts, ports, strict=False))
