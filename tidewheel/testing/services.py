"""The services of one test, in its own process, stepped by the test.

The scheduler, the relay and the executor are those of production; none of them goes on by itself. The executor claims
from the table alone, as an executor without Kafka messages does, and only while its gate is open. Requests are read
from Kafka without a group: the test is their only reader.
"""

import asyncio
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from uuid import UUID

import psycopg
from confluent_kafka import Message, TopicPartition

from tidewheel.clock import monotonic_seconds
from tidewheel.errors import Unavailable
from tidewheel.executor.claim import Claimer
from tidewheel.executor.handlers import Handler
from tidewheel.executor.lanes import Lanes
from tidewheel.executor.loop import Executor
from tidewheel.intake.batch import apply_batch
from tidewheel.kafka.clients import consumer
from tidewheel.kafka.offsets import read_end_offsets
from tidewheel.postgres.database_clock import read_now
from tidewheel.postgres.session import Session, is_data_fault
from tidewheel.process.service import Backoff, Shutdown
from tidewheel.relay.loop import Relay
from tidewheel.scheduler.loop import Scheduler
from tidewheel.settings.executor import ExecutorSettings
from tidewheel.settings.services import RelaySettings, SchedulerSettings
from tidewheel.transitions.claim import Claim, Claimed, Started
from tidewheel.transitions.installation import Installation

_KAFKA_SECONDS = 30.0
_STOP_SECONDS = 30.0
_AT_ONCE = timedelta(0)  # smaller than any setting allows: the sweep claims what is due, and not what was for a while


class Inbox:
    """The topics that intake reads, from where a test begins; they have one partition each."""

    def __init__(self, kafka: Mapping[str, str], topics: Sequence[str]) -> None:
        self._places = [(topic, 0) for topic in topics]
        # A consumer that waits for messages answers no request for offsets: these have a connection of their own.
        self._client, self._offsets = (
            consumer(kafka, group=f"{topics[0]}.test", role="test", protocol="classic") for _ in range(2)
        )
        self._at: dict[str, int] = {}

    def skip(self) -> None:
        """Skip the messages of earlier tests."""
        self._at = self._ends()
        self._client.assign([TopicPartition(topic, 0, at) for topic, at in self._at.items()])

    def read(self) -> list[Message]:
        """Everything that has come since."""
        ends = self._ends()
        found: list[Message] = []
        while any(self._at[topic] < end for topic, end in ends.items()):
            for message in self._client.consume(500, 0.05):
                if message.error() is None:
                    found.append(message)
                    self._at[message.topic() or ""] = (message.offset() or 0) + 1
        return found

    def close(self) -> None:
        """Let go of the broker."""
        self._client.close()
        self._offsets.close()

    def _ends(self) -> dict[str, int]:
        backoff = Backoff(Shutdown(), "reading where a topic ends")
        gives_up_at = monotonic_seconds() + _KAFKA_SECONDS
        while True:
            try:
                found = read_end_offsets(self._offsets, self._places)
                return {topic: end for (topic, _), (_, end) in found.items()}
            except Unavailable as error:  # a topic that was made just now has no leader yet
                if monotonic_seconds() > gives_up_at:
                    raise
                backoff.wait(error)


class Services:
    """The services of one database."""

    def __init__(self, url: str, kafka: dict[str, str], installation: Installation, inbox: Inbox) -> None:
        self._url, self._kafka, self._installation, self._inbox = url, kafka, installation, inbox
        self._prefix = installation.topics.prefix
        self._stop = Shutdown()
        self._session = Session(url, "tidewheel-test")
        ahead = SchedulerSettings.load(topic_prefix=self._prefix, lookahead=_AT_ONCE, overdue_after=_AT_ONCE)
        self._scheduler = Scheduler(ahead, url, installation, self._stop)
        self._relay: Relay | None = None
        self._executing: _Executing | None = None

    def schedule(self) -> bool:
        """Run one step of the scheduler. Return True if it did anything."""
        self._scheduler.expedite()
        return self._scheduler.step() == 0.0

    def publish(self) -> None:
        """Let every message leave that may."""
        if self._relay is None:
            settings = RelaySettings.load(topic_prefix=self._prefix, fairness="off")
            self._relay = Relay(settings, self._url, self._kafka, self._stop)
        while self._relay.step() == 0.0:
            pass

    def take_in(self) -> int:
        """Apply the requests that have come over Kafka; return their number."""
        messages = self._inbox.read()
        for message in messages:
            try:
                self._apply(message, None)
            except psycopg.Error as error:
                if not is_data_fault(error):
                    raise
                self._apply(message, error)
        return len(messages)

    def execute(self, handlers: Mapping[str, Handler], queues: Sequence[str]) -> None:
        """Let runs be claimed from now on, until `rest`."""
        key = (frozenset(handlers), tuple(sorted(queues)))
        if self._executing is not None and self._executing.serves != key:
            self._executing.close()
            self._executing = None
        if self._executing is None:
            self._executing = _Executing(self._url, self._kafka, self._installation, handlers, key[1])
        self._executing.gate.open()

    def rest(self) -> None:
        """No run is claimed from now on."""
        if self._executing is not None:
            self._executing.gate.close()

    def check(self) -> None:
        """Raise what has ended the executor, if anything has."""
        if self._executing is not None and self._executing.ended.done():
            self._executing.ended.result()

    def close(self) -> None:
        """End all of them, side by side: each waits a moment for threads of its own."""
        self._stop.request()
        ending = [self._scheduler.close, self._session.close]
        if self._executing is not None:
            ending.append(self._executing.close)
        if self._relay is not None:
            ending.append(self._relay.leave)
        with ThreadPoolExecutor(len(ending)) as pool:
            for ended in [pool.submit(each) for each in ending]:
                ended.result()

    def _apply(self, message: Message, failure: Exception | None) -> None:
        with self._session.transaction() as connection:
            apply_batch(connection, self._installation, [message], failure, read_now(connection))


