"""The relay: read due rows, produce them, await their acknowledgement, delete them.

No transaction is open while the relay waits for Kafka. A crash between acknowledgement and delete repeats messages and
never loses one. During a backlog three batches are in flight: one is read, one is sent, one is deleted.
"""

import socket
import threading
import time
from collections import defaultdict
from contextlib import suppress
from datetime import datetime

import psycopg

from tidewheel.clock import monotonic_seconds
from tidewheel.errors import Unavailable
from tidewheel.kafka.topics import Topics
from tidewheel.membership import Membership
from tidewheel.message_signatures import MessageKeys
from tidewheel.outbox import OutboxLane
from tidewheel.postgres.notify import Channel, Listener
from tidewheel.process import tracing
from tidewheel.process.clock_skew import ClockSkew
from tidewheel.process.failpoint import failpoint
from tidewheel.process.metrics import metrics
from tidewheel.process.service import Shutdown, run_loop
from tidewheel.relay.delete import FAILED_SECONDS, Deleter, ExpiredReplies
from tidewheel.relay.due_rows import PAIR_INDEX, PUBLISH_AT, Batch, DueRow, Published, counts_of
from tidewheel.relay.group_lag import GroupLag
from tidewheel.relay.publish import Publisher
from tidewheel.relay.read import Reader
from tidewheel.relay.slices import Slices
from tidewheel.settings.services import RelaySettings

# A batch costs as much as hundreds of its rows, above all for the broker. So the relay lingers after a batch that is
# not full, in proportion to its rows. The first rows after a pause leave at once, and thousands a second leave in tens
# of batches.
_LINGER_SECONDS_PER_ROW = 0.000_2
_MIN_ROUND_SECONDS = 0.010  # from one read that finds rows to the next. Source: docs/adr/0004
_MAX_LINGER_SECONDS = 0.050  # reached from some thousand rows a second on. Source: docs/adr/0004


