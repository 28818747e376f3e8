"""An executor on a thread, with topics of its own; what Kafka does not bring, its sweep does at once."""

# pyright: reportPrivateImportUsage=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# The admin client's stubs name neither all it exports nor what its futures hold.

import asyncio
import os
from collections.abc import Generator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cached_property
from typing import LiteralString, Self
from uuid import UUID, uuid4

from confluent_kafka import Producer

from tests.executor.handlers import GATES, handlers
from tests.fixtures.database import Database
from tests.fixtures.services import GROUP_VARIABLE, until
from tests.relay.topics import make_topics
from tests.transitions.stepping import in_background
from tidewheel.executor.handlers import Handler
from tidewheel.executor.loop import Executor
from tidewheel.kafka.topics import Topics
from tidewheel.postgres.session import Conn
from tidewheel.process.service import Shutdown
from tidewheel.runs import FINAL, Lane, RunState
from tidewheel.settings.executor import ExecutorSettings

_SECONDS = 30.0
QUICK = {
    "sweep": timedelta(milliseconds=20),
    "heartbeat": timedelta(milliseconds=200),
    "lease": timedelta(seconds=15),
    "drain_timeout": timedelta(seconds=10),
    "cancel_grace": timedelta(milliseconds=300),
    "executor_group": os.environ.get(GROUP_VARIABLE, "classic"),
}


ENTER: LiteralString = """
INSERT INTO executors (executor_id, name, queues, handlers, slots, last_heartbeat_at, started_at)
VALUES (%s, 'mine', '{default}', '{}', 1, now(), now())
"""


def hold_row(database: Database, run_id: UUID) -> Conn:
    """Lock a run's row by another transaction, which lets go by a rollback."""
    holding = database.connection()
    holding.execute("SELECT FROM job_runs WHERE run_id = %s FOR UPDATE", [run_id])
    return holding


@dataclass(frozen=True)
class Ended:
    state: str
    reason: str | None
    attempt: int
    error_type: str | None
    error_message: str | None
    result: bytes | None
    claimed_from: str | None
    started_at: datetime | None
    finished_at: datetime | None


@dataclass
class Executing:
    """A database whose runs are executed."""

    database: Database
    kafka: Mapping[str, str]
    topics: Topics = field(default_factory=lambda: Topics(f"t{uuid4().hex[:10]}"))
    _jobs: set[str] = field(default_factory=set[str])

    def __post_init__(self) -> None:
        self.database.installation = replace(self.database.installation, topics=self.topics)

    @cached_property
    def _producer(self) -> Producer:
        return Producer({**self.kafka, "linger.ms": 0, "log_level": 0})  # outlives the broker

    def with_topics(self) -> Self:
        """Make the topics of the default queue."""
        make_topics(self.kafka, [self.topics.runs("default", lane) for lane in Lane])
        return self

    def start(self, stop: Shutdown, *, known: Mapping[str, Handler] | None = None, **settings: object) -> Future[None]:
        made = Executor(
            ExecutorSettings.load(**(QUICK | settings)),
            self.database.url_of("executor"),
            dict(self.kafka),
            installation=self.database.installation,
            handlers=handlers() if known is None else known,
            stop=stop,
        )
        return in_background(lambda: asyncio.run(made.run()))

    @contextmanager
    def running(self, *, known: Mapping[str, Handler] | None = None, **settings: object) -> Generator[None]:
        stop = Shutdown()
        ended = self.start(stop, known=known, **settings)
        try:
            yield
        finally:
            stop.request()
            ended.result(60)

    def trigger(self, handler: str | Mapping[str, object], payload: object = None, **job: object) -> UUID:
        """Trigger a run of a handler (or of any target), under a job that is submitted when it is new."""
        key = f"{handler}-{sorted(job.items())}"[:255]
        if key not in self._jobs:
            self.database.submit(key, target=handler, **job)
            self._jobs.add(key)
        return self.database.trigger(key, **({} if payload is None else {"payload": payload}))

    def held(self, gate: str, handler: str = "acts.wait", **job: object) -> UUID:
        """Trigger a run that waits at a gate, and wait until it has begun."""
        run_id = self.trigger(handler, gate, **job)
        until(lambda: str(run_id) in GATES[gate].entered, f"run {run_id} begins")
        return run_id

    def state(self, run_id: UUID) -> RunState:
        [(final, now_open)] = self.database.rows(
            "SELECT r.state, o.state FROM runs AS r LEFT JOIN job_runs AS o USING (run_id) WHERE r.run_id = %s",
            [run_id],
        )
        return RunState(now_open or final)

    def ended(self, run_id: UUID) -> Ended:
        until(lambda: self.state(run_id) in FINAL, f"run {run_id} ends")
        [row] = self.database.rows(
            "SELECT r.state, r.reason, r.attempt, r.error_type, a.error_message, x.result, a.claimed_from,"
            " r.started_at, r.finished_at FROM runs AS r"
            " LEFT JOIN ended_attempts AS a ON a.run_id = r.run_id AND a.attempt = r.attempt"
            " LEFT JOIN attempt_outputs AS x ON x.run_id = r.run_id AND x.attempt = r.attempt WHERE r.run_id = %s",
            [run_id],
        )
        return Ended(*row)

    def run(self, handler: str | Mapping[str, object], payload: object = None, **job: object) -> Ended:
        return self.ended(self.trigger(handler, payload, **job))

    def publish(self, *run_ids: UUID) -> None:
        """Do for runs what the relay does: their newest messages go to Kafka, their outbox rows go."""
        keys = [str(run_id).encode() for run_id in run_ids]
        found = self.database.rows(
            "SELECT DISTINCT ON (key) topic, key, value FROM outbox WHERE key = ANY (%s) AND topic LIKE '%%.runs.%%'"
            " ORDER BY key, id DESC",
            [keys],
        )
        assert len(found) == len(keys)
        for topic, key, value in found:
            self._producer.produce(topic, key=key, value=value, headers=self.database.signed(topic, key, value))
        assert self._producer.flush(_SECONDS) == 0
        self.database.execute("DELETE FROM outbox WHERE key = ANY (%s)", [keys])
