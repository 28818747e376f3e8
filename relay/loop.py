"""The relay: reads due rows, produces them, waits for proof, deletes them.

No transaction is open while it waits for Kafka. A crash between proof and delete repeats messages, never loses them.
While there is a backlog three batches are under way: one is read, one is with the broker, one is being deleted.
"""

import socket
import threading
from contextlib import suppress

import psycopg

from tidewheel.clock import monotonic_seconds
from tidewheel.errors import Unavailable
from tidewheel.membership import Membership
from tidewheel.outbox import OutboxLane
from tidewheel.postgres.notify import Channel, Listener
from tidewheel.process.clock_skew import ClockSkew
from tidewheel.process.failpoint import failpoint
from tidewheel.process.metrics import metrics
from tidewheel.process.service import Shutdown, run_loop
from tidewheel.relay.delete import Deleter
from tidewheel.relay.due_rows import Batch, DueRow, Published, counts_of
from tidewheel.relay.publish import Publisher
from tidewheel.relay.read import Reader
from tidewheel.relay.slices import Slices
from tidewheel.settings import RelaySettings

# A batch costs as much as hundreds of its rows, above all the broker. So when nothing waits behind it, the next one is
# left to gather: longer the more came, so that single rows leave at once, and thousands a second in tens of batches.
_GATHER_SECONDS_A_ROW = 0.000_2
_LONGEST_GATHER_SECONDS = 0.050  # reached from some thousand rows a second on. Source: docs/adr/0004
_LOOK_SECONDS = 1.0  # how old the metrics may be while there is always something to do


class Relay:
    """One relay process."""

    def __init__(self, settings: RelaySettings, url: str, kafka: dict[str, str], stop: Shutdown) -> None:
        self._stop = stop
        self._poll = settings.relay_poll.total_seconds()
        self._membership = Membership(
            url,
            role="relay",
            name=socket.gethostname(),
            timeout=settings.member_timeout,
            skew=ClockSkew(settings.max_clock_skew),
        )
        self._slices = Slices(url, self._membership)
        self._wake = threading.Event()
        self._listener = Listener(url, "tidewheel-relay-listen", (Channel.OUTBOX,), self._wake)
        self._publisher = Publisher(
            kafka,
            timeout_ms=int(settings.delivery_timeout.total_seconds() * 1000),
            batch=settings.producer_batch,
            runs_prefix=f"{settings.topic_prefix}.runs.",
            stop=stop,
            meanwhile=self._slices.keep,
        )
        self._reader = Reader(url, settings.relay_batch)
        self._deleter = Deleter(url)
        self._sent: Batch | None = None
        self._sleeps_until = 0.0
        self._next_look = 0.0

    def run(self) -> None:
        """Publish until asked to stop."""
        self.enter()
        try:
            run_loop(self._stop, "relay", self.step, wake=self._wake)
        finally:
            self.leave()

    def enter(self) -> None:
        """Become one of the relays."""
        self._membership.start()

    def leave(self) -> None:
        """Let the others have the slices."""
        with suppress(Unavailable, psycopg.Error):
            self._prove()
        self._deleter.close()
        self._publisher.close()
        self._slices.release()
        self._membership.leave()
        self._listener.close()
        self._reader.close()

    def step(self) -> float:
        """One batch read, the one before it proven, and the one before that deleted.

        Returns:
            How long nothing is due, in seconds.

        Raises:
            Unavailable: PostgreSQL or Kafka does not answer; nothing was deleted that was not proven.
        """
        try:
            return self._step()
        except BaseException:
            self._reader.forget()
            raise

    def _step(self) -> float:
        held = self._slices.held()
        slept, self._sleeps_until = self._slept_through(), 0.0
        if held and slept:
            return self._pause(held)
        if not held:
            self._reader.leave()
        batch = self._reader.read(held, self._publisher.parked(), self._under_way()) if held else None
        if batch:
            failpoint("relay.read")
        self._prove()
        if batch:
            # It is on its way to the broker while the one before is deleted and the next one is read.
            self._publisher.send(batch.rows)
            self._sent = batch
            if batch.full or self._gather(batch):
                self._tell_ages(held)
                return 0.0
        return self._pause(held)

    def _prove(self) -> None:
        """Wait for the proof of what was sent, and let it be deleted."""
        self._settle()
        batch, self._sent = self._sent, None
        if batch is None:
            return
        try:
            published = self._publisher.prove()
        except BaseException:
            self._reader.proven(batch, Published())
            raise
        self._reader.proven(batch, published)
        self._deleter.take(batch, published)

    def _settle(self) -> None:
        """Wait for the deletion that is under way."""
        settled = self._deleter.settle()
        if settled is not None:
            _count(*settled)

    def _gather(self, batch: Batch) -> bool:
        """Prove at once what nothing waits behind; returns whether more is to be expected by now."""
        self._prove()
        seconds = len(batch.rows) * _GATHER_SECONDS_A_ROW
        self._stop.wait(min(seconds, _LONGEST_GATHER_SECONDS))
        return seconds >= _LONGEST_GATHER_SECONDS

    def _under_way(self) -> list[DueRow]:
        return [*(self._sent.rows if self._sent else ()), *self._deleter.under_way()]

    def _slept_through(self) -> bool:
        """Whether the whole pause has passed since nothing was due: nobody woke us, so that a look is enough."""
        return 0.0 < self._sleeps_until <= monotonic_seconds()

    def _pause(self, held: list[int]) -> float:
        """How long nothing is due, by a look at the earliest rows."""
        self._settle()
        if not held:
            return self._poll
        left = self._look(held, all_read=True)
        if left == self._poll:
            self._sleeps_until = monotonic_seconds() + self._poll
        return left

    def _tell_ages(self, held: list[int]) -> None:
        """For the metrics, while there is no pause."""
        if monotonic_seconds() >= self._next_look:
            self._look(held)

    def _look(self, held: list[int], *, all_read: bool = False) -> float:
        now, earliest = self._reader.earliest(held, self._publisher.parked(), all_read=all_read)
        for name in OutboxLane:
            age = now - earliest.get(name, now)
            metrics.set("outbox_oldest_seconds", max(age.total_seconds(), 0.0), name)
        self._next_look = monotonic_seconds() + _LOOK_SECONDS
        left = (min(earliest.values()) - now).total_seconds() if earliest else self._poll
        return min(max(left, 0.0), self._poll)


def _count(batch: Batch, published: Published) -> None:
    all_of_them = len(published.proven) == len(batch.rows)
    for (_, name), count in (batch.counts if all_of_them else counts_of(published.proven, batch.pairs)).items():
        metrics.count("outbox_published", count, name)
    if published.refused:
        metrics.count("outbox_quarantined", len(published.refused))