class Relay:
    """One relay process."""

    def __init__(self, settings: RelaySettings, url: str, kafka: dict[str, str], stop: Shutdown) -> None:
        self._stop = stop
        self._poll = settings.relay_poll.total_seconds()
        self._skew = ClockSkew(settings.max_clock_skew)
        self._membership = Membership(
            url, role="relay", name=socket.gethostname(), timeout=settings.member_timeout, skew=self._skew
        )
        self._slices = Slices(url, self._membership, timeout=settings.member_timeout)
        self._wake = threading.Event()
        self._listener = Listener(url, "tidewheel-relay-listen", (Channel.OUTBOX,), self._wake)
        self._keys = MessageKeys()
        self._runs_prefix = f"{settings.topic_prefix}.runs."
        self._publisher = Publisher(
            kafka,
            timeout_ms=int(settings.delivery_timeout.total_seconds() * 1000),
            batch=settings.producer_batch,
            runs_prefix=self._runs_prefix,
            keys=self._keys,
            stop=stop,
            keep_alive=self._slices.keep,
        )
        fair_prefix = self._runs_prefix if settings.fairness == "on" else None
        self._reader = Reader(url, settings.relay_batch, fair_prefix=fair_prefix, member_id=self._membership.member_id)
        self._deleter = Deleter(url)
        topics = Topics(settings.topic_prefix)
        self._expired_replies = ExpiredReplies(url, topics.replies_of(""))
        self._group_lag = GroupLag(kafka, topics)
        self._sent: Batch | None = None
        self._sent_at = 0  # nanoseconds since 1970
        self._sleeps_until = 0.0

    def run(self) -> None:
        """Publish until a shutdown is requested."""
        self.enter()
        try:
            run_loop(self._stop, "relay", self.step, wake=self._wake)
        finally:
            self.leave()

    def enter(self) -> None:
        """Join the relays."""
        self._membership.start()

    def leave(self) -> None:
        """Leave the relays, so that the others take the slices over."""
        with suppress(Unavailable, psycopg.Error):
            self._await_acks()
        self._deleter.close()
        self._expired_replies.close()
        self._publisher.close()
        self._slices.release()
        self._membership.leave()
        self._listener.close()
        self._reader.close()

    def step(self) -> float:
        """Read one batch, await the acknowledgement of the one before, and delete the one before that.

        Returns:
            The seconds until a row is due.

        Raises:
            Unavailable: PostgreSQL or Kafka does not answer. No row was deleted without an acknowledgement.
        """
        try:
            return self._step()
        except BaseException:
            self._reader.reset()
            raise

    def _step(self) -> float:
        held = self._slices.held()
        self._group_lag.step(measures=0 in held)
        self._expired_replies.step(held, self._publisher.failing_topics(FAILED_SECONDS))
        slept, self._sleeps_until = self._slept_through(), 0.0
        if held and slept and self._reader.held_seconds() != 0.0:
            return self._until_due(held)
        if not held:
            self._reader.drop_slices()
        began = monotonic_seconds()
        self._reader.refresh_keys(self._keys)
        batch = self._reader.read(held, self._publisher.paused_topics(), self._in_flight()) if held else None
        if batch:
            failpoint("relay.read")
        self._await_acks()
        if batch:
            # The broker receives it while the one before is deleted and the next one is read.
            self._sent_at = time.time_ns()
            self._publisher.send(batch.rows)
            self._sent = batch
            if not batch.full:
                self._linger(batch, began)
            return 0.0
        return self._until_due(held)

    def _await_acks(self) -> None:
        """Wait until the sent batch is acknowledged, and start to delete it."""
        self._await_delete()
        batch, self._sent = self._sent, None
        if batch is None:
            return
        try:
            published = self._publisher.await_acks()
        except BaseException:
            self._reader.acknowledged(batch, Published())
            raise
        _observe(batch, published, self._skew.database_now())
        if tracing.spans is not None:
            from tidewheel.relay.trace_sent import trace_sent

            trace_sent(tracing.spans, published.acknowledged, self._runs_prefix, self._sent_at)
        self._reader.acknowledged(batch, published)
        self._deleter.start(batch, published)

    def _await_delete(self) -> None:
        """Wait for the deletion in flight."""
        deleted = self._deleter.wait()
        if deleted is not None:
            _count(*deleted)

    def _linger(self, batch: Batch, began: float) -> None:
        """Await the acknowledgement of a batch that is not full, delete it, then let rows gather."""
        self._await_acks()
        linger = min(len(batch.rows) * _LINGER_SECONDS_PER_ROW, _MAX_LINGER_SECONDS)
        held_seconds = self._reader.held_seconds()
        if held_seconds is not None:
            linger = min(linger, held_seconds)  # or the window opens later than executors empty it
        until = max(monotonic_seconds() + linger, began + _MIN_ROUND_SECONDS)
        self._await_delete()
        self._stop.wait(max(until - monotonic_seconds(), 0.0))

    def _in_flight(self) -> list[DueRow]:
        return [*(self._sent.rows if self._sent else ()), *self._deleter.in_flight()]

    def _slept_through(self) -> bool:
        """Return True if the whole sleep has passed without a notification, so that a quick poll is enough."""
        return 0.0 < self._sleeps_until <= monotonic_seconds()

    def _until_due(self, held: list[int]) -> float:
        """Return the seconds until the earliest row is due."""
        self._await_delete()
        if not held:
            return self._poll
        now, earliest = self._reader.earliest(held, self._publisher.paused_topics(), all_read=True)
        seconds = (min(earliest.values()) - now).total_seconds() if earliest else self._poll
        left = min(max(seconds, 0.0), self._poll)
        held_seconds = self._reader.held_seconds()
        if held_seconds is not None:
            left = min(left, max(held_seconds, _MIN_ROUND_SECONDS))
        if left == self._poll:
            self._sleeps_until = monotonic_seconds() + self._poll
        return left


def _observe(batch: Batch, published: Published, now: datetime) -> None:
    """Observe how late the broker has acknowledged the rows of a batch, lane by lane."""
    late: defaultdict[OutboxLane, list[float]] = defaultdict(list)
    lanes = [lane for _, lane in batch.pairs]
    for row in published.acknowledged:
        late[lanes[row[PAIR_INDEX] - 1]].append((now - row[PUBLISH_AT]).total_seconds())
    for lane, seconds in late.items():
        metrics.observe("lateness_seconds", seconds, "event" if lane is OutboxLane.EVENTS else "acknowledged", lane)


def _count(batch: Batch, published: Published) -> None:
    all_of_them = len(published.acknowledged) == len(batch.rows)
    for (_, name), count in (batch.counts if all_of_them else counts_of(published.acknowledged, batch.pairs)).items():
        metrics.count("outbox_published", count, name)
    if published.refused:
        metrics.count("outbox_quarantined", len(published.refused))
    if published.postponed:
        metrics.count("outbox_postponed", len(published.postponed))
