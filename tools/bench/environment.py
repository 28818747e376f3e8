"""Create a fresh environment for each round on the bench's own server or a given one.

Invariant: what a round makes is its own (a database, topics under a prefix, processes) and goes with it, so that no
round meets what another has left; a given server is left as it was found.
"""

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import LiteralString, cast
from uuid import uuid4

import psutil
import psycopg
from confluent_kafka.admin import AdminClient
from psycopg import sql
from psycopg.conninfo import make_conninfo

from tidewheel.clock import monotonic_seconds
from tidewheel.errors import Unavailable
from tidewheel.kafka.topics import Futures, PartitionCounts, Topics, apply_topics
from tidewheel.local.stack import LocalStack, StackInfo
from tidewheel.migrations.runner import migrate
from tidewheel.postgres.session import Conn, connect
from tidewheel.settings.connections import Connections
from tidewheel.settings.sources import client_variables
from tidewheel.transitions.installation import Installation, read_installation, record_topic_prefix
from tools.bench.measurement import Incomplete
from tools.bench.starts import VARIABLE as STARTS_VARIABLE
from tools.bench.starts import Starts
from tools.bench.usage import Meter

BUFFERS_MEGABYTES = 1024  # as the peers were measured, so that figures stand side by side
WAL_MEGABYTES = 8192
EXECUTOR = ("executor", "--handlers", "tools.bench.handlers")

_STOP_SECONDS = 40.0  # an executor drains for up to 30
_PATIENT = "-c statement_timeout=0 -c idle_in_transaction_session_timeout=0"  # loading builds rows between statements
_TOPICS_SECONDS = 30.0
_LOOK_SECONDS = 0.1


@dataclass(slots=True)
class Server:
    """A running PostgreSQL and Kafka."""

    info: StackInfo
    home: Path
    stack: LocalStack
    own_database: bool = True

    @contextmanager
    def environment(self) -> Generator["Environment"]:
        """Create a fresh migrated database with its own topics, and remove it at the end."""
        prefix = f"bench-{uuid4().hex[:8]}"
        name = f"tidewheel_{prefix[6:]}"
        self._execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        try:
            with self._migrated(make_conninfo(self.info.database_url, dbname=name), prefix) as made:
                yield made
        finally:
            self._execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))
            self._drop_topics(prefix)

    @contextmanager
    def _migrated(self, url: str, prefix: str) -> Generator["Environment"]:
        migrate(url)
        settings = Connections.load(database_url=url, topic_prefix=prefix, replication=self.info.replication)
        kafka = dict(self.info.kafka)
        counts = PartitionCounts(settings.runs_partitions, settings.events_partitions)
        apply_topics(kafka, Topics(prefix), replication=settings.replication, counts=counts)
        _wait_for_leaders(kafka, Topics(prefix), counts)
        home = self.home / prefix
        home.mkdir()
        variables = {
            **{name: value for name, value in os.environ.items() if not name.startswith("PG")},
            "TIDEWHEEL_DATABASE_URL": url,
            **client_variables(kafka),
            "TIDEWHEEL_TOPIC_PREFIX": prefix,
            STARTS_VARIABLE: str(home),
        }
        with connect(url, "tidewheel-bench", options=_PATIENT) as connection:
            record_topic_prefix(connection, settings)
            installation = read_installation(connection, settings)
            connection.commit()
            yield Environment(url, connection, installation, variables, home, kafka, self)

    def connect_admin(self) -> Conn:
        """Connect to the server."""
        return psycopg.connect(self.info.database_url, autocommit=True)

    def postgres(self) -> psutil.Process | None:
        """The postmaster, whose tree is all of PostgreSQL; None where it is not of this machine."""
        with self.connect_admin() as admin:
            row = admin.execute("SELECT pg_backend_pid()").fetchone()
            assert row is not None
            try:
                backend = psutil.Process(int(str(row[0])))
                return backend.parent() if "postgres" in backend.name() else None
            except psutil.Error:
                return None

    def brokers(self) -> list[psutil.Process]:
        """The processes that listen where the brokers are; none where they are not of this machine."""
        ports = {int(each.rpartition(":")[2]) for each in self.info.bootstrap.split(",")}
        with suppress(psutil.AccessDenied):
            sockets = psutil.net_connections("tcp")
            listening = [each for each in sockets if each.status == psutil.CONN_LISTEN]
            found = {each.pid for each in listening if getattr(each.laddr, "port", None) in ports}
            return [psutil.Process(pid) for pid in found if pid]
        return []

    def broker_logs(self) -> list[Path]:
        """The folders of the brokers' data; none of a broker that was given."""
        return list(self.stack.home.glob("kafka/node-*/data"))

    def _execute(self, statement: sql.Composed) -> None:
        with self.connect_admin() as admin:
            admin.execute(statement)

    def _drop_topics(self, prefix: str) -> None:
        admin = AdminClient({**self.info.kafka, "client.id": "tidewheel-bench", "log_level": 2})
        names = [name for name in admin.list_topics(timeout=_TOPICS_SECONDS).topics if name.startswith(f"{prefix}.")]
        if names:
            gone = cast("Futures", admin.delete_topics(names, operation_timeout=_TOPICS_SECONDS))  # pyright: ignore[reportUnknownMemberType]
            for future in gone.values():
                future.exception(_TOPICS_SECONDS)


