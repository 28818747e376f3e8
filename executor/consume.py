"""One lane of one queue: consumes its topic, claims what it can run, commits the offsets after the durable claim.

An offset moves past messages that were claimed, refused or left to the sweep, never before the claim is committed and
never waiting for the work: an hours-long run holds no partition.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from uuid import UUID

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from tidewheel.clock import monotonic_seconds
from tidewheel.errors import Unavailable, UndecodableMessage
from tidewheel.executor.claim import Claimer
from tidewheel.executor.slots import Slots
from tidewheel.failpoint import failpoint
from tidewheel.metrics import metrics
from tidewheel.runs import Lane
from tidewheel.schemas.codec import decode
from tidewheel.schemas.records import JobDefinition, RunRequest
from tidewheel.service import Patience, Stop
from tidewheel.transitions.dispatch import Definitions
from tidewheel.transitions.start import Claim, Started

_LOG = logging.getLogger("tidewheel.executor")

_POLL_SECONDS = 0.2
_FULL_SECONDS = 0.5  # between two looks while there is no free slot
_PAUSE_AFTER_SECONDS = 10.0  # pausing throws away what was fetched, so it is done late and rarely
_GATHER_SECONDS = 0.002
_MOST = 500  # claims in one transaction


@dataclass(frozen=True, slots=True)
class Wanted:
    """A message that asks for a run this executor can do."""

    claim: Claim
    request: RunRequest
    definition: JobDefinition


Begin = Callable[[Sequence[tuple[Started, RunRequest, JobDefinition]]], None]


class LaneConsumer:
    """The thread that serves one topic."""

    def __init__(
        self,
        consumer: Consumer,
        topic: str,
        lane: Lane,
        *,
        claimer: Claimer,
        slots: Slots,
        handlers: frozenset[str],
        begin: Begin,
        crowded: Callable[[], bool],
        stop: Stop,
    ) -> None:
        self._consumer, self._topic, self._lane = consumer, topic, lane
        self._claimer, self._slots, self._handlers = claimer, slots, handlers
        self._begin, self._crowded, self._stop = begin, crowded, stop
        self._definitions = Definitions()
        self._held: list[Message] = []
        self._owned: set[int] = set()
        self._paused = False
        self._nothing_came = True
        self._thread = threading.Thread(target=self._run, name=f"consume-{lane}", daemon=True)

    def start(self) -> None:
        """Subscribe and begin."""
        self._consumer.subscribe(
            [self._topic], on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
        )
        self._thread.start()

    @property
    def idle(self) -> bool:
        """Whether nothing is fetched: the last look brought nothing, and nothing waits for a slot."""
        return self._nothing_came and not self._held

    def join(self) -> None:
        """Wait until it has left its group."""
        self._thread.join(timeout=30)

    def _run(self) -> None:
        patience = Patience(self._stop, f"consuming {self._topic}")
        while not self._stop.asked():
            try:
                self._round()
            except (Unavailable, KafkaException) as error:
                # What was fetched and not claimed is kept and tried again; the sweep may be quicker.
                patience.wait(error)
                continue
            except Exception as error:  # noqa: BLE001 - see below
                # Whatever it is, a lane that goes deaf in silence is worse: it is told, and tried again.
                _LOG.exception("consuming %s failed", self._topic)
                patience.wait(error)
                continue
            patience.over()
        self._consumer.close()
        self._claimer.close()

    def _round(self) -> None:
        if not self._held:
            self._held = self._poll(_POLL_SECONDS)
        if not self._held or not self._wait_for_slots():
            return
        # First fetched, then taken: slots held for messages that may not come are kept from the other lanes.
        more = self._more(min(self._slots.free(self._lane), _MOST) - len(self._held))
        self._held = self._held + more
        taken = self._slots.take(self._lane, min(len(self._held), _MOST))
        batch, self._held = self._held[:taken], self._held[taken:]
        started = 0
        try:
            started = self._claim(batch) if batch else 0
        except BaseException:
            self._held = batch + self._held
            raise
        finally:
            self._slots.give_back(taken - started)

    def _wait_for_slots(self) -> bool:
        """Wait until a slot is free; keeps polling meanwhile, as the group protocol wants."""
        since = monotonic_seconds()
        while not self._stop.asked():
            if not self._crowded() and self._slots.wait_free(self._lane, _FULL_SECONDS):
                self._resume()
                if self._slots.free(self._lane) < self._slots.total // 4:
                    # Nearly full: more will come free in a moment, and a claim costs as much for one as for a dozen.
                    self._stop.wait(_GATHER_SECONDS)
                return bool(self._held)
            self._stop.wait(_GATHER_SECONDS)
            if monotonic_seconds() - since > _PAUSE_AFTER_SECONDS:
                self._pause()
                polled = self._poll(0)
                self._held = self._held + polled
        return False

    def _poll(self, seconds: float) -> list[Message]:
        message = self._consumer.poll(seconds)
        self._nothing_came = message is None
        return [] if message is None else self._good([message])

    def _more(self, most: int) -> list[Message]:
        return self._good(self._consumer.consume(most, 0)) if most > 0 else []

    def _good(self, messages: Sequence[Message]) -> list[Message]:
        good: list[Message] = []
        for message in messages:
            error = message.error()
            if error is None:
                good.append(message)
            elif error.code() != KafkaError._PARTITION_EOF:
                message_text = f"{self._topic}: {error.str()}"
                raise Unavailable(message_text)
        return good

    def _claim(self, messages: Sequence[Message]) -> int:
        failpoint("claim.received")
        wanted = {item.claim.run_id: item for message in messages if (item := self._wanted(message)) is not None}
        started: list[Started] = []
        if wanted:
            started = self._claimer.claim([item.claim for item in wanted.values()], way="message").started
        self._begin([(one, wanted[one.run_id].request, wanted[one.run_id].definition) for one in started])
        self._commit(messages)
        failpoint("claim.offsets_committed")
        return len(started)

    def _wanted(self, message: Message) -> Wanted | None:
        value = message.value()
        try:
            request = decode(value if isinstance(value, bytes) else b"", RunRequest)
            definition = self._definitions.of(request.definition)
            claim = Claim(UUID(request.run_id), request.attempt, request.job_version, _came_by(message))
        except (UndecodableMessage, ValueError) as error:
            # Nobody but the relay writes here; whatever it is, its run is in the table and the sweep brings it.
            _LOG.error("a message on %s cannot be read and is left to the sweep: %s", self._topic, error)
            return None
        name = definition.target.handler
        if name is not None and name not in self._handlers:
            metrics.count("unknown_handlers")
            _LOG.warning("no handler %r here; run %s waits for an executor that has it", name, request.run_id)
            return None
        return Wanted(claim, request, definition)

    def _commit(self, messages: Sequence[Message]) -> None:
        # Of the partitions that are still ours: their next owner must not be set back or forward.
        ends: dict[tuple[str, int], int] = {}
        for message in messages:
            topic, partition, offset = message.topic(), message.partition(), message.offset()
            if topic is not None and partition in self._owned and offset is not None:
                ends[topic, partition] = max(ends.get((topic, partition), 0), offset + 1)
        offsets = [TopicPartition(topic, partition, offset) for (topic, partition), offset in ends.items()]
        if not offsets:
            return
        try:
            self._consumer.commit(offsets=offsets, asynchronous=True)
        except KafkaException as error:
            # A rebalance took the partition: its next owner reads the messages again and the claim drops them.
            _LOG.info("offsets of %s not committed: %s", self._topic, error)

    def _pause(self) -> None:
        if not self._paused:
            self._consumer.pause(self._consumer.assignment())
            self._paused = True

    def _resume(self) -> None:
        if self._paused:
            self._consumer.resume(self._consumer.assignment())
            self._paused = False

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        consumer.incremental_assign(partitions)
        if self._paused:
            consumer.pause(partitions)
        self._owned |= {partition.partition for partition in partitions}

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._drop(partitions)

    def _on_lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._drop(partitions)

    def _drop(self, partitions: Sequence[TopicPartition]) -> None:
        gone = {partition.partition for partition in partitions}
        self._owned -= gone
        self._held = [message for message in self._held if message.partition() not in gone]


def _came_by(message: Message) -> str:
    return f"{message.topic()}/{message.partition()}/{message.offset()}@{message.timestamp()[1]}"
