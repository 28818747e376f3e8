"""Hold back the runs of topics whose executors cannot take them yet, and deal out what may leave.

A topic is held back once its next rows exceed its window (`staging.py`). From then on reads pass over it, as over a
paused topic. Its rows are staged as addresses, and the chosen ones are fetched. When none is staged, the reader reads
the topic again, from the last second on.

Rows may be committed after their time. Once a second a topic is staged from 15 s before its marks on, for a twentieth
of the time at most. A walk in the background finds rows that are later still (`outbox_scans.py`).

Everything here is in memory. A failure of a topic forgets it: the reader's marks of the instant at which the topic was
held back are still there, so all its rows are read again.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import cast
from uuid import UUID

from tidewheel.clock import monotonic_seconds
from tidewheel.ids import read_uuid
from tidewheel.kafka.topics import DEFAULT_QUEUE
from tidewheel.outbox import SLICES, OutboxLane, slice_lane_of
from tidewheel.postgres import pg_binary as arrays
from tidewheel.postgres.database_clock import read_now
from tidewheel.postgres.low_water import LATE_COMMIT, FullScanPacer
from tidewheel.postgres.session import Conn, Session
from tidewheel.postgres.statements import Statements
from tidewheel.process.metrics import metrics
from tidewheel.relay.outbox_rows import (
    BEGINNING,
    ID,
    KEY,
    PAIR_INDEX,
    PUBLISH_AT,
    TOPIC,
    VALUE,
    DueRow,
    OutboxPosition,
    Pair,
    addresses_of,
    ids_of,
    position_columns,
)
from tidewheel.relay.outbox_scans import HeldLane, HeldReport, HeldWalk
from tidewheel.relay.staging import Staging, Window, address_of, id_of, position_in
from tidewheel.runs import Move, sources

_SQL = Statements("tidewheel.relay")
_COUNT_EXECUTORS = _SQL["count_executors"]
_FIND_UNCLAIMED = _SQL["find_unclaimed"]
_STAGE_OUTBOX = _SQL["stage_outbox"]
_FETCH_OUTBOX = _SQL["fetch_outbox"]
_READ_WEIGHTS = _SQL["read_weights"]

_MOST_STAGED = 1_000_000  # runs of a topic; then it is not read on until half of them have left
_SCAN_ROWS = 10_000  # staged in one round, all slices together
_SCAN_SECONDS = 0.025  # between two scans that found all there was
_SCAN_SECONDS_PER_ROW = 0.000_02  # added: a scan passes each row of the last second once more
_FULL_SCAN_SECONDS = 1.0  # between two scans while the window has no room and runs are staged
_LATE = timedelta(seconds=15)  # the idle limit of Tidewheel's own transactions
_FETCH_ROWS = 500
_WEIGHTS_SECONDS = 2.0
_RUN_ID_LENGTH = 36
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)


@dataclass
class _Held:
    """A topic that is held back since a monotonic time.

    All rows up to the marks are staged or have left, except late ones. `recent` has the ids and times of rows beyond
    the marks of which that is true too, `passed` those that the marks have passed less than 15 s ago. The walk in the
    background goes on from `walk`, which is empty before it begins anew.
    """

    lane: OutboxLane
    began: float
    marks: dict[Pair, OutboxPosition] = field(default_factory=dict[Pair, OutboxPosition])
    staging: Staging = field(default_factory=Staging)
    recent: defaultdict[Pair, dict[bytes, datetime]] = field(default_factory=lambda: defaultdict(dict))
    passed: defaultdict[Pair, dict[bytes, datetime]] = field(default_factory=lambda: defaultdict(dict))
    late_scans: FullScanPacer = field(default_factory=lambda: FullScanPacer(at_once=False))
    complete: bool = False  # the last scan found all rows that were due
    full: bool = False
    scanned_at: float = 0.0
    walk: dict[Pair, OutboxPosition] = field(default_factory=dict[Pair, OutboxPosition])
    walked_at: float = 0.0  # when a part of it was started

    def move(self, pair: Pair, mark: OutboxPosition) -> None:
        """Set the mark of a pair; a lower one if the clock was set back."""
        recent, passed = self.recent[pair], self.passed[pair]
        if mark < self.marks[pair]:
            recent |= passed
            passed.clear()
        at = mark[0]
        for row_id in [row_id for row_id, time in recent.items() if time < at]:
            passed[row_id] = recent.pop(row_id)
        self.marks[pair] = mark

    def forget_old(self) -> None:
        """Forget the ids of rows that no scan meets any more."""
        for pair, passed in self.passed.items():
            since = self.marks[pair][0] - _LATE
            self.passed[pair] = {row_id: at for row_id, at in passed.items() if at >= since}


class HoldBack:
    """The windows of all topics of runs, and the topics that are held back."""

    def __init__(self, session: Session, url: str, runs_prefix: str, member_id: UUID | None = None) -> None:
        """Hold no topic of this prefix back yet; report in this relay's row, if any."""
        self._session, self._prefix = session, runs_prefix
        self._report = None if member_id is None else HeldReport(session, member_id)
        self._walk = HeldWalk(url)
        self._windows: dict[str, Window] = {}
        self._held: dict[str, _Held] = {}
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
            if not held.complete and not held.full and not self._stands(topic, held)
            else self._windows[topic].seconds_to_count(now, held=True)
            for topic, held in self._held.items()
        )

    def _stands(self, topic: str, held: _Held) -> bool:
        """Return True if no run can leave, however many are due."""
        return bool(held.staging) and not self._windows[topic].room()

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
            window = self._windows.get(topic)
            if window is None:
                window = self._windows[topic] = Window(now)
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

    def hold(self, topic: str, lane: OutboxLane) -> None:
        """Hold a topic back."""
        self._held[topic] = _Held(lane, monotonic_seconds())

    def stage_from(self, topic: str, marks: Mapping[Pair, OutboxPosition]) -> None:
        """Stage the rows of a held topic from these positions on, in slices that are new to it."""
        held = self._held[topic]
        for pair, mark in marks.items():
            if pair[1] == held.lane and pair not in held.marks:
                held.marks[pair] = mark
                held.complete = False

    def take(
        self, pairs: Sequence[Pair], paused: Collection[str], in_flight: Sequence[DueRow], most: int, room: int
    ) -> tuple[list[DueRow], dict[str, dict[Pair, OutboxPosition]]]:
        """Stage what is due, and fetch the rows that leave now.

        They are `most` of each topic, and have `room` bytes together. Rows in flight were read before. Also return the
        topics that are held back no longer, with the positions from which they are read.
        """
        rows: list[DueRow] = []
        ended: dict[str, dict[Pair, OutboxPosition]] = {}
        numbers = {slice_lane_of(*pair): number for number, pair in enumerate(pairs, start=1)}
        self._take_late(in_flight)
        for topic, held in self._held.items():
            if topic in paused or not held.marks.keys() <= set(pairs):
                continue
            window, now = self._windows[topic], monotonic_seconds()
            if window.seconds_to_count(now, held=True) == 0.0:
                self._count(topic)
            if now - held.scanned_at >= self._scan_pause(topic, held):
                self._scan(topic, held, in_flight)
            wanted = min(window.room(), most)
            while wanted > 0 and room > 0 and held.staging:
                chosen = held.staging.take(min(wanted, _FETCH_ROWS), self._weights, room=room)
                wanted -= len(chosen)
                found = self._fetch(chosen, numbers)
                room -= sum(len(row[VALUE] or b"") for row in found)
                _record(window, found, now)
                rows.extend(found)
            self._observe(topic, len(held.staging))
            if held.complete and not held.staging and window.room():
                ended[topic] = held.marks
        for topic in ended:
            del self._held[topic]
        return rows, ended

    def _scan_pause(self, topic: str, held: _Held) -> float:
        """Return the seconds from the end of a scan to the next one."""
        if self._stands(topic, held):
            return _FULL_SCAN_SECONDS
        return _SCAN_SECONDS + _SCAN_SECONDS_PER_ROW * sum(map(len, held.recent.values())) if held.complete else 0.0

    def report(self) -> None:
        """Report what is held back, from time to time and when nothing is any more."""
        if self._report is not None and self._report.is_due(held.began for held in self._held.values()):
            self._report.write([self._held_lane(topic, held) for topic, held in self._held.items()])

    def _held_lane(self, topic: str, held: _Held) -> HeldLane:
        queue, lane = self._queue_and_lane(topic)
        return HeldLane(queue, lane, held.began, held.staging.counts(), held.complete and not held.full)

    def close(self) -> None:
        """Close the connection of the walk."""
        self._walk.close()

    def _take_late(self, in_flight: Sequence[DueRow]) -> None:
        """Stage the late rows that the walk has found, and let it go on."""
        part = self._walk.take()
        held = self._held.get(part.topic) if part is not None else None
        if part is not None and held is not None:
            sent = {row[ID] for row in in_flight}
            for pair in part.rows.keys() & held.marks.keys():
                rows, mark = part.rows[pair], held.marks[pair]
                held.staging.add(
                    (tenant, priority, entry)
                    for tenant, priority, entry in rows
                    if entry not in held.staging and id_of(entry) not in sent and _position_of(entry) <= mark
                )
            held.walk = {
                pair: last
                for pair, rows in part.rows.items()
                if len(rows) == part.limit and (last := _position_of(rows[-1][2])) < held.marks.get(pair, BEGINNING)
            }
        staged = [topic for topic, each in self._held.items() if each.marks]
        if staged and self._walk.is_due():
            topic = min(staged, key=lambda each: self._held[each].walked_at)
            held = self._held[topic]
            held.walked_at = monotonic_seconds()
            self._walk.start(topic, held.walk or dict.fromkeys(held.marks, BEGINNING))

    def _scan(self, topic: str, held: _Held, in_flight: Sequence[DueRow]) -> None:
        """Stage rows that are due, and move the marks."""
        held.full = len(held.staging) >= (_MOST_STAGED // 2 if held.full else _MOST_STAGED)
        if held.full:
            return
        pairs = [*held.marks]
        limit = max(_SCAN_ROWS // max(len(pairs), 1), 1)
        found, now = self._stage(topic, held, in_flight, limit)
        safe = now - LATE_COMMIT, 0
        for pair in pairs:
            entries = found[pair]
            held.move(pair, min(_position_of(entries[-1]), safe) if len(entries) == limit else safe)
        held.complete = all(len(entries) < limit for entries in found.values())
        if held.late_scans.start():
            held.forget_old()
            self._stage(topic, held, in_flight, limit, late=_LATE)
            held.late_scans.finish()
        held.scanned_at = monotonic_seconds()

    def _stage(
        self, topic: str, held: _Held, in_flight: Sequence[DueRow], limit: int, *, late: timedelta = timedelta()
    ) -> tuple[Mapping[Pair, list[bytes]], datetime]:
        """Stage due rows behind the marks; return their entries, and the database's clock before the read."""
        marks = {pair: (at - late, 0) for pair, (at, _) in held.marks.items()} if late else held.marks
        pairs = [*marks]
        known = chain(held.recent.values(), held.passed.values() if late else ())
        columns = {
            **position_columns(pairs, marks),
            "topic": topic,
            "row_limit": limit,
            "known": ids_of([*chain.from_iterable(known), *(row[ID] for row in in_flight)]),
        }
        with self._session.transaction() as connection:
            now = read_now(connection)
            rows = connection.execute(_STAGE_OUTBOX, columns, binary=True, prepare=False).fetchall()
        staged = cast("list[tuple[int, str, int, bytes]]", rows)
        held.staging.add((tenant, priority, entry) for _, tenant, priority, entry in staged)
        entries: defaultdict[Pair, list[bytes]] = defaultdict(list)
        for position, _, _, entry in staged:
            pair = pairs[position - 1]
            entries[pair].append(entry)
            held.recent[pair][id_of(entry)] = _position_of(entry)[0]
        return entries, now

    def _fetch(self, chosen: Sequence[bytes], numbers: Mapping[int, int]) -> list[DueRow]:
        """Read chosen rows, in their order, without those that are gone. A scan finds those that were moved."""
        columns = {"ctids": addresses_of(map(address_of, chosen)), "ids": ids_of(map(id_of, chosen))}
        with self._session.transaction() as connection:
            found = connection.execute(_FETCH_OUTBOX, columns, binary=True, prepare=False).fetchall()
        by_id = {row[ID]: row for row in cast("list[DueRow]", found)}
        rows = [row for entry in chosen if (row := by_id.get(id_of(entry))) is not None]
        return [(numbers[row[PAIR_INDEX]], *row[1:]) for row in rows if row[PAIR_INDEX] in numbers]

    def _count(self, topic: str) -> None:
        """Count the published runs of a topic that no executor has claimed."""
        window, held, now = self._windows[topic], topic in self._held, monotonic_seconds()
        queue, _ = self._queue_and_lane(topic)
        with self._session.transaction() as connection:
            executors = connection.execute(_COUNT_EXECUTORS, {"queue": queue}, binary=True).fetchall()
            found = cast("list[tuple[list[str], int]]", executors)
            handlers = {name for names, _ in found for name in names}
            waiting, ended = _find_unclaimed(connection, window, sorted(handlers) if found else None)
            if held and now - self._weights_at >= _WEIGHTS_SECONDS:
                weights = connection.execute(_READ_WEIGHTS, binary=True).fetchall()
                self._weights, self._weights_at = dict(cast("list[tuple[str, int]]", weights)), now
        slots, share = sum(number for _, number in found), len(self._slices) / SLICES
        window.counted(waiting, len(found), now, share=share, held=held, slots=slots, ended=ended)

    def _observe(self, topic: str, staged: int) -> None:
        queue, lane = self._queue_and_lane(topic)
        metrics.set("outbox_held", staged, queue, lane)
        metrics.set("outbox_window", self._windows[topic].size, queue, lane)

    def _queue_and_lane(self, topic: str) -> tuple[str, str]:
        queue, _, lane = topic.removeprefix(self._prefix).rpartition(".")
        return queue or DEFAULT_QUEUE, lane


def _find_unclaimed(connection: Conn, window: Window, handlers: list[str] | None) -> tuple[list[bytes], int]:
    """Return the recorded runs that an executor could still claim by message, and how many are over."""
    keys = {run_id: key for key in window.unclaimed if (run_id := _run_id_of(key)) is not None}
    if not keys:
        return [], len(window.unclaimed)
    columns = {"run_ids": arrays.uuids(keys), "sources": sources(Move.CLAIM), "handlers": handlers}
    found = connection.execute(_FIND_UNCLAIMED, columns, binary=True).fetchall()
    waiting = [
        key
        for run_id, publish_at, can_be_claimed in cast("list[tuple[UUID, datetime, bool]]", found)
        if can_be_claimed and publish_at <= window.unclaimed[key := keys[run_id]].publish_at
    ]
    return waiting, len(window.unclaimed) - len(found)


def _run_id_of(key: bytes) -> UUID | None:
    """Return the run that a key names; None for a damaged key, whose row is published as any other."""
    try:
        return read_uuid(key.decode())
    except ValueError:
        return None


def _record(window: Window, rows: Sequence[DueRow], now: float) -> None:
    """Record rows that leave in the window of their topic."""
    sample = [
        (key, row[PUBLISH_AT])
        for row in rows[:: window.stride]
        if (key := row[KEY]) is not None and len(key) == _RUN_ID_LENGTH
    ]
    window.publish(sample, now, runs=len(rows))


def _position_of(entry: bytes) -> OutboxPosition:
    microseconds, row_id = position_in(entry)
    return _EPOCH + timedelta(microseconds=microseconds), row_id
