"""One lane of one queue: consumes its topic, claims what it can run, commits the offsets after the durable claim.

An offset moves past messages that were claimed, refused or left to the sweep, never before the claim is committed and
never waiting for the work: an hours-long run holds no partition. `offsets.py` tells the group of it. A full executor
lets go of what it has fetched as soon as the sweep of one with a free slot may take it: kept longer, it would only be
found taken when a slot comes free.

While there is plenty, the next messages are fetched and read as long as a claim is under way on a thread of its own: in
a row, the two keep neither this process nor PostgreSQL busy. Claims of a lane come one after another all the same.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

from confluent_kafka import Consumer, KafkaException, TopicPartition

from tidewheel.clock import monotonic_seconds
from tidewheel.errors import Unavailable
from tidewheel.executor.claim_batch import Fetched, Taken, Taking, good
from tidewheel.executor.offsets import Offsets
from tidewheel.executor.slots import Slots
from tidewheel.process.health import health
from tidewheel.process.service import Backoff, Shutdown
from tidewheel.runs import Lane

_LOG = logging.getLogger("tidewheel.executor")

_POLL_SECONDS = 0.2
_FULL_SECONDS = 0.5  # between two looks while there is no free slot
_PAUSE_AFTER_SECONDS = 10.0  # where the sweep is rarer: the group wants to be polled, and pausing is for that
_GATHER_SECONDS = 0.002
_HALF_SECONDS = 0.02  # while there is plenty: what is in the line is worked off in about this time
_MOST = 1000  # claims in one transaction; of 200 each costs PostgreSQL 6 us more


@dataclass(slots=True)
class _UnderWay:
    """A claim that is under way.

    Args:
        batch: What it is made of, of partitions that are still ours.
        taken: How many slots were taken for it.
        outcome: Waits for what became of it.
    """

    batch: list[Fetched]
    taken: int
    outcome: Callable[[], Taken]


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
        stop: Shutdown,
    ) -> None:
        self._hold_seconds = hold.total_seconds()
        self._consumer, self._topic, self._lane = consumer, topic, lane
        self._taking, self._slots, self._crowded, self._stop = taking, slots, crowded, stop
        self._held: list[Fetched] = []
        self._held_since = 0.0  # when the oldest of them was fetched
        self._under_way: _UnderWay | None = None
        self._claiming = ThreadPoolExecutor(1, thread_name_prefix=f"claim-{lane}")
        self._failing = False  # the last claim did
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
        """Whether nothing is fetched: the last look brought nothing, and nothing waits for a slot or a claim."""
        return self._nothing_came and not self._held and self._under_way is None

    @property
    def flooded(self) -> bool:
        """Whether more has come than could be claimed at once."""
        return self._plenty

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
                # What was fetched and not claimed is kept and tried again; the sweep may be quicker.
                backoff.wait(error)
                continue
            except Exception as error:  # noqa: BLE001 - see below
                # Whatever it is, a lane that goes deaf in silence is worse: it is told, and tried again.
                _LOG.exception("consuming %s failed", self._topic)
                backoff.wait(error)
                continue
            if not self._failing:
                backoff.reset()
        health.ends()
        self._end()

    def _end(self) -> None:
        """Leave the group, with what a claim under way has brought."""
        self._plenty = False
        self._offsets.tell()  # should that take longer than anybody waits for this thread
        try:
            self._settle()
        except Exception as error:  # noqa: BLE001 - whatever it is, its runs are in the table, for others
            _LOG.info("the last claim on %s: %s", self._topic, error)
        self._claiming.shutdown()
        self._offsets.tell()
        self._consumer.close()
        self._taking.close()

    def _round(self) -> None:
        self._offsets.tell_in_time()
        if not self._held:
            self._plenty = self._under_way is not None
            self._held = self._poll(_POLL_SECONDS if self._under_way is None else 0)
            self._held_since = monotonic_seconds()
        if not self._held:
            self._settle()
            self._failing = False  # what a claim failed for is somebody else's now
            return
        if not self._wait_for_slots():
            return
        # First fetched, then taken: slots held for messages that may not come are kept from the other lanes.
        wanted = min(self._slots.free_ahead(self._lane), _MOST)
        more = self._more(wanted - len(self._held))
        self._held = self._held + more
        self._plenty = len(self._held) >= wanted
        self._settle()
        taken, once = self._slots.take_ahead(self._lane, min(len(self._held), _MOST))
        if taken:
            self._claim(taken, once)

    def _wait_for_slots(self) -> bool:
        """Wait until a slot is free; keeps polling meanwhile, as the group protocol wants."""
        since = monotonic_seconds()
        while not self._stop.requested():
            if not self._slots.free_ahead(self._lane):
                self._settle()  # of what was taken for it some may come back
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
        self._settle()  # an offset must not move past what is under way
        self._offsets.note([message for message, _ in self._held])
        self._held = []
        self._held = self._poll(0)
        self._held_since = monotonic_seconds()
        more = self._more(_MOST - len(self._held))
        self._held = self._held + more

    def _poll(self, seconds: float) -> list[Fetched]:
        message = self._consumer.poll(seconds)
        self._nothing_came = message is None or message.error() is not None
        return [] if message is None else self._taking.read(good([message], self._topic))

    def _more(self, most: int) -> list[Fetched]:
        return self._taking.read(good(self._consumer.consume(most, 0), self._topic)) if most > 0 else []

    def _claim(self, taken: int, once: int) -> None:
        batch = self._held[:taken]
        claim = partial(self._taking.take, batch, once=once)
        self._under_way = _UnderWay(batch, taken, claim)
        self._held = self._held[taken:]
        # A claim after one that failed is waited for: only how it ends tells whether it works again.
        if self._plenty and not self._failing:
            self._under_way.outcome = self._claiming.submit(claim).result
        else:
            self._settle()

    def _settle(self) -> None:
        """Wait for the claim that is under way, if one is; what was not claimed is held again."""
        claim = self._under_way
        if claim is None:
            return
        started = 0
        try:
            started, left = claim.outcome()
        except BaseException:
            self._held, self._failing = claim.batch + self._held, True
            raise
        else:
            left = self._keep(claim, left)
        finally:
            self._under_way = None  # not before: whoever asks whether this lane is idle must see one of the two
            self._slots.give_back(self._lane, claim.taken - started)
        if left:
            # What may begin only once is not claimed ahead, and must not wait for ever: the next slot that there is, is
            # its; unless that takes longer than a message waits here at all.
            self._slots.hold_ahead(self._lane, self._hold_seconds)
            self._stop.wait(_GATHER_SECONDS)

    def _keep(self, claim: _UnderWay, left: Sequence[Fetched]) -> list[Fetched]:
        """Note a claim that went well, and hold what it left; returns that.

        Should this process die, what is left of the committed ones is the sweep's. What is left of a partition that was
        revoked meanwhile is its next owner's: held here, it would set the group back should the partition return.
        """
        self._failing = False
        self._offsets.note([message for message, _ in claim.batch])
        ours = {id(message) for message, _ in claim.batch}
        kept = [each for each in left if id(each.message) in ours]
        self._held = kept + self._held
        return kept

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
        self._held = [each for each in self._held if each.message.partition() not in gone]
        if self._under_way is not None:
            self._under_way.batch = [each for each in self._under_way.batch if each.message.partition() not in gone]
