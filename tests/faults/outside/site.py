"""An installation as users have it: `tidewheel up`, and services by the `tidewheel` command.

A service that ends by itself is started again half a second later, as a supervisor would; each such end is recorded.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg
from confluent_kafka import Consumer, ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.faults.outside.network import Namespace, mount, unmount
from tests.faults.outside.process import Process, free_port, has_started, insist, listens, send_signal, until
from tests.faults.outside.proxy import Proxy
from tidewheel.errors import StackError
from tidewheel.local.stack import LocalStack

PREFIX = "tidewheel"
EFFECTS_VARIABLE = "FAULTS_EFFECTS"  # names the log to the handlers
SERVICES = ("intake-1", "scheduler-1", "scheduler-2", "relay-1", "relay-2", "executor-1", "executor-2")
SECRET = "whsec_b3V0c2lkZSBvcmFjbGUgb2YgdGlkZXdoZWVsLi4u"
LEASE_SECONDS = 5
TOPICS = ("requests", "replies", "completions", "events", "dead-letters")
LANES = ("runs.critical", "runs.standard", "runs.batch")

# What takes longer in production, and is not what is tested here.
SETTINGS = {
    "HANDLERS": "tests.faults.outside.handlers",
    "HTTP_ALLOW_PRIVATE": "true",
    "WEBHOOK_SECRETS": f"127.0.0.1={SECRET}",
    "HEARTBEAT": "1s",
    "LEASE": f"{LEASE_SECONDS}s",
    "LOOKAHEAD": "2s",
    "OVERDUE_AFTER": "1s",
    "MEMBER_TIMEOUT": "3s",
    "DRAIN_TIMEOUT": "5s",
    "DELIVERY_TIMEOUT": "10s",
    "MISFIRE_AFTER": "1h",
    "SLOTS": "40",
    "RUNS_PARTITIONS": "4",
    "EVENTS_PARTITIONS": "3",
}
_ROOT = Path(__file__).parents[3]
_START_SECONDS = 90.0
_STOP_SECONDS = 60.0
_RESTART_SECONDS = 0.5
_LOOK_SECONDS = 0.05
_NEVER = threading.Event()
# The process dies with its starter, also by SIGKILL (prctl(2), PR_SET_PDEATHSIG), and becomes the program then.
_BOUND = "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); os.execvp(sys.argv[1], sys.argv[1:])"


@dataclass
class Disks:
    """File systems of their own, in memory: their sizes in megabytes; 0 is none."""

    data: int = 0
    wal: int = 0
    broker: int = 0


@dataclass
class Site:
    """One installation in a folder."""

    folder: Path
    seed: int  # of the receiver's answers
    settings: Mapping[str, str] = field(default_factory=dict[str, str])  # on top of `SETTINGS`
    namespaces: bool = False  # True to give each service one of its own
    disks: Disks = field(default_factory=Disks)  # file systems that faults fill
    proxied: bool = False  # True to lead the services to PostgreSQL through a proxy
    mutant: str = ""  # a fault of the product to plant in the services
    brokers: int = 1  # 1 or 3
    processes: dict[str, Process] = field(default_factory=dict[str, Process])
    exits: list[str] = field(default_factory=list[str])
    spaces: dict[str, Namespace] = field(default_factory=dict[str, Namespace])
    proxy: Proxy | None = None

    def up(self) -> None:
        """Make the installation and the receiver; no service runs yet."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.home = self.folder / "stack"
        self.stack = LocalStack(self.home, max_wal_size_megabytes=64 if self.disks.wal else 2048)
        self._mount()
        self._tidewheel("up", "--home", str(self.home), "--brokers", str(self.brokers))
        self.info = self.stack.up()
        self.kafka = dict(self.info.kafka)
        if self.disks.wal:
            self._move_wal()
        self.url = self.info.database_url
        if self.proxied:
            self.proxy = Proxy(self.database_port, self.seed)
            self.url = self.url.replace(f":{self.database_port}/", f":{self.proxy.port}/")
        if self.namespaces:
            self._make_namespaces()
        self.receiver_port = free_port()
        self.start_receiver()
        self._ended = threading.Event()
        self._lock = threading.RLock()
        self._supervisor = threading.Thread(target=self._supervise, name="supervisor", daemon=True)
        self._supervisor.start()

    def down(self) -> None:
        """Remove everything."""
        if hasattr(self, "_ended"):
            self._ended.set()
            self._supervisor.join()
        for process in self.processes.values():
            self._finish(process)
        if hasattr(self, "receiver"):
            send_signal(self.receiver.pid, signal.SIGKILL)
            self.receiver.wait()
        if self.proxy is not None:
            self.proxy.close()
        with suppress(StackError):
            for number in range(1, self.brokers + 1):
                self.stack.broker(number).resume()
                self.stack.broker(number).kill()
            self.stack.postgres.stop("immediate")
        self._unmount()
        self.stack.down(erase=True)
        for space in self.spaces.values():
            space.remove()

    @property
    def effects(self) -> Path:
        """The log of the targets."""
        return self.folder / "effects.jsonl"

    @property
    def database_port(self) -> int:
        """The port of PostgreSQL itself."""
        return int(self.info.database_url.rpartition(":")[2].partition("/")[0])

    @property
    def broker_port(self) -> int:
        """The port of the broker."""
        return int(self.info.bootstrap.rpartition(":")[2])

    def start_receiver(self) -> None:
        """Start the HTTP receiver."""
        arguments = [str(self.receiver_port), str(self.effects), str(self.seed), SECRET]
        command = [sys.executable, "-m", "tests.faults.outside.receiver", *arguments]
        self.receiver = subprocess.Popen([sys.executable, "-c", _BOUND, *command], cwd=_ROOT)
        until(lambda: listens(self.receiver_port), "the receiver listens")

    def start(self, *names: str, wait: bool = False, clock: str = "") -> None:
        """Start services; with `wait`, until each serves; with `clock`, by a wrong one."""
        with self._lock:
            started = [self._start(name, clock) for name in names]
        if wait:
            until(lambda: all(has_started(process) for process in started), f"{names} have started")

    def named(self, role: str) -> list[str]:
        """Return the names of a role's services."""
        return [name for name in SERVICES if name.startswith(role)]

    def kill(self, *names: str) -> None:
        """Send SIGKILL to services."""
        for name in names:
            self.processes[name].expected = True
            send_signal(self.processes[name].child.pid, signal.SIGKILL)
        for name in names:
            self.processes[name].child.wait()

    def pause(self, *names: str) -> None:
        """Send SIGSTOP to services."""
        for name in names:
            send_signal(self.processes[name].child.pid, signal.SIGSTOP)

    def resume(self, *names: str) -> None:
        """Send SIGCONT to services."""
        for name in names:
            send_signal(self.processes[name].child.pid, signal.SIGCONT)

    def stop(self, *names: str) -> dict[str, list[float]]:
        """Send SIGTERM to services; return the seconds that each took, and its exit code."""
        begun = time.monotonic()
        for name in names:
            self.processes[name].expected = True
            send_signal(self.processes[name].child.pid, signal.SIGTERM)
        took: dict[str, list[float]] = {}
        while len(took) < len(names) and time.monotonic() < begun + _STOP_SECONDS:
            for name in names:
                if name not in took and not self.processes[name].alive:
                    code = self.processes[name].child.returncode
                    took[name] = [round(time.monotonic() - begun, 2), float(code)]
            _NEVER.wait(_LOOK_SECONDS)
        for name in names:
            if name not in took:
                took[name] = [_STOP_SECONDS, -9.0]
                self.kill(name)
        return took

    def kill_postmaster(self) -> None:
        """Send SIGKILL to PostgreSQL's first process alone."""
        pid = self.stack.postgres.pid
        assert pid is not None
        send_signal(pid, signal.SIGKILL)
        until(lambda: self.stack.postgres.pid is None, "the postmaster is gone")

    def start_database(self) -> None:
        """Start PostgreSQL, as often as it takes: the processes of a killed one delay it."""
        insist(self.stack.postgres.start)

    def start_broker(self, number: int = 1) -> None:
        """Start a broker, as often as it takes: a client's connection may have its port for a moment."""
        insist(self.stack.broker(number).start)

    @contextmanager
    def database(self) -> Generator[psycopg.Connection[Any]]:
        """Connect as an operator, without a proxy."""
        with psycopg.connect(self.info.database_url, autocommit=True, connect_timeout=5) as connection:
            yield connection

    def backends(self) -> list[int]:
        """Return the server processes of the services."""
        with self.database() as connection:
            found = connection.execute(
                "SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'tidewheel-%' ORDER BY pid"
            )
            return [int(pid) for (pid,) in found]

    def is_settled(self) -> bool:
        """Return True if no run is open and the outbox is empty."""
        try:
            with self.database() as connection:
                row = connection.execute("SELECT NOT EXISTS (TABLE job_runs) AND NOT EXISTS (TABLE outbox)").fetchone()
        except psycopg.OperationalError:
            return False
        return row is not None and row[0] is True

    def lag(self) -> int:
        """Return the number of messages that executors have not taken."""
        admin: Any = AdminClient({**self.kafka, "log_level": 0})
        consumer = Consumer({**self.kafka, "group.id": "outside-lag", "log_level": 0})
        lag = 0
        try:
            for lane in LANES:
                topic = f"{PREFIX}.{lane}"
                group = f"{topic}.executors"
                known = consumer.list_topics(topic, timeout=10).topics[topic].partitions
                places = [TopicPartition(topic, partition) for partition in known]
                wanted = ConsumerGroupTopicPartitions(group, places)
                committed = admin.list_consumer_group_offsets([wanted])[group].result(10).topic_partitions
                for place in committed:
                    end = consumer.get_watermark_offsets(place, timeout=10, cached=False)[1]
                    lag += end - max(place.offset, 0)
        finally:
            consumer.close()
        return lag

    def _start(self, name: str, clock: str = "") -> Process:
        role = name.partition("-")[0]
        number = len(list(self.folder.glob(f"{name}.*.log")))
        log = self.folder / f"{name}.{number}.log"
        program = [str(Path(sys.executable).with_name("tidewheel")), role]
        if self.mutant:
            program = [sys.executable, "-m", "tests.faults.outside.mutants", self.mutant, role]
        elif clock:
            program = [sys.executable, "-m", "tests.faults.outside.clocks", clock, role]
        within = self.spaces[name].command if name in self.spaces else ()
        with log.open("ab") as output:
            child = subprocess.Popen(
                [sys.executable, "-c", _BOUND, *within, *program],
                cwd=_ROOT,
                env=self._environment(),
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self.processes[name] = Process(name, child, log)
        return self.processes[name]

    def _environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("TIDEWHEEL_", "PG"))}
        told = {
            **SETTINGS,
            "DATABASE_URL": self.url,
            "KAFKA_PROPERTIES": str(self.info.kafka_properties),
            **self.settings,
        }
        prefixed = {f"TIDEWHEEL_{name}": value for name, value in told.items()}
        return {**kept, **prefixed, EFFECTS_VARIABLE: str(self.effects), "PYTHONPATH": str(_ROOT)}

    def _tidewheel(self, *arguments: str) -> None:
        program = Path(sys.executable).with_name("tidewheel")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("TIDEWHEEL_", "PG"))}
        cache = {name: os.environ[name] for name in ("TIDEWHEEL_CACHE_DIR",) if name in os.environ}
        partitions = {f"TIDEWHEEL_{name}": SETTINGS[name] for name in ("RUNS_PARTITIONS", "EVENTS_PARTITIONS")}
        done = subprocess.run(
            [program, *arguments], env={**kept, **cache, **partitions}, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def _supervise(self) -> None:
        while not self._ended.wait(_LOOK_SECONDS):
            with self._lock:
                ended = [p for p in self.processes.values() if not p.alive and not p.expected]
                for process in ended:
                    process.expected = True
                    self.exits.append(f"{process.name} {process.child.returncode}")
            for process in ended:
                if self._ended.wait(_RESTART_SECONDS):
                    return
                with self._lock:
                    if self.processes[process.name] is process:
                        self._start(process.name)

    def _finish(self, process: Process) -> None:
        if process.alive:
            send_signal(process.child.pid, signal.SIGKILL)
        process.child.wait()

    def _make_namespaces(self) -> None:
        rules = self.home / "postgres" / "data" / "pg_hba.conf"
        with rules.open("a") as file:
            file.write("host all all 10.213.0.0/16 scram-sha-256\n")
        pid = self.stack.postgres.pid
        assert pid is not None
        send_signal(pid, signal.SIGHUP)
        for number, name in enumerate(SERVICES):
            self.spaces[name] = Namespace(number)

    def _mount(self) -> None:
        if self.disks.data:
            mount(self.home / "postgres", self.disks.data)
        if self.disks.broker:
            mount(self.home / "kafka", self.disks.broker)

    def _move_wal(self) -> None:
        """Move PostgreSQL's log of changes to a file system of its own."""
        self.stack.postgres.stop()
        place = self.home / "postgres" / "data" / "pg_wal"
        owner = place.stat()
        aside = place.with_name("pg_wal.moved")
        place.rename(aside)
        mount(place, self.disks.wal)
        subprocess.run(["cp", "-a", f"{aside}/.", str(place)], check=True)  # noqa: S607
        os.chown(place, owner.st_uid, owner.st_gid)
        place.chmod(0o700)
        subprocess.run(["rm", "-r", str(aside)], check=True)  # noqa: S607
        self.start_database()

    def _unmount(self) -> None:
        places = ("postgres/data/pg_wal" if self.disks.wal else "", "postgres" if self.disks.data else "")
        for place in (*places, "kafka" if self.disks.broker else ""):
            if place and (self.home / place).is_mount():
                unmount(self.home / place)
