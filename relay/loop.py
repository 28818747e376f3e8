"""The relay: reads due rows, produces them, waits for proof, deletes them.

No transaction is open while it waits for Kafka. A crash between proof and delete repeats messages, never loses them.
"""

import socket
import threading
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import cast

import psycopg

from tidewheel.clock import monotonic_seconds
from tidewheel.db import Session
from tidewheel.errors import Unavailable
from tidewheel.failpoint import failpoint
from tidewheel.membership import Membership
from tidewheel.metrics import metrics
from tidewheel.outbox import OutboxClass
from tidewheel.relay.publish import DueRow, Published, Publisher
from tidewheel.relay.slices import Slices
from tidewheel.service import Stop, repeat
from tidewheel.settings import RelaySettings
from tidewheel.skew import Skew
from tidewheel.sql import Statements
from tidewheel.wakeup import Channel, Listener

_SQL = Statements("tidewheel.relay")
_READ_OUTBOX = _SQL["read_outbox"]
_PROBE_OUTBOX = _SQL["probe_outbox"]
_DELETE_OUTBOX = _SQL["delete_outbox"]
_SET_ROW_ASIDE = _SQL["set_row_aside"]

# Shares of a batch, in the order they are produced: a class that has less leaves nothing to the others, so the sum may
# exceed 1; what matters is that a flood of one class cannot take another's share.
_WEIGHTS = {OutboxClass.CRITICAL: 1.0, OutboxClass.STANDARD: 0.6, OutboxClass.EVENTS: 0.6, OutboxClass.BATCH: 0.2}

_BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)
# Rows of transactions that commit within a second of their clock reading lie behind this; later ones are found by the
# walk from the very start.
_LATE_COMMIT = timedelta(seconds=1)
_MOST_BYTES = 32 * 1024 * 1024  # of messages in one batch; two are in memory at a time
_WALK_SECONDS = 1.0
_WALK_SHARE = 20  # the walk takes at most a twentieth of the time, however many dead rows it meets


