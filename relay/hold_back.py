"""Hold back the runs of topics whose executors cannot take them yet, and deal out what may leave.

A topic is held back once its next rows exceed its window (`staging.py`). From then on reads pass over it, as over a
paused topic, and its rows leave as the window has room (`held_topic.py`). When none waits, the reader reads the topic
again, from the last second on.

Everything here is in memory. A failure of a topic forgets it: the reader's marks of the instant at which the topic was
held back are still there, so all its rows are read again.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import cast
from uuid import UUID

from tidewheel.clock import monotonic_seconds
from tidewheel.ids import read_uuid
from tidewheel.kafka.topics import DEFAULT_QUEUE
from tidewheel.outbox import SLICES, OutboxLane
from tidewheel.postgres import pg_binary as arrays
from tidewheel.postgres.session import Conn, Session
from tidewheel.postgres.statements import Statements
from tidewheel.process.metrics import metrics
from tidewheel.relay.held_topic import HeldTopic
from tidewheel.relay.outbox_rows import (
    BEGINNING,
    KEY,
    PUBLISH_AT,
    TOPIC,
    VALUE,
    DueRow,
    OutboxPosition,
    Pair,
)
from tidewheel.relay.outbox_scans import HeldLane, HeldReport, HeldWalk
from tidewheel.relay.staging import Window
from tidewheel.runs import Move, RunState, sources

_SQL = Statements("tidewheel.relay")
_COUNT_EXECUTORS = _SQL["count_executors"]
_FIND_UNCLAIMED = _SQL["find_unclaimed"]
_READ_WEIGHTS = _SQL["read_weights"]

_WEIGHTS_SECONDS = 2.0
_RUN_ID_LENGTH = 36


class HoldBack:
    """The windows of all topics of runs, and the topics that are held back."""

    def __init__(self, session: Session, url: str, runs_prefix: str, member_id: UUID | None = None) -> None:
        self._session, self._prefix = session, runs_prefix
        self._report = None if member_id is None else HeldReport(session, member_id)
        self._walk = HeldWalk(url)
        self._windows: dict[str, Window] = {}
        self._held: dict[str, HeldTopic] = {}
        self._weights: Mapping[str, int] = {}
        self._weights_at = float("-inf")
        self._slices: frozenset[int] = frozenset()

    def topics(self) -> list[str]:
        """Return the topics that are held back: reads pass over them."""
        return [*self._held]

    def forget(self, topics: Iterable[str]) -> None:
        """Forget what is staged of these topics: the reader reads it again."""
        for topic in self._held.keys() & topics:
            self._observe(topic, 0)
            del self._held[topic]

    def set_slices(self, held: Sequence[int]) -> None:
        """Set the slices of this relay. Where they change, what is staged is read again."""
        slices = frozenset(held)
        if slices != self._slices:
            self._slices = slices
            self.forget(self.topics())

    def seconds_left(self) -> float | None:
        """Return the seconds until held topics need a look; None if no topic is held back."""
        if not self._held:
            return None
        now = monotonic_seconds()
        return min(
            0.0
            if held.unread and not self._stands(topic, held)
            else self._windows[topic].seconds_to_count(now, held=True)
            for topic, held in self._held.items()
        )

    def _stands(self, topic: str, held: HeldTopic) -> bool:
        """Return True if no run can leave, however many are due."""
        return held.waiting and not self._windows[topic].room()

    def exceeding(self, rows: Sequence[DueRow]) -> set[str]:
        """Record rows that leave now; return the topics whose rows must not, as they exceed the window."""
        by_topic: defaultdict[str, list[DueRow]] = defaultdict(list)
        for row in rows:
            by_topic[row[TOPIC]].append(row)
        now = monotonic_seconds()
        exceeding: set[str] = set()
        for topic, of_topic in by_topic.items():
            if not topic.startswith(self._prefix):
                continue
            window = self._window(topic, now)
            counts = window.seconds_to_count(now, held=False) == 0.0
            if counts:
                self._count(topic)
            if window.takes(len(of_topic), now):
                _record(window, of_topic, now)
                continue
            if not counts:
                self._count(topic)
            if len(of_topic) <= window.room():
                _record(window, of_topic, now)
            else:
                exceeding.add(topic)
        return exceeding

    def early_room(self, topic: str, rows: int, *, slots: int) -> int:
        """Return how many of so many rows may leave before they are due, for executors with so many slots."""
        now = monotonic_seconds()
        window = self._window(topic, now)
        most = int(slots * len(self._slices) / SLICES)
        counts = window.seconds_to_count(now, held=False) == 0.0
        if counts:
            self._count(topic)
        room = window.takes_early(rows, most, now)
        if room < rows and not counts:
            self._count(topic)
            room = window.takes_early(rows, most, now)
        return room

    def record_early(self, topic: str, rows: Sequence[DueRow], clock: datetime) -> None:
        """Record rows that leave before they are due, by the database's clock."""
        _record(self._windows[topic], rows, monotonic_seconds(), clock)

    def _window(self, topic: str, now: float) -> Window:
        window = self._windows.get(topic)
        if window is None:
            window = self._windows[topic] = Window(now)
        return window

    def hold(self, topic: str, lane: OutboxLane) -> None:
        """Hold a topic back."""
        self._held[topic] = HeldTopic(self._session, topic, lane)

    def start_at(self, topic: str, marks: Mapping[Pair, OutboxPosition]) -> None:
        """Read a held topic from these positions on, in slices that are new to it."""
        for pair, mark in marks.items():
            self._held[topic].start_at(pair, mark)

    def take(
        self, pairs: Sequence[Pair], paused: Collection[str], in_flight: Sequence[DueRow], most: int, room: int
    ) -> tuple[list[DueRow], dict[str, Mapping[Pair, OutboxPosition]]]:
        """Return the rows that leave now: `most` of each topic, with `room` bytes together.

        Rows in flight were read before. Also return the topics that are held back no longer, with the positions from
        which they are read.
        """
        rows: list[DueRow] = []
        ended: dict[str, Mapping[Pair, OutboxPosition]] = {}
        self._walk_on(in_flight)
        for topic, held in self._held.items():
            if topic in paused or not held.marks.keys() <= set(pairs):
                continue
            window, now = self._windows[topic], monotonic_seconds()
            if window.seconds_to_count(now, held=True) == 0.0:
                self._count(topic)
            held.scan(in_flight, stands=self._stands(topic, held))
            found = held.take(min(window.room(), most), self._weights, pairs, in_flight, room)
            room -= sum(len(row[VALUE] or b"") for row in found)
            _record(window, found, now)
            rows.extend(found)
            self._observe(topic, len(held))
            if not held.waiting and not held.unread and window.room():
                ended[topic] = held.left_at()
        for topic in ended:
            del self._held[topic]
        return rows, ended

    def report(self) -> None:
        """Report what is held back, from time to time and when nothing is any more."""
        if self._report is not None and self._report.is_due(held.began for held in self._held.values()):
            self._report.write([self._held_lane(topic, held) for topic, held in self._held.items()])

    def _held_lane(self, topic: str, held: HeldTopic) -> HeldLane:
        queue, lane = self._queue_and_lane(topic)
        counts, complete = held.counts()
        return HeldLane(queue, lane, held.began, counts, complete)

    def close(self) -> None:
        """Close the connection of the walk."""
        self._walk.close()

    def _walk_on(self, in_flight: Sequence[DueRow]) -> None:
        """Stage the late rows that the walk has found, and start its next part."""
        part = self._walk.take()
        if part is not None and part.topic in self._held:
            self._held[part.topic].add_late(part, in_flight)
        started = [topic for topic, each in self._held.items() if each.marks]
        if started and self._walk.is_due():
            topic = min(started, key=lambda each: self._held[each].walked_at)
            held = self._held[topic]
            held.walked_at = monotonic_seconds()
            self._walk.start(topic, held.walk or dict.fromkeys(held.marks, BEGINNING))

    def _count(self, topic: str) -> None:
        window, held, now = self._windows[topic], topic in self._held, monotonic_seconds()
        window.settle(now)
        queue, _ = self._queue_and_lane(topic)
        with self._session.transaction() as connection:
            executors = connection.execute(_COUNT_EXECUTORS, {"queue": queue}, binary=True).fetchall()
            found = cast("list[tuple[list[str], int]]", executors)
            handlers = {name for names, _ in found for name in names}
            waiting, running, ended = _find_unclaimed(connection, window, sorted(handlers) if found else None)
            if held and now - self._weights_at >= _WEIGHTS_SECONDS:
                weights = connection.execute(_READ_WEIGHTS, binary=True).fetchall()
                self._weights, self._weights_at = dict(cast("list[tuple[str, int]]", weights)), now
        slots, share = sum(number for _, number in found), len(self._slices) / SLICES
        window.counted(waiting, len(found), now, share=share, held=held, slots=slots, running=running, ended=ended)

    def _observe(self, topic: str, staged: int) -> None:
        queue, lane = self._queue_and_lane(topic)
        metrics.set("outbox_held", staged, queue, lane)
        metrics.set("outbox_window", self._windows[topic].size, queue, lane)

    def _queue_and_lane(self, topic: str) -> tuple[str, str]:
        queue, _, lane = topic.removeprefix(self._prefix).rpartition(".")
        return queue or DEFAULT_QUEUE, lane


