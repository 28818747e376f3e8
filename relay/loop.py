"""The relay: read due rows, produce them, await their acknowledgement, delete them.

No transaction is open while the relay waits for Kafka. A crash between acknowledgement and delete repeats messages and
never loses one. During a backlog three batches are in flight: one is read, one is sent, one is deleted.

A row of `relay_slices` names the member that publishes the slice, and holds while that member's heartbeats are recent.
So it keeps one relay at a time on a slice, and so the first copies of a run's events in order. A role without rights on
the table takes no slice. A relay whose own heartbeat is overdue holds none. Messages that a frozen relay publishes when
it wakes are repeats, which receivers drop by id.

Relays of 0.1 know the advisory lock of a slice alone. So this one takes that too, unless a stranger has it.
"""

import logging
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime, timedelta
from typing import cast

import psycopg

from tidewheel.clock import monotonic_seconds
from tidewheel.errors import Unavailable
from tidewheel.kafka.topics import Topics
from tidewheel.membership import Membership, rendezvous
from tidewheel.message_signatures import MessageKeys
from tidewheel.outbox import SLICES, OutboxLane
from tidewheel.postgres.notify import Channel, Listener
from tidewheel.postgres.session import Conn, connect
from tidewheel.postgres.statements import Statements
from tidewheel.process import tracing
from tidewheel.process.clock_skew import ClockSkew
from tidewheel.process.failpoint import failpoint
from tidewheel.process.metrics import metrics
from tidewheel.process.service import Shutdown, run_loop
from tidewheel.relay.ahead import Ahead
from tidewheel.relay.group_lag import GroupLag
from tidewheel.relay.outbox_rows import (
    FAILED_SECONDS,
    PAIR_INDEX,
    PUBLISH_AT,
    Batch,
    Deleter,
    DueRow,
    ExpiredReplies,
    Published,
    counts_of,
)
from tidewheel.relay.publish import Publisher
from tidewheel.relay.read import Reader
from tidewheel.settings.services import RelaySettings

_LOG = logging.getLogger("tidewheel.relay")

_SQL = Statements("tidewheel.relay")

_REFRESH_SECONDS = 1.0
_IDLE_TIMEOUT = "15s"  # a frozen relay keeps no lock that one of 0.1 needs; the relay uses the session every second

# A batch costs as much as hundreds of its rows, above all for the broker. So the relay lingers after a batch that is
# not full, in proportion to its rows. The first rows after a pause leave at once, and thousands a second leave in tens
# of batches.
_LINGER_SECONDS_PER_ROW = 0.000_2
_MIN_ROUND_SECONDS = 0.010  # from one read that finds rows to the next. Source: docs/adr/0004
_MAX_LINGER_SECONDS = 0.050  # reached from some thousand rows a second on. Source: docs/adr/0004


class Slices:
    """The slices that this process publishes."""

    def __init__(self, url: str, membership: Membership, *, timeout: timedelta) -> None:
        self._url, self._membership, self._timeout = url, membership, timeout
        self._connection: Conn | None = None
        self._held: list[int] = []
        self._locked: set[int] = set()
        self._next_refresh = 0.0

    def held(self) -> list[int]:
        """Return the slices that this relay holds now; raise Unavailable if it can hold none."""
        if self._membership.is_overdue():
            self.release()
            raise Unavailable("this relay's heartbeat is overdue: another relay may take its slices")
        if monotonic_seconds() >= self._next_refresh:
            try:
                self._refresh()
            except psycopg.Error as error:
                self.release()
                raise Unavailable(f"the session that holds the slices was lost: {error}") from error
            self._next_refresh = monotonic_seconds() + _REFRESH_SECONDS
        return self._held

    def keep(self) -> None:
        """Keep the slices during a wait. Never raises."""
        with suppress(Unavailable):
            self.held()

    def release(self) -> None:
        """Publish no slice any more. Never raises."""
        connection, self._connection, self._held = self._connection, None, []
        self._locked.clear()
        self._next_refresh = 0.0
        if connection is not None:
            connection.close()

    def _refresh(self) -> None:
        if self._connection is None or self._connection.closed:
            self.release()
            self._connection = connect(self._url, "tidewheel-relay-slices", autocommit=True)
            self._connection.execute("SELECT set_config('idle_session_timeout', %s, false)", [_IDLE_TIMEOUT])
        connection = self._connection
        taken = {cast("int", number) for (number,) in connection.execute(_SQL["find_slices"], self._of()).fetchall()}
        mine = rendezvous(SLICES, self._membership.live(), self._membership.member_id)
        kept = [number for number in self._held if number in mine and number in taken and self._excludes(number)]
        self._free(connection, taken.union(self._held).difference(mine))
        gained = [number for number in mine if number not in kept and self._take(connection, number)]
        held = sorted(kept + gained)
        if held != self._held:
            _LOG.info("this relay holds slices %s", held)
            metrics.set("slices_owned", len(held))
        self._held = held

    def _take(self, connection: Conn, number: int) -> bool:
        if not self._excludes(number):
            self._free(connection, [number])
            return False
        with connection.transaction():
            connection.execute(_SQL["lock_slice"], self._of(number))
            taken = connection.execute(_SQL["take_slice"], self._of(number)).rowcount == 1
        if not taken:
            self._free(connection, [number])
        return taken

    def _excludes(self, number: int) -> bool:
        """Keep relays of 0.1 from a slice; return False if one of them has it."""
        if number in self._locked or self._connection is None:
            return number in self._locked
        row = self._connection.execute(_SQL["try_lock_slice"], self._of(number)).fetchone()
        locked, excludes = cast("tuple[bool, bool]", row)
        if locked:
            self._locked.add(number)
        return excludes

    def _free(self, connection: Conn, numbers: Iterable[int]) -> None:
        for number in numbers:
            connection.execute(_SQL["release_slice"], self._of(number))
            if number in self._locked:
                connection.execute(_SQL["unlock_slice"], self._of(number))
                self._locked.remove(number)

    def _of(self, number: int | None = None) -> dict[str, object]:
        return {"slice": number, "member_id": self._membership.member_id, "timeout": self._timeout}


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
            runs_prefix=self._runs_prefix,
            keys=self._keys,
            stop=stop,
            keep_alive=self._slices.keep,
        )
        topics = Topics(settings.topic_prefix)
        fair_prefix = self._runs_prefix if settings.fairness == "on" else None
        self._reader = Reader(
            url,
            settings.relay_batch,
            fair_prefix=fair_prefix,
            member_id=self._membership.member_id,
            ahead=Ahead(topics, self._skew.database_reached),
        )
        self._deleter = Deleter(url)
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
    late: defaultdict[OutboxLane, list[float]] = defaultdict(list)
    lanes = [lane for _, lane in batch.pairs]
    for row in published.acknowledged:
        late[lanes[row[PAIR_INDEX] - 1]].append(max((now - row[PUBLISH_AT]).total_seconds(), 0.0))
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
