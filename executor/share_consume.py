"""One lane of one queue as a member of a share group: several executors read one partition, each its own messages.

A message is acknowledged after the durable claim, whoever won it, and never held for the work: what there is no slot
for within a moment is acknowledged too, for from then on it is due for the sweep of whoever has one. It is given back
to the group only where the database did not answer, or when this member leaves.
"""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta

from confluent_kafka import AcknowledgeType, KafkaException, Message, ShareConsumer, TopicPartition

from tidewheel.clock import monotonic_seconds
from tidewheel.errors import Unavailable
from tidewheel.executor.claim_batch import Taking, good
from tidewheel.executor.slots import Slots
from tidewheel.process.failpoint import failpoint
from tidewheel.process.health import health
from tidewheel.process.service import Backoff, Shutdown
from tidewheel.runs import Lane

_LOG = logging.getLogger("tidewheel.executor")

_POLL_SECONDS = 0.2
_FULL_SECONDS = 0.5  # between two looks while there is no free slot
_GATHER_SECONDS = 0.002
_MOST = 500  # claims in one transaction


class ShareLaneConsumer:
    """The thread that serves one topic.

    Args:
        join_group: Makes a member; called again when the client has given up for good.
        topic: What it reads.
        lane: Whose slots it takes.
        taking: Claims and begins.
        slots: How many there are.
        hold: How long a message may wait here for a slot.
        crowded: Whether no more is to be claimed.
        stop: The wish to stop.
    """

    def __init__(
        self,
        join_group: Callable[[], ShareConsumer],
        topic: str,
        lane: Lane,
        *,
        taking: Taking,
        slots: Slots,
        hold: timedelta,
        crowded: Callable[[], bool],
        stop: Shutdown,
    ) -> None:
        self._join_group, self._topic, self._lane = join_group, topic, lane
        self._taking, self._slots, self._crowded, self._stop = taking, slots, crowded, stop
        self._hold_seconds = hold.total_seconds()
        self._client: ShareConsumer | None = None
        self._idle = True
        self._doubtful = False  # the database did not answer last time
        self._thread = threading.Thread(target=self._run, name=f"share-{lane}", daemon=True)

    def start(self) -> None:
        """Join the group and begin."""
        self._thread.start()

    @property
    def idle(self) -> bool:
        """Whether nothing is fetched: the last look brought nothing."""
        return self._idle

    @property
    def flooded(self) -> bool:
        """Whether more has come than could be claimed at once: never, for nothing is claimed ahead here."""
        return False

    def join(self) -> None:
        """Wait until it has left its group."""
        self._thread.join(timeout=30)

    def _run(self) -> None:
        backoff = Backoff(self._stop, f"consuming {self._topic}")
        while not self._stop.requested():
            health.turns(f"consuming {self._topic}")
            try:
                self._round()
            except (Unavailable, KafkaException) as error:
                self._idle = True
                self._drop_if_fatal(error)
                backoff.wait(error)
                continue
            except Exception as error:  # noqa: BLE001 - see below
                # Whatever it is, a lane that goes deaf in silence is worse: it is told, and tried again.
                _LOG.exception("consuming %s failed", self._topic)
                self._leave()
                backoff.wait(error)
                continue
            backoff.reset()
        health.ends()
        self._leave()
        self._taking.close()

    def _round(self) -> None:
        if not self._wait_for_slots():
            return
        if self._doubtful:
            # Each delivery that is given back counts, and after the fifth the broker drops the message.
            self._taking.check()
            self._doubtful = False
        client = self._client or self._enter()
        delivered = client.poll(_POLL_SECONDS)
        messages = good(delivered, self._topic)
        self._idle = not messages
        if messages:
            self._serve(client, messages)

    def _serve(self, client: ShareConsumer, messages: Sequence[Message]) -> None:
        """Take what there are slots for, as they come free, and let go of the rest; nothing is left unacknowledged."""
        until = monotonic_seconds() + self._hold_seconds
        left = messages
        try:
            while left and not self._stop.requested() and self._wait_free(until):
                left = self._take_some(client, left)
        finally:
            # Here by an error, or asked to stop: another member may take it at once.
            failed = left and (self._doubtful or self._stop.requested())
            self._acknowledge(client, left, AcknowledgeType.RELEASE if failed else AcknowledgeType.ACCEPT)

    def _take_some(self, client: ShareConsumer, messages: Sequence[Message]) -> Sequence[Message]:
        taken = self._slots.take(self._lane, min(len(messages), _MOST))
        batch, left = messages[:taken], messages[taken:]
        started = 0
        try:
            if batch:
                self._doubtful = True
                started = self._taking.take(self._taking.read(batch), once=taken).started
                self._doubtful = False
        finally:
            self._slots.give_back(self._lane, taken - started)
        self._acknowledge(client, batch, AcknowledgeType.ACCEPT)
        failpoint("claim.offsets_committed")
        return left

    def _acknowledge(self, client: ShareConsumer, messages: Sequence[Message], kind: AcknowledgeType) -> None:
        if not messages:
            return
        try:
            for message in messages:
                client.acknowledge(message, kind)
            client.commit_async()
        except KafkaException as error:
            # Its lock ends by itself; the claim drops what is delivered again.
            _LOG.info("messages of %s not acknowledged: %s", self._topic, error)

    def _wait_for_slots(self) -> bool:
        """Wait until a slot is free: a full executor asks for nothing."""
        while not self._stop.requested():
            if not self._crowded() and self._slots.wait_free(self._lane, _FULL_SECONDS):
                return True
            health.waits()
            self._stop.wait(_GATHER_SECONDS)
        return False

    def _wait_free(self, until: float) -> bool:
        left = until - monotonic_seconds()
        if not self._slots.wait_free(self._lane, max(left, 0)):
            return False
        if self._slots.free(self._lane) < self._slots.total // 4:
            # Nearly full: more will come free in a moment, and a claim costs as much for one as for a dozen.
            self._stop.wait(_GATHER_SECONDS)
        return True

    def _enter(self) -> ShareConsumer:
        self._client = self._join_group()
        self._client.set_acknowledgement_commit_callback(self._on_acknowledged)
        self._client.subscribe([self._topic])
        return self._client

    def _leave(self) -> None:
        """Leave the group; what is not acknowledged goes back to it."""
        client, self._client = self._client, None
        if client is not None:
            try:
                client.close()
            except KafkaException as error:
                _LOG.info("leaving the group of %s: %s", self._topic, error)

    def _drop_if_fatal(self, error: Unavailable | KafkaException) -> None:
        if isinstance(error, KafkaException) and error.args[0].fatal():
            self._leave()

    def _on_acknowledged(self, offsets: Mapping[TopicPartition, set[int]], error: KafkaException | None) -> None:
        if error is not None:
            count = sum(map(len, offsets.values()))
            _LOG.info("%d acknowledgements on %s came too late: %s", count, self._topic, error)