def _find_unclaimed(connection: Conn, window: Window, handlers: list[str] | None) -> tuple[list[bytes], int, int]:
    """Return the recorded runs that can still be claimed by message, and how many run or are over."""
    keys = {run_id: key for key in window.unclaimed if (run_id := _run_id_of(key)) is not None}
    if not keys:
        return [], 0, len(window.unclaimed)
    columns = {
        "run_ids": arrays.uuids(keys),
        "sources": sources(Move.CLAIM),
        "handlers": handlers,
        "running": RunState.RUNNING,
    }
    rows = connection.execute(_FIND_UNCLAIMED, columns, binary=True).fetchall()
    found = cast("list[tuple[UUID, datetime, bool, bool]]", rows)
    waiting = [
        key
        for run_id, publish_at, can_be_claimed, _ in found
        if can_be_claimed and publish_at <= window.unclaimed[key := keys[run_id]].publish_at
    ]
    return waiting, sum(is_running for *_, is_running in found), len(window.unclaimed) - len(found)


def _run_id_of(key: bytes) -> UUID | None:
    """Return the run that a key names; None for a damaged key, whose row is published as any other."""
    try:
        return read_uuid(key.decode())
    except ValueError:
        return None


def _record(window: Window, rows: Sequence[DueRow], now: float, clock: datetime | None = None) -> None:
    """Record rows that leave now; with the database's clock, rows that are not due yet."""
    sample = [
        (key, row[PUBLISH_AT], now if clock is None else now + (row[PUBLISH_AT] - clock).total_seconds())
        for row in rows[:: window.stride if clock is None else window.early_stride]
        if (key := row[KEY]) is not None and len(key) == _RUN_ID_LENGTH
    ]
    window.publish(sample, now, runs=len(rows))
