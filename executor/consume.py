"""One lane of one queue: consumes its topic, claims what it can run, commits the offsets after the durable claim.

An offset moves past messages that were claimed, refused or left to the sweep, never before the claim is committed and
never waiting for the work: an hours-long run holds no partition. `offsets.py` tells the group of it. A full executor
lets go of what it has fetched as soon as the sweep of one with a free slot may take it: kept longer, it would only be
found taken when a slot comes free.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

from tidewheel.clock import monotonic_seconds
from tidewheel.errors import Unavailable
from tidewheel.executor.offsets import Offsets
from tidewheel.executor.slots import Slots
from tidewheel.executor.wanted import Taking, good
from tidewheel.health import health
from tidewheel.runs import Lane
from tidewheel.service import Patience, Stop

_LOG = logging.getLogger("tidewheel.executor")

_POLL_SECONDS = 0.2
_FULL_SECONDS = 0.5  # between two looks while there is no free slot
_PAUSE_AFTER_SECONDS = 10.0  # where the sweep is rarer: the group wants to be polled, and pausing is for that
_GATHER_SECONDS = 0.002
_HALF_SECONDS = 0.02  # while there is plenty: what is in the line is worked off in about this time
_MOST = 1000  # claims in one transaction; of 200 each costs PostgreSQL 6 us more


class LaneConsumer:
    """The thread that serves one topic."""

    def __init__(
        self,
        consumer: Consumer,
        topic: str,
        lane: Lane,
        *,
        taking: Taking,
        slots: Slots,
        hold: timedelta,
        crowded: Callable[[], bool],
        stop: Stop,
    ) -> None:
        self._hold_seconds = hold.total_seconds()
        self._consumer, self._topic, self._lane = consumer, topic, lane
        self._taking, self._slots, self._crowded, self._stop = taking, slots, crowded, stop
        self._held: list[Message] = []
        self._held_since = 0.0  # when the oldest of them was fetched
        self._offsets = Offsets(consumer, topic)
        self._paused = False
        self._nothing_came, self._plenty = True, False
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
            health.turns(f"consuming {self._topic}")
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
        health.ends()
        self._offsets.tell()
        self._consumer.close()
        self._taking.close()

    def _round(self) -> None:
        self._offsets.tell_in_time()
        if not self._held:
            self._held = self._poll(_POLL_SECONDS)
            self._held_since = monotonic_seconds()
        if not self._held or not self._wait_for_slots():
            return
        # First fetched, then taken: slots held for messages that may not come are kept from the other lanes.
        wanted = min(self._slots.free_ahead(self._lane), _MOST)
        more = self._more(wanted - len(self._held))
        self._held = self._held + more
        self._plenty = len(self._held) >= wanted
        taken, once = self._slots.take_ahead(self._lane, min(len(self._held), _MOST))
        batch, self._held = self._held[:taken], self._held[taken:]
        started = 0
        try:
            started = self._claim(batch, once) if batch else 0
        except BaseException:
            self._held = batch + self._held
            raise
        finally:
            self._slots.give_back(self._lane, taken - started)

    def _wait_for_slots(self) -> bool:
        """Wait until a slot is free; keeps polling meanwhile, as the group protocol wants."""
        since = monotonic_seconds()
        while not self._stop.asked():
            crowded = self._crowded()
            if not crowded and self._slots.wait_free_ahead(self._lane, min(_FULL_SECONDS, self._hold_seconds)):
                self._resume()
                if self._plenty and self._lane is not Lane.CRITICAL:
                    self._slots.wait_half_free(self._lane, _HALF_SECONDS)
                if self._slots.is_scarce(self._lane):
                    # Nearly full: more will come free in a moment, and a claim costs as much for one as for a dozen.
                    self._stop.wait(_GATHER_SECONDS)
                return bool(self._held)
            health.waits()
            self._offsets.tell_in_time()
            self._stop.wait(_GATHER_SECONDS)
            # Not when outcomes wait for the database: then nobody else takes them either.
            if not crowded and monotonic_seconds() - self._held_since > self._hold_seconds:
                self._let_go()
            elif monotonic_seconds() - since > _PAUSE_AFTER_SECONDS:
                self._pause()
                polled = self._poll(0)
                self._held = self._held + polled
        return False

    def _let_go(self) -> None:
        """Leave what is held to the sweep, and fetch what has come since."""
        self._offsets.note(self._held)
        self._held = []
        polled = self._poll(0)
        self._held = polled + self._more(_MOST - len(polled))
        self._held_since = monotonic_seconds()

    def _poll(self, seconds: float) -> list[Message]:
        message = self._consumer.poll(seconds)
        self._nothing_came = message is None or message.error() is not None
        return [] if message is None else good([message], self._topic)

    def _more(self, most: int) -> list[Message]:
        return good(self._consumer.consume(most, 0), self._topic) if most > 0 else []

    def _claim(self, messages: Sequence[Message], once: int) -> int:
        started, left = self._taking.take(messages, once=once)
        self._offsets.note(messages)
        # Should this process die, what is left of the committed ones is the sweep's.
        self._held = [*left, *self._held]
        if left:
            # What may begin only once is not claimed ahead, and must not wait for ever: the next slot that there is, is
            # its; unless that takes longer than a message waits here at all.
            self._slots.hold_ahead(self._lane, self._hold_seconds)
            self._stop.wait(_GATHER_SECONDS)
        return started

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
        self._offsets.own(partition.partition for partition in partitions)

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._offsets.tell()  # while they are ours
        self._drop(partitions)

    def _on_lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._drop(partitions)

    def _drop(self, partitions: Sequence[TopicPartition]) -> None:
        gone = {partition.partition for partition in partitions}
        self._offsets.drop(gone)
        self._held = [message for message in self._held if message.partition() not in gone]