class Relay:
    """One relay process."""

    def __init__(self, settings: RelaySettings, url: str, kafka: dict[str, str], stop: Stop) -> None:
        self._settings, self._stop = settings, stop
        # Rows are deleted by their addresses: cheap, but the planner takes a small table as a reason to read all of it.
        self._session = Session(url, "tidewheel-relay", options="-c enable_seqscan=off")
        self._membership = Membership(
            url,
            role="relay",
            name=socket.gethostname(),
            timeout=settings.member_timeout,
            skew=Skew(settings.max_clock_skew),
        )
        self._slices = Slices(url, self._membership)
        self._wake = threading.Event()
        self._listener = Listener(url, "tidewheel-relay-listen", (Channel.OUTBOX,), self._wake)
        timeout_ms = int(settings.delivery_timeout.total_seconds() * 1000)
        self._publisher = Publisher(
            kafka,
            timeout_ms=timeout_ms,
            batch=settings.producer_batch,
            runs_prefix=f"{settings.topic_prefix}.runs.",
            stop=stop,
            meanwhile=self._slices.keep,
        )
        self._marks: dict[tuple[int, str], datetime] = {}
        self._under_way: list[DueRow] = []
        self._next_walk = 0.0

    def run(self) -> None:
        """Publish until asked to stop."""
        self.enter()
        try:
            repeat(self._stop, "relay", self.step, wake=self._wake)
        finally:
            self.leave()

    def enter(self) -> None:
        """Become one of the relays."""
        self._membership.start()

    def leave(self) -> None:
        """Let the others have the slices."""
        if self._under_way:
            with suppress(Unavailable, psycopg.Error):
                self._finish(self._under_way, self._publisher.prove())
        self._publisher.close()
        self._slices.release()
        self._membership.leave()
        self._listener.close()
        self._session.close()

    def step(self) -> float:
        """One batch read, and the one before it proven and deleted; returns how long nothing is due, in seconds.

        Raises:
            Unavailable: PostgreSQL or Kafka does not answer; nothing was deleted that was not proven.
        """
        poll = self._settings.relay_poll.total_seconds()
        held = self._slices.held()
        rows = self._read(held, self._under_way) if held else []
        if rows:
            failpoint("relay.read")
        under_way, self._under_way = self._under_way, []
        published = self._publisher.prove() if under_way else Published()
        # The next batch is on its way to the broker while this one is deleted.
        if rows:
            self._publisher.send(rows)
            self._under_way = rows
        if under_way:
            self._finish(under_way, published)
            return 0.0
        return 0.0 if rows else self._pause(held, poll)

    def _finish(self, rows: Sequence[DueRow], published: Published) -> None:
        failpoint("relay.acknowledged")
        self._delete(published)
        failpoint("relay.deleted")
        self._move_marks(rows, published)
        for name, count in _counts(published.proven).items():
            metrics.count("outbox_published", count, name)

    def _read(self, held: Sequence[int], under_way: Sequence[DueRow]) -> list[DueRow]:
        started = monotonic_seconds()
        walk = started >= self._next_walk
        pairs = [(number, name) for name in _WEIGHTS for number in held]
        columns = {
            "slices": [number for number, _ in pairs],
            "classes": [name for _, name in pairs],
            "marks": [_BEGINNING if walk else self._marks.get(pair, _BEGINNING) for pair in pairs],
            "limits": [max(1, int(self._settings.relay_batch * _WEIGHTS[name] / len(held))) for _, name in pairs],
            "parked": self._publisher.parked(),
            "under_way": [row.id for row in under_way],
            "most_bytes": _MOST_BYTES,
        }
        with self._session.transaction() as connection:
            # Tuples straight into the row: this is the relay's hottest loop.
            rows = [DueRow(*row) for row in connection.execute(_READ_OUTBOX, columns, binary=True)]  # type: ignore[arg-type]
        if walk:
            self._next_walk = started + max(_WALK_SECONDS, _WALK_SHARE * (monotonic_seconds() - started))
        return rows

    def _pause(self, held: Sequence[int], poll: float) -> float:
        if not held:
            return poll
        pairs = [(number, name) for name in _WEIGHTS for number in held]
        columns = {
            "slices": [number for number, _ in pairs],
            "classes": [name for _, name in pairs],
            "marks": [self._marks.get(pair, _BEGINNING) for pair in pairs],
            "parked": self._publisher.parked(),
        }
        with self._session.transaction() as connection:
            rows = connection.execute(_PROBE_OUTBOX, columns, binary=True).fetchall()
        now = cast("datetime", rows[0][2])
        earliest: dict[str, datetime] = {}
        for name, at, _ in rows:
            if isinstance(at, datetime):
                earliest[str(name)] = min(at, earliest.get(str(name), at))
        for name in _WEIGHTS:
            age = now - earliest[name] if name in earliest else timedelta(0)
            metrics.set("outbox_oldest_seconds", max(age.total_seconds(), 0.0), name)
        if not earliest:
            return poll
        return min(max((min(earliest.values()) - now).total_seconds(), 0.0), poll)

    def _delete(self, published: Published) -> None:
        gone = [*published.proven, *(row for row, _ in published.refused)]
        if not gone:
            return
        with self._session.transaction() as connection:
            for row, error in published.refused:
                aside = {"topic": row.topic, "key": row.key, "value": row.value, "headers": row.headers, "error": error}
                connection.execute(_SET_ROW_ASIDE, aside)
                metrics.count("outbox_set_aside")
            connection.execute(_DELETE_OUTBOX, {"places": [row.place for row in gone], "ids": [row.id for row in gone]})

    def _move_marks(self, rows: Sequence[DueRow], published: Published) -> None:
        done = {row.id for row in published.proven} | {row.id for row, _ in published.refused}
        left = {(row.slice, row.outbox_class) for row in rows if row.id not in done}
        for row in rows:
            pair = (row.slice, row.outbox_class)
            if pair not in left:
                self._marks[pair] = max(self._marks.get(pair, _BEGINNING), row.publish_at - _LATE_COMMIT)


def _counts(rows: Sequence[DueRow]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for row in rows:
        counts[row.outbox_class] = counts.get(row.outbox_class, 0) + 1
    return counts
