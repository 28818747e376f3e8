"""Run the demo's services as processes, and wait until they are ready.

A process gets the demo's settings and none of the user's. The services are ready when their rows exist and the
executors' groups have all partitions. Without that wait the first runs would measure the start of a group.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ConsumerGroupDescription  # type: ignore[attr-defined]  # as in topics.py

from tidewheel.control.demo.environment import Environment
from tidewheel.control.demo.handlers import RECEIVER_VARIABLE
from tidewheel.errors import StackError
from tidewheel.kafka.topics import DEFAULT_QUEUE, Topics
from tidewheel.postgres.session import Session
from tidewheel.postgres.statements import Statements
from tidewheel.runs import Lane
from tidewheel.settings.kafka_client import client_variables

EXECUTORS = ("executor 1", "executor 2")
LEASE_SECONDS = 5  # a third of the default, so that the killed executor's runs are retried within the demo's minute
HEARTBEAT_SECONDS = 1

_COUNT_READY = Statements("tidewheel.control.demo")["count_ready"]
_COMMAND = "from tidewheel.control.cli.main import main; main()"
_STOP_SECONDS = 10.0
_TAIL_LINES = 5
_REQUEST_TIMEOUT_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Service:
    """One service process.

    Args:
        name: Its name in the demo.
        process: The process.
        log: Its log file.
    """

    name: str
    process: "subprocess.Popen[bytes]"
    log: Path


class Services:
    """Intake, scheduler, relay and two executors."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._services: dict[str, Service] = {}
        self._killed: set[str] = set()

    def start(self, receiver: str) -> None:
        """Start all services, without waiting until they are ready."""
        for name in ("intake", "scheduler", "relay"):
            self._start(name, [name], {})
        handlers = ["executor", "--handlers", "tidewheel.control.demo.handlers"]
        settings = {
            "TIDEWHEEL_LEASE": f"PT{LEASE_SECONDS}S",
            "TIDEWHEEL_HEARTBEAT": f"PT{HEARTBEAT_SECONDS}S",
            RECEIVER_VARIABLE: receiver,
        }
        for name in EXECUTORS:
            self._start(name, handlers, settings)

    def stop(self) -> None:
        """Terminate all services, and kill those that do not end."""
        for service in self._services.values():
            _send(service, signal.SIGCONT)
            _send(service, signal.SIGTERM)
        deadline = _STOP_SECONDS
        for service in self._services.values():
            try:
                service.process.wait(timeout=deadline)
            except subprocess.TimeoutExpired:
                deadline = 0.1
                service.process.kill()
                service.process.wait()

    def check(self) -> None:
        """Check that all services run, except a killed one.

        Raises:
            StackError: A service has ended by itself; the message holds the last lines of its log.
        """
        for service in self._services.values():
            if service.name not in self._killed and service.process.poll() is not None:
                lines = service.log.read_text(errors="replace").splitlines()[-_TAIL_LINES:]
                message = f"the {service.name} ended by itself ({service.process.returncode}): " + "\n".join(lines)
                raise StackError(message)

    def pid(self, name: str) -> int:
        """Return the pid of a service."""
        return self._services[name].process.pid

    def executor_pids(self) -> Sequence[int]:
        """Return the pids of the executors that were not killed."""
        return [self.pid(name) for name in EXECUTORS if name in self._services and name not in self._killed]

    def freeze(self, name: str) -> None:
        """Stop a process by SIGSTOP."""
        self._services[name].process.send_signal(signal.SIGSTOP)

    def thaw(self, name: str) -> None:
        """Continue a stopped process."""
        self._services[name].process.send_signal(signal.SIGCONT)

    def kill(self, name: str) -> None:
        """Kill a process by SIGKILL."""
        self._killed.add(name)
        self._services[name].process.kill()
        self._services[name].process.wait()

    def states(self) -> Mapping[str, tuple[int, str]]:
        """Return the pid and state of each service, for the display."""
        return {name: (service.process.pid, self._state(service)) for name, service in self._services.items()}

    def _state(self, service: Service) -> str:
        if service.name in self._killed:
            return "killed"
        return "running" if service.process.poll() is None else "ended"

    def _start(self, name: str, arguments: Sequence[str], settings: Mapping[str, str]) -> None:
        log = self._environment.logs / f"{name.replace(' ', '-')}.log"
        # -P: a file in the current folder must not shadow a module.
        command = [sys.executable, "-P", "-c", _COMMAND, *arguments]
        with log.open("wb") as output:
            process = subprocess.Popen(  # noqa: S603 - our own command
                command,
                env=_variables(self._environment, settings),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C goes to the demo alone, which then stops them in order
            )
        self._services[name] = Service(name, process, log)


def _variables(environment: Environment, settings: Mapping[str, str]) -> dict[str, str]:
    """Return the user's variables without Tidewheel settings, so that figures are comparable."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("TIDEWHEEL_")}
    return {
        **inherited,
        "TIDEWHEEL_DATABASE_URL": environment.database_url,
        **client_variables(environment.kafka),
        "TIDEWHEEL_TOPIC_PREFIX": environment.topics.prefix,
        "TIDEWHEEL_HTTP_ALLOW_PRIVATE": "true",  # the receiver is on this machine
        **settings,
    }


def _send(service: Service, number: signal.Signals) -> None:
    if service.process.poll() is None:
        service.process.send_signal(number)


class Readiness:
    """The readiness of the services, required before the file is sent.

    Args:
        session: A session of the demo's database.
        config: Bootstrap servers and the user's client settings.
        topics: The demo's topics.
    """

    def __init__(self, session: Session, config: Mapping[str, str], topics: Topics) -> None:
        self._session, self._topics = session, topics
        self._partitions = {topic.name: topic.partitions for topic in topics.plan()}
        self._admin = AdminClient({**config, "client.id": "tidewheel-demo", "log_level": 2})

    def is_complete(self) -> bool:
        """Return True if all services are ready.

        Raises:
            Unavailable: The database does not answer.
        """
        with self._session.transaction() as connection:
            row = connection.execute(_COUNT_READY, binary=True).fetchone()
        intake_partitions = self._partitions[self._topics.requests] + self._partitions[self._topics.target_replies]
        expected = (len(EXECUTORS), 2, intake_partitions)  # 2: a scheduler and a relay
        return row is not None and tuple(row) == expected and self._are_assigned()

    def _are_assigned(self) -> bool:
        expected = {f"{name}.executors": self._partitions[name] for name in self._lanes()}
        groups = self._admin.describe_consumer_groups(  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType] - its stub leaves a Future bare
            list(expected), request_timeout=_REQUEST_TIMEOUT_SECONDS
        )
        futures = cast("dict[str, Future[ConsumerGroupDescription]]", groups)
        return all(_assigned(future) >= expected[group] for group, future in futures.items())

    def _lanes(self) -> list[str]:
        return [self._topics.runs(DEFAULT_QUEUE, lane) for lane in Lane]


def _assigned(future: "Future[ConsumerGroupDescription]") -> int:
    try:
        found = future.result()
    except KafkaException:
        return 0  # the group does not exist yet, or its coordinator is not known yet
    counts = [len(member.assignment.topic_partitions) for member in found.members if member.assignment]
    return sum(counts)
