"""Consume one lane in a consumer group: fetch messages, claim their runs, then commit the offsets.

An offset moves past messages that were claimed, refused or left to the sweep. It never moves before the claim is
committed, and never waits for the work: a run that takes hours blocks no partition. `offsets.py` commits them. A full
executor leaves its fetched messages to the sweep as soon as the sweep of an executor with a free slot may claim them:
kept longer, they would be claimed elsewhere before a slot came free.

During a backlog the next messages are fetched and decoded while a claim is in progress on a thread of its own. One
after the other, neither this process nor PostgreSQL would be busy. The claims of a lane still follow one another.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial

from confluent_kafka import Consumer, KafkaException, TopicPartition

from tidewheel.clock import monotonic_seconds
from tidewheel.errors import Unavailable
from tidewheel.executor.early import EarlyMessages
from tidewheel.executor.offsets import Offsets
from tidewheel.executor.run_messages import BatchClaimer, ClaimResult, FetchedMessage, without_errors
from tidewheel.executor.slots import Slots
from tidewheel.kafka.clients import RUNS_QUEUED, consume_batch, leave_group
from tidewheel.process.health import health
from tidewheel.process.service import Backoff, Shutdown
from tidewheel.runs import Lane

_LOG = logging.getLogger("tidewheel.executor")

_POLL_SECONDS = 0.2
_FULL_SECONDS = 0.5  # between two checks while no slot is free
_PAUSE_AFTER_SECONDS = 10.0  # if the sweep comes less often: the group requires polls, and a pause allows empty ones
_LINGER_SECONDS = 0.002
_MIN_ROUND_SECONDS = 0.010  # between two claims without a backlog: one costs as much as dozens of its runs
# Where messages come early, also by the runs of the first of the two: no relay has gathered what is due now.
_ROUND_SECONDS_PER_RUN, _MAX_ROUND_SECONDS = 0.000_4, 0.050
_HALF_SECONDS = 0.02  # during a backlog: the queued attempts are worked off in about this time
_MAX_CLAIMS = 1000  # claims in one transaction; of 200 each costs PostgreSQL 6 us more
_BURST_CLAIMS = 100  # in one transaction, which a flow of some thousand runs a second does not reach
_BURST_SECONDS = 0.1  # from the end of such a claim on, in which the next one follows if the burst lasts


@dataclass(slots=True)
class _PendingClaim:
    """A claim in progress; its messages are of partitions that are still assigned."""

    batch: list[FetchedMessage]
    taken: int
    result: Callable[[], ClaimResult]


class LaneConsumer:
    """The thread that consumes one topic; a message waits here for a slot up to `max_wait`."""

    def __init__(
        self,
        consumer: Consumer,
        topic: str,
        lane: Lane,
        *,
        claimer: BatchClaimer,
        slots: Slots,
        max_wait: timedelta,
        overloaded: Callable[[], bool],
        database_now: Callable[[], datetime],
        stop: Shutdown,
    ) -> None:
        self._max_wait_seconds = max_wait.total_seconds()
        self._consumer, self._topic, self._lane = consumer, topic, lane
        self._claimer, self._slots, self._overloaded, self._stop = claimer, slots, overloaded, stop
        self._fetched: list[FetchedMessage] = []
        self._fetched_since = 0.0  # when the oldest of them was fetched
        self._pending: _PendingClaim | None = None
        self._claiming = ThreadPoolExecutor(1, thread_name_prefix=f"claim-{lane}")
        self._last_claim_failed = False
        self._claim_started, self._round_seconds = 0.0, _MIN_ROUND_SECONDS
        self._early = EarlyMessages(database_now)
        self._offsets = Offsets(consumer, topic, self._early.first_offsets)
        self._paused = False
        self._last_poll_empty, self._has_backlog = True, False
        self._burst_until = 0.0
        self._thread = threading.Thread(target=self._run, name=f"consume-{lane}", daemon=True)

    def start(self) -> None:
        """Subscribe and start the thread."""
        self._consumer.subscribe(
            [self._topic], on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
        )
        self._thread.start()

    @property
    def idle(self) -> bool:
        """True if the last poll was empty and no message waits for a slot or a claim."""
        return self._last_poll_empty and not self._fetched and self._pending is None

    @property
    def in_burst(self) -> bool:
        """True if many runs are claimed at once, or were a moment ago."""
        pending = self._pending
        return monotonic_seconds() < self._burst_until or (pending is not None and pending.taken >= _BURST_CLAIMS)

    def join(self) -> None:
        """Wait until it has left its group."""
        self._thread.join(timeout=30)

    def _run(self) -> None:
        backoff = Backoff(self._stop, f"consuming {self._topic}")
        while not self._stop.requested():
            health.report(f"consuming {self._topic}")
            try:
                self._poll_cycle()
            except (Unavailable, KafkaException) as error:
                # Messages that were fetched and not claimed are kept and tried again; the sweep may be faster.
                backoff.wait(error)
                continue
            except Exception as error:  # noqa: BLE001 - a lane that stops in silence is worse than any error
                backoff.wait(error, unexpected=True)
                continue
            if not self._last_claim_failed:
                backoff.reset()
        health.remove_loop()
        self._leave_group()

    def _leave_group(self) -> None:
        self._offsets.commit()  # in case the claim takes longer than the executor waits for this thread
        try:
            self._finish_claim()
        except Exception as error:  # noqa: BLE001 - for any fault: its runs are in the table, for other executors
            _LOG.info("the last claim on %s failed: %s", self._topic, error)
        self._burst_until = 0.0
        self._claiming.shutdown()
        self._offsets.commit()
        leave_group(self._consumer)
        self._claimer.close()

    def _poll_cycle(self) -> None:
        self._offsets.commit_if_due()
        if not self._fetched:
            self._has_backlog = self._pending is not None
            self._fetched = self._poll(_POLL_SECONDS if self._pending is None else 0)
            self._fetched_since = monotonic_seconds()
            if self._fetched and not self._has_backlog:
                pause = self._round_seconds if len(self._early) else _MIN_ROUND_SECONDS
                self._stop.wait(max(self._claim_started + pause - self._fetched_since, 0.0))
        if not self._fetched:
            self._finish_claim()
            self._last_claim_failed = False  # the messages of a failed claim belong to another member now
            return
        if not self._wait_for_slots():
            return
        # Fetch first, then take slots: slots taken for messages that may not arrive are lost to the other lanes.
        limit = min(self._slots.free_overcommit(self._lane), _MAX_CLAIMS)
        more = self._consume(limit - len(self._fetched))
        self._fetched = self._fetched + more
        self._has_backlog = len(self._fetched) >= limit
        self._finish_claim()
        ends = [end for end, (_, run) in enumerate(self._fetched, start=1) if run is not None]
        if not ends:
            # These take no slots: a flood of them would keep the sweep from all.
            self._offsets.note([message for message, _ in self._fetched])
            self._fetched = []
            return
        taken, real = self._slots.take_overcommit(self._lane, min(len(ends), _MAX_CLAIMS))
        if taken:
            self._start_claim(len(self._fetched) if taken == len(ends) else ends[taken - 1], taken, real)

    def _wait_for_slots(self) -> bool:
        """Wait until a slot is free; keep polling meanwhile, as the group protocol requires."""
        since = monotonic_seconds()
        while not self._stop.requested():
            if not self._slots.free_overcommit(self._lane):
                self._finish_claim()  # some of the slots taken for it may be released
            overloaded = self._overloaded()
            if not overloaded and self._slots.wait_free_overcommit(
                self._lane, min(_FULL_SECONDS, self._max_wait_seconds)
            ):
                self._resume()
                if self._has_backlog and self._lane is not Lane.CRITICAL:
                    self._slots.wait_half_free(self._lane, _HALF_SECONDS)
                if self._slots.is_scarce(self._lane):
                    # More slots come free in a moment, and a claim costs as much for one run as for a dozen.
                    self._stop.wait(_LINGER_SECONDS)
                return bool(self._fetched)
            health.report_waiting()
            self._offsets.commit_if_due()
            self._stop.wait(_LINGER_SECONDS)
            # Not when outcomes wait for the database: then no other executor claims these runs either.
            if not overloaded and monotonic_seconds() - self._fetched_since > self._max_wait_seconds:
                self._leave_to_sweep()
            elif monotonic_seconds() - since > _PAUSE_AFTER_SECONDS:
                self._pause()
                polled = self._poll(0)
                self._fetched = self._fetched + polled
        return False

    def _leave_to_sweep(self) -> None:
        """Leave the fetched messages to the sweep, and fetch those that have arrived since."""
        self._finish_claim()  # an offset must not move past a claim in progress
        self._offsets.note([message for message, _ in self._fetched])
        self._fetched = []
        self._fetched = self._poll(0)
        self._fetched_since = monotonic_seconds()
        more = self._consume(_MAX_CLAIMS - len(self._fetched))
        self._fetched = self._fetched + more

    def _poll(self, seconds: float) -> list[FetchedMessage]:
        seconds = self._early.seconds_left(seconds)
        if self._early.full:
            self._stop.wait(seconds)
            return self._early.exchange(())
        message = self._consumer.poll(seconds)
        self._last_poll_empty = message is None or message.error() is not None
        found = [] if message is None else self._offsets.step_over([message])
        kept = len(self._early)
        due = self._early.exchange(self._claimer.decode(without_errors(found, self._topic)))
        if len(self._early) > kept:
            due += self._consume(_MAX_CLAIMS)  # more of them: each alone would cost a cycle
        return due

    def _consume(self, limit: int) -> list[FetchedMessage]:
        held = [each.message for each in self._fetched]
        found = self._offsets.step_over(consume_batch(self._consumer, limit, held, queued=RUNS_QUEUED))
        return self._early.exchange(self._claimer.decode(without_errors(found, self._topic)))

    def _start_claim(self, end: int, taken: int, real: int) -> None:
        self._claim_started = monotonic_seconds()
        self._round_seconds = min(max(taken * _ROUND_SECONDS_PER_RUN, _MIN_ROUND_SECONDS), _MAX_ROUND_SECONDS)
        batch = self._fetched[:end]
        claim = partial(self._claimer.claim, batch, real=real)
        self._pending = _PendingClaim(batch, taken, claim)
        self._fetched = self._fetched[end:]
        # A claim after a failed one is waited for: only its end shows that claims work again.
        if self._has_backlog and not self._last_claim_failed:
            self._pending.result = self._claiming.submit(claim).result
        else:
            self._finish_claim()

    def _finish_claim(self) -> None:
        pending = self._pending
        if pending is None:
            return
        started = 0
        try:
            started, left = pending.result()
        except BaseException:
            self._fetched, self._last_claim_failed = pending.batch + self._fetched, True
            raise
        else:
            left = self._keep_left(pending, left)
        finally:
            if pending.taken >= _BURST_CLAIMS:
                self._burst_until = monotonic_seconds() + _BURST_SECONDS
            self._pending = None  # not before: `idle` must find the messages in one of the two
            self._slots.release(self._lane, pending.taken - started)
        if left:
            # At-most-once runs get no overcommitted slot, and must not wait for ever. So the next existing slot is
            # theirs, unless that takes longer than a message may wait here.
            self._slots.suspend_overcommit(self._lane, self._max_wait_seconds)
            self._stop.wait(_LINGER_SECONDS)

    def _keep_left(self, pending: _PendingClaim, left: Sequence[FetchedMessage]) -> list[FetchedMessage]:
        """Note the offsets of a successful claim, and keep the messages it left; return these.

        If this process dies, the sweep finds the runs of committed messages. Messages of a partition that was revoked
        meanwhile belong to its next owner: kept here, they would set the group back if the partition returned.
        """
        self._last_claim_failed = False
        self._offsets.note([message for message, _ in pending.batch])
        ours = {id(message) for message, _ in pending.batch}
        kept = [each for each in left if id(each.message) in ours]
        self._fetched = kept + self._fetched
        return kept

    def _pause(self) -> None:
        self._consumer.pause(self._consumer.assignment())  # again: what is assigned again is not paused
        self._paused = True

    def _resume(self) -> None:
        if self._paused:
            self._consumer.resume(self._consumer.assignment())
            self._paused = False

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._offsets.step_over_killers(partitions)
        consumer.incremental_assign(partitions)
        if self._paused:
            consumer.pause(partitions)
        self._offsets.assign(partition.partition for partition in partitions)

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._offsets.commit()  # while they are still assigned
        self._drop(partitions)

    def _on_lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._drop(partitions)

    def _drop(self, partitions: Sequence[TopicPartition]) -> None:
        gone = {partition.partition for partition in partitions}
        self._offsets.drop(gone)
        self._early.drop(gone)
        self._fetched = [each for each in self._fetched if each.message.partition() not in gone]
        if self._pending is not None:
            self._pending.batch = [each for each in self._pending.batch if each.message.partition() not in gone]