class _Gate:
    """True if runs may be claimed; once closed, no claim is under way either."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.is_open = False

    def open(self) -> None:
        self.is_open = True

    def close(self) -> None:
        with self.lock:
            self.is_open = False


class _GatedClaimer(Claimer):
    """Claims while the gate is open."""

    def __init__(self, claimer: Claimer, gate: _Gate) -> None:
        self._behind, self._gate, self.lease = claimer, gate, claimer.lease

    def claim(self, claims: Sequence[Claim], *, source: str) -> Claimed:
        with self._gate.lock:
            claimed = self._behind.claim(claims, source=source) if self._gate.is_open else Claimed()
            self.lease = self._behind.lease
            return claimed

    def claim_in_parts(self, claims: Sequence[Claim], *, source: str) -> Iterator[Sequence[Started]]:
        yield self.claim(claims, source=source).started

    def left_out(self) -> Collection[UUID]:
        return self._behind.left_out()

    def leave_out(self, run_id: UUID) -> None:
        self._behind.leave_out(run_id)

    def close(self) -> None:
        self._behind.close()


class _GatedExecutor(Executor):
    """An executor that consumes nothing, and sweeps at once what is due while its gate is open."""

    def __init__(
        self,
        settings: ExecutorSettings,
        url: str,
        kafka: Mapping[str, str],
        *,
        installation: Installation,
        handlers: Mapping[str, Handler],
        stop: Shutdown,
        gate: _Gate,
    ) -> None:
        self._gate = gate
        lanes = Lanes(kafka, "classic", [])
        super().__init__(settings, url, kafka, installation=installation, handlers=handlers, stop=stop, lanes=lanes)

    def _claimer(self, name: str) -> Claimer:
        return _GatedClaimer(super()._claimer(name), self._gate)


class _Executing:
    """An executor on a thread of its own."""

    def __init__(
        self,
        url: str,
        kafka: Mapping[str, str],
        installation: Installation,
        handlers: Mapping[str, Handler],
        queues: Sequence[str],
    ) -> None:
        self.serves = (frozenset(handlers), tuple(queues))
        self.gate = _Gate()
        self.ended: Future[None] = Future()
        self._stop = Shutdown()
        settings = ExecutorSettings.load(
            topic_prefix=installation.topics.prefix,
            queues=",".join(queues),
            handlers=",".join(sorted({handler.function.__module__ for handler in handlers.values()})) or None,
            http_allow_private=True,  # the other side of a test is on this machine
            drain_timeout=_AT_ONCE,
        ).model_copy(update={"sweep": _AT_ONCE, "max_clock_skew": timedelta.max})  # both beyond what may be set
        self._executor = _GatedExecutor(
            settings, url, kafka, installation=installation, handlers=handlers, stop=self._stop, gate=self.gate
        )
        threading.Thread(target=self._run, name="tidewheel-test-executor", daemon=True).start()

    def close(self) -> None:
        """End it, and wait until it has ended."""
        self._stop.request()
        self.ended.result(_STOP_SECONDS)

    def _run(self) -> None:
        try:
            asyncio.run(self._executor.run())
            self.ended.set_result(None)
        except BaseException as error:  # noqa: BLE001 - it is the waiting test's to judge
            self.ended.set_exception(error)
