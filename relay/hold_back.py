"""Hold back the runs of topics whose executors cannot take them yet, and deal out what may leave.

A topic is held back once its next rows exceed its window (`window.py`). From then on reads pass over it, as over a
paused topic. Its rows are staged as addresses (`staging.py`), and the chosen ones are fetched. When none is staged, the
reader reads the topic again, from the last second on.

Everything here is in memory. A failure of any kind forgets it: the reader's marks of the instant at which the topic was
held back are still there, so all its rows are read again.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import cast
from uuid import UUID

from tidewheel.clock import monotonic_seconds
from tidewheel.kafka.topics import DEFAULT_QUEUE
from tidewheel.outbox import SLICES, slice_lane_of
from tidewheel.postgres import pg_arrays as arrays
from tidewheel.postgres.database_clock import read_now
from tidewheel.postgres.low_water import LATE_COMMIT
from tidewheel.postgres.session import Conn, Session
from tidewheel.postgres.statements import Statements
from tidewheel.process.metrics import metrics
from tidewheel.relay.due_rows import (
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
from tidewheel.relay.staging import Staging, address_of, id_of, position_in
from tidewheel.relay.window import Window
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
_FETCH_ROWS = 500  # whose sizes are unknown until they are there
_WEIGHTS_SECONDS = 2.0
_RUN_ID_LENGTH = 36
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)


@dataclass
class _Held:
    """A topic that is held back.

    Args:
        marks: All rows up to these positions are staged or have left.
        recent: Ids of rows beyond the marks that are staged or have left, with their times.
        complete: True if the last scan found all rows that were due.
    """

    marks: dict[Pair, OutboxPosition]
    staging: Staging = field(default_factory=Staging)
    recent: dict[bytes, datetime] = field(default_factory=dict[bytes, datetime])
    complete: bool = False
    full: bool = False
    scanned_at: float = 0.0


class HoldBack:
    """The windows of all topics of runs, and the topics that are held back."""

    def __init__(self, session: Session, runs_prefix: str) -> None:
        self._session, self._prefix = session, runs_prefix
        self._windows: dict[str, Window] = {}
        self._held: dict[str, _Held] = {}
        self._weights: Mapping[str, int] = {}
        self._weights_at = float("-inf")
        self._slices: frozenset[int] = frozenset()

    def topics(self) -> list[str]:
        """Return the topics that are held back: reads pass over them."""
        return [*self._held]

    def forget(self) -> None:
        """Forget what is staged: the reader reads it again."""
        for topic in self._held:
            self._observe(topic, 0)
        self._held.clear()

    def set_slices(self, held: Sequence[int]) -> None:
        """Set the slices of this relay. Where they change, what is staged is read again."""
        slices = frozenset(held)
        if slices != self._slices:
            self._slices = slices
            self.forget()

    def seconds_left(self) -> float | None:
        """Return the seconds until held topics need a look; None if no topic is held back."""
        if not self._held:
            return None
        now = monotonic_seconds()
        return min(
            0.0 if not held.complete and not held.full else self._windows[topic].seconds_to_count(now, held=True)
            for topic, held in self._held.items()
        )

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
                window.publish(_runs(of_topic), now)
                continue
            if not counts:
                self._count(topic)
            if len(of_topic) <= window.room():
                window.publish(_runs(of_topic), now)
            else:
                exceeding.add(topic)
        return exceeding

    def hold(self, topic: str, lane: str, marks: Mapping[Pair, OutboxPosition]) -> None:
        """Hold a topic back. Its rows are staged from these positions on."""
        self._held[topic] = _Held({pair: mark for pair, mark in marks.items() if pair[1] == lane})

    def take(
        self, pairs: Sequence[Pair], paused: Collection[str], in_flight: Sequence[DueRow], most: int, room: int
    ) -> tuple[list[DueRow], dict[str, dict[Pair, OutboxPosition]]]:
        """Stage what is due, and fetch the rows that leave now.

        Args:
            pairs: The slices and lanes of the batch.
            paused: Topics from which nothing leaves.
            in_flight: Rows that were read before and may still be there.
            most: Rows of each topic.
            room: Bytes of all rows.

        Returns:
            The rows, and the topics that are held back no longer, with the positions from which they are read.
        """
        rows: list[DueRow] = []
        ended: dict[str, dict[Pair, OutboxPosition]] = {}
        numbers = {slice_lane_of(*pair): number for number, pair in enumerate(pairs, start=1)}
        for topic, held in self._held.items():
            if topic in paused or not held.marks.keys() <= set(pairs):
                continue
            window, now = self._windows[topic], monotonic_seconds()
            if window.seconds_to_count(now, held=True) == 0.0:
                self._count(topic)
            if not held.complete or now - held.scanned_at >= _SCAN_SECONDS:
                self._scan(topic, held, in_flight)
            wanted = min(window.room(), most)
            while wanted > 0 and room > 0 and held.staging:
                chosen = held.staging.take(min(wanted, _FETCH_ROWS), self._weights)
                wanted -= len(chosen)
                found = self._fetch(chosen, numbers)
                room -= sum(len(row[VALUE] or b"") for row in found)
                window.publish(_runs(found), now)
                rows.extend(found)
            self._observe(topic, len(held.staging))
            if held.complete and not held.staging and window.room():
                ended[topic] = held.marks
        for topic in ended:
            del self._held[topic]
        return rows, ended

    def _scan(self, topic: str, held: _Held, in_flight: Sequence[DueRow]) -> None:
        """Stage rows that are due, and move the marks."""
        held.full = len(held.staging) >= (_MOST_STAGED // 2 if held.full else _MOST_STAGED)
        if held.full:
            return
        pairs = [*held.marks]
        limit = max(_SCAN_ROWS // max(len(pairs), 1), 1)
        columns = {
            **position_columns(pairs, held.marks),
            "topic": topic,
            "row_limit": limit,
            "known": ids_of([*held.recent, *(row[ID] for row in in_flight)]),
        }
        with self._session.transaction() as connection:
            safe = read_now(connection) - LATE_COMMIT
            found = connection.execute(_STAGE_OUTBOX, columns, binary=True, prepare=False).fetchall()
        by_pair: defaultdict[int, list[bytes]] = defaultdict(list)
        staged = cast("list[tuple[int, str, int, bytes]]", found)
        held.staging.add((tenant, priority, entry) for _, tenant, priority, entry in staged)
        for position, _, _, entry in staged:
            by_pair[position].append(entry)
            held.recent[id_of(entry)] = _position_of(entry)[0]
        for position, pair in enumerate(pairs, start=1):
            entries = by_pair[position]
            last = _position_of(entries[-1]) if len(entries) == limit else (safe, 0)
            held.marks[pair] = max(held.marks[pair], min(last, (safe, 0)))
        oldest = min((mark for mark, _ in held.marks.values()), default=safe)
        held.recent = {row_id: at for row_id, at in held.recent.items() if at >= oldest}
        held.complete = all(len(entries) < limit for entries in by_pair.values())
        held.scanned_at = monotonic_seconds()

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
        queue = topic.removeprefix(self._prefix).rpartition(".")[0] or DEFAULT_QUEUE
        with self._session.transaction() as connection:
            executors = connection.execute(_COUNT_EXECUTORS, {"queue": queue}, binary=True).fetchall()
            handlers = {name for (names,) in cast("list[tuple[list[str]]]", executors) for name in names}
            waiting = _find_unclaimed(connection, window, sorted(handlers) if executors else None)
            if held and now - self._weights_at >= _WEIGHTS_SECONDS:
                self._weights = dict(
                    cast("list[tuple[str, int]]", connection.execute(_READ_WEIGHTS, binary=True).fetchall())
                )
                self._weights_at = now
        window.counted(waiting, len(executors), now, share=len(self._slices) / SLICES, held=held)

    def _observe(self, topic: str, staged: int) -> None:
        queue, _, lane = topic.removeprefix(self._prefix).rpartition(".")
        metrics.set("outbox_held", staged, queue or DEFAULT_QUEUE, lane)
        metrics.set("outbox_window", self._windows[topic].size, queue or DEFAULT_QUEUE, lane)


def _find_unclaimed(connection: Conn, window: Window, handlers: list[str] | None) -> list[bytes]:
    """Return the published runs that an executor could still claim by their messages."""
    if not window.unclaimed:
        return []
    columns = {
        "run_ids": arrays.uuids(UUID(run_id.decode()) for run_id in window.unclaimed),
        "sources": sources(Move.CLAIM),
        "handlers": handlers,
    }
    found = connection.execute(_FIND_UNCLAIMED, columns, binary=True).fetchall()
    return [
        key
        for run_id, publish_at in cast("list[tuple[UUID, datetime]]", found)
        if publish_at <= window.unclaimed[key := str(run_id).encode()].publish_at
    ]


def _runs(rows: Iterable[DueRow]) -> list[tuple[bytes, datetime]]:
    return [(key, row[PUBLISH_AT]) for row in rows if (key := row[KEY]) is not None and len(key) == _RUN_ID_LENGTH]


def _position_of(entry: bytes) -> OutboxPosition:
    microseconds, row_id = position_in(entry)
    return _EPOCH + timedelta(microseconds=microseconds), row_id