@dataclass(slots=True)
class Environment:
    """One round's environment: an empty, migrated database and its topics.

    The statements of `connection` may take their time.
    """

    url: str
    connection: Conn
    installation: Installation
    variables: dict[str, str]
    home: Path
    kafka: dict[str, str]
    server: Server

    @property
    def topics(self) -> Topics:
        """The topics."""
        return self.installation.topics

    def connect(self, *, autocommit: bool = False) -> Conn:
        """Return one more connection."""
        return connect(self.url, "tidewheel-bench", autocommit=autocommit, options=_PATIENT)

    def count(self, statement: LiteralString | sql.Composed, *values: object) -> int:
        """Return the number that a query finds, in a transaction of its own."""
        row = self.connection.execute(statement, values).fetchone()
        self.connection.rollback()
        assert row is not None
        return int(str(row[0]))

    def expect(self, statement: LiteralString, *values: int) -> None:
        """Verify the only row of a query."""
        row = self.connection.execute(statement).fetchone()
        self.connection.rollback()
        if row != values:
            message = f"{values} were expected, and {row} found by {statement}"
            raise Incomplete(message)

    def now(self) -> datetime:
        """Return the database's clock."""
        row = self.connection.execute("SELECT tidewheel_now()").fetchone()
        self.connection.rollback()
        assert row is not None
        return cast("datetime", row[0])

    @contextmanager
    def services(
        self, *commands: Sequence[str], variables: Mapping[str, str] | None = None
    ) -> Generator[dict[str, list[psutil.Process]]]:
        """Run services, by their names; they are stopped at the end."""
        running = [(command[0], self._start(command, variables or {})) for command in commands]
        processes: dict[str, list[psutil.Process]] = {}
        for name, started in running:
            processes.setdefault(name, []).append(psutil.Process(started.pid))
        try:
            yield processes
            for name, process in running:
                if process.poll() not in (None, 0):
                    end = " / ".join(self._log(name).read_text(errors="replace").splitlines()[-5:])
                    message = f"{name} ended with {process.returncode}: {end}"
                    raise RuntimeError(message)
        finally:
            for _, process in running:
                process.terminate()
            for _, process in running:
                try:
                    process.wait(_STOP_SECONDS)
                except subprocess.TimeoutExpired:
                    process.kill()

    @contextmanager
    def meter(self, processes: Mapping[str, list[psutil.Process]]) -> Generator[Meter]:
        """Measure the use of these processes, PostgreSQL and the brokers, where visible."""
        postgres, brokers = self.server.postgres(), self.server.brokers()
        seen = {
            **processes,
            **({"postgres": [postgres]} if postgres else {}),
            **({"broker": brokers} if brokers else {}),
        }
        with self.connect(autocommit=True) as connection:
            yield Meter(connection, seen, self.server.broker_logs(), self.topics.prefix)

    def starts(self) -> Starts:
        """The starts that the handlers of all executors have recorded."""
        return Starts(self.home)

    def _log(self, name: str) -> Path:
        return self.home / f"{name}.log"

    def _start(self, command: Sequence[str], variables: Mapping[str, str]) -> "subprocess.Popen[bytes]":
        name, *arguments = command  # which may have a level of their own
        program = [sys.executable, "-m", "tools.bench.service", name, "--log-level", "warning", *arguments]
        with self._log(name).open("ab") as log:
            return subprocess.Popen(program, env={**self.variables, **variables}, stdout=log, stderr=log)


@contextmanager
def open_server() -> Generator[Server]:
    """Open a stack in a temporary folder, or the servers that `TIDEWHEEL_…` names."""
    settings = Connections.load()
    given = settings.database_url.get_secret_value() if settings.database_url else None
    with tempfile.TemporaryDirectory(prefix="tidewheel-bench-") as folder:
        stack = LocalStack(
            Path(folder) / "stack",
            brokers=1,
            database_url=given,
            bootstrap=settings.named_brokers(),
            client=settings.kafka_client(),
            shared_buffers_megabytes=BUFFERS_MEGABYTES,
            max_wal_size_megabytes=WAL_MEGABYTES,
        )
        # As Ctrl-C: what was started is stopped, and removed.
        before = signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            yield Server(stack.up(), Path(folder), stack, own_database=given is None)
        finally:
            stack.down(erase=True)
            signal.signal(signal.SIGTERM, before)


def _wait_for_leaders(kafka: Mapping[str, str], topics: Topics, counts: PartitionCounts) -> None:
    """Wait until new topics have leaders: a busy broker refuses messages before that."""
    admin = AdminClient({**kafka, "client.id": "tidewheel-bench", "log_level": 2})
    wanted = {topic.name: topic.partitions for topic in topics.plan(counts=counts)}
    give_up = monotonic_seconds() + _TOPICS_SECONDS
    while monotonic_seconds() < give_up:
        known = admin.list_topics(timeout=_TOPICS_SECONDS).topics
        led = {name: sum(each.leader >= 0 for each in topic.partitions.values()) for name, topic in known.items()}
        if all(led.get(name) == count for name, count in wanted.items()):
            return
        threading.Event().wait(_LOOK_SECONDS)
    message = f"the topics of {topics.prefix} have no leaders after {_TOPICS_SECONDS:.0f} s"
    raise Unavailable(message)
