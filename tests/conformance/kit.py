"""An executor in any language on a real stack: start it by its command and observe it from outside.

The tests judge it by the database, by Kafka, and by the effects that its handlers record in a file.
"""

import json
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition

from tests.fixtures.acts import OpenRun
from tests.fixtures.services import Fleet, Service
from tidewheel.control.client.client import Client
from tidewheel.kafka.topics import DEFAULT_QUEUE
from tidewheel.local.daemon import free_port
from tidewheel.nouns.runs.model import Run
from tidewheel.runs import Lane
from tidewheel.settings.connections import Connections
from tidewheel.settings.sources import client_variables

Target = str | Mapping[str, object]

_STOP_SECONDS = 30.0
_NEVER = "60s"

# Settings that the API reports to executors. They take seconds in production and are not the subject of these tests.
API_SETTINGS = {"API_HEARTBEAT": "0.2s", "LEASE": _NEVER, "SWEEP": _NEVER}
# Settings of an executor apart from its addresses.
SETTINGS = {"SLOTS": "4", "CANCEL_GRACE": "1", "DRAIN_TIMEOUT": "1"}


@dataclass(eq=False)
class Subject:
    """One process of the executor that is tested."""

    process: "subprocess.Popen[bytes]"
    log: Path

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def pause(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def ask_to_stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def wait_stopped(self) -> None:
        assert self.process.wait(_STOP_SECONDS) == 0, self.tail()

    def tail(self) -> str:
        return f"{self.log} ends with\n" + "\n".join(self.log.read_text(errors="replace").splitlines()[-20:])


@dataclass(eq=False)
class Kit:
    """A stack, and executors on it."""

    fleet: Fleet
    command: Sequence[str]
    queue: str = DEFAULT_QUEUE
    port: int = field(default_factory=free_port)
    subjects: list[Subject] = field(default_factory=list[Subject])
    api: Service | None = None
    _client: Client | None = None
    _jobs: set[str] = field(default_factory=set[str])

    @property
    def client(self) -> Client:
        if self._client is None:
            self._client = Client(
                settings=Connections.load(database_url=self.fleet.database.url, http_allow_private=True)
            )
        return self._client

    def start_stack(self, **settings: str) -> None:
        """Start the relay and the HTTP API."""
        self.fleet.start("relay")
        self.start_api(**settings)
        self.fleet.wait_started()

    def start_api(self, **settings: str) -> None:
        """Start the HTTP API, always at the same address."""
        self.api = self.fleet.start("api", API_PORT=str(self.port), **(API_SETTINGS | settings))

    def start(self, **settings: str) -> Subject:
        """Start an executor; what is in `settings` goes before the usual."""
        settings_given = {
            "API_URL": f"http://127.0.0.1:{self.port}",
            "KAFKA_BOOTSTRAP": self.fleet.kafka["bootstrap.servers"],
            "QUEUES": self.queue,
            "CONFORMANCE_EFFECTS": str(self.fleet.effects),
            **SETTINGS,
            **settings,
        }
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("TIDEWHEEL_", "PG"))}
        environment = kept | client_variables(self.fleet.kafka)
        environment |= {f"TIDEWHEEL_{name}": value for name, value in settings_given.items()}
        log = self.fleet.folder / f"subject-{len(self.subjects)}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                self.command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
            )
        self.subjects.append(Subject(process, log))
        return self.subjects[-1]

    def close(self) -> None:
        for subject in self.subjects:
            if subject.alive:
                subject.resume()
                subject.kill()
        if self._client is not None:
            self._client.close()
        self.fleet.kill()
        self.fleet.database.close()

    def trigger(self, handler: Target, payload: object = None, **job: object) -> UUID:
        """Trigger a run of a handler; submit its job if it is new."""
        key = f"{handler} {json.dumps(job, sort_keys=True)}"[:255]
        if key not in self._jobs:
            spec: dict[str, object] = {"key": key, "schedule": "manual", "target": handler, "queue": self.queue}
            self.client.submit(spec | {"overlap": "allow_all"} | job)
            self._jobs.add(key)
        return self.client.trigger(key, payload)

    def run(self, handler: Target, payload: object = None, **job: object) -> Run:
        return self.ended(self.trigger(handler, payload, **job))

    def ended(self, run_id: UUID) -> Run:
        self.until(lambda: self.client.runs.get(run_id).final, f"run {run_id} ends")
        return self.client.runs.get(run_id)

    def hold(self, handler: str = "conformance.hold", **job: object) -> "Held":
        """Have an attempt under way that ends when it is let go."""
        gate = self.fleet.folder / f"gate-{len(list(self.fleet.folder.glob('gate-*')))}-{len(self.effects())}"
        run_id = self.trigger(handler, {"until": str(gate)}, **job)
        self.until(lambda: self.effects(run_id), f"run {run_id} begins")
        return Held(run_id, gate)

    def until(self, condition: Callable[[], object], what: str) -> None:
        """Wait until a condition holds; fails when a service has died, and shows what executors wrote."""
        try:
            self.fleet.until(condition, what)
        except AssertionError as error:
            raise type(error)("\n".join([str(error), *(each.tail() for each in self.subjects)])) from None

    def effects(self, run_id: UUID | None = None) -> list[dict[str, Any]]:
        """Return the recorded effects of handlers, of one run or of all."""
        text = self.fleet.effects.read_text() if self.fleet.effects.exists() else ""
        noted: list[dict[str, Any]] = [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
        return [each for each in noted if run_id is None or each["run_id"] == str(run_id)]

    def facts(self, run_id: UUID) -> OpenRun:
        return self.fleet.database.open_run(run_id)

    def attempts(self, run_id: UUID) -> list[tuple[int, str]]:
        return self.fleet.database.attempts(run_id)

    def claimed_from(self, run_id: UUID) -> str:
        """By what the last attempt of a run that is over came."""
        last = "SELECT claimed_from FROM ended_attempts WHERE run_id = %s ORDER BY attempt DESC LIMIT 1"
        return str(self.fleet.database.value(last, [run_id]))

    def topic(self, lane: Lane = Lane.STANDARD) -> str:
        return self.fleet.topics.runs(self.queue, lane)

    def committed(self) -> int:
        """Return the committed offset of the executors' group on the standard lane."""
        admin = self.fleet.admin()
        known = admin.list_topics(timeout=_STOP_SECONDS).topics[self.topic()].partitions
        places = [TopicPartition(self.topic(), number) for number in known]
        requests = [ConsumerGroupTopicPartitions(f"{self.topic()}.executors", places)]
        [future] = admin.list_consumer_group_offsets(requests).values()
        return sum(max(place.offset, 0) for place in future.result().topic_partitions)


@dataclass(frozen=True)
class Held:
    """An attempt that is under way."""

    run_id: UUID
    gate: Path

    def let_go(self) -> None:
        self.gate.touch()
