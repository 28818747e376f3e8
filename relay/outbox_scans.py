"""Low-water marks, the scan for late rows, and the scan over rows that are held back.

A row that is due before the marks is late. Deleted rows stay in the index while any transaction in the database is
open, and a full scan meets all of them: 15 s for 4.5 million rows. While full scans are quick the reader makes them
itself. Slow ones run here, on their own thread and session, one slice and lane after another.

What is held back is reported to the sweep of executors, `tidewheel status` and `doctor`, if it lasts for half a second.
So a short burst costs no write.

A row may be committed minutes after its time. Reads pass over such topics, and scans look 15 s behind the marks. So a
row that is later still would wait until its topic is held back no longer. The walk goes over what lies before the
marks, some thousand rows at a time. Each pause is twenty times as long. `HoldBack` stages those rows that are neither
staged nor in flight. The walk also finds staged rows that a rewrite of the table has moved.

The walk has a thread and a session of its own: behind an old transaction it meets all deleted rows.
"""

import logging
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import cast
from uuid import UUID

import psycopg
from psycopg.types.json import Jsonb

from tidewheel.clock import monotonic_seconds
from tidewheel.errors import Unavailable
from tidewheel.postgres.database_clock import read_now
from tidewheel.postgres.low_water import LATE_COMMIT, FullScanPacer
from tidewheel.postgres.session import Session, is_time_limit
from tidewheel.postgres.session_kinds import BackgroundQuery
from tidewheel.postgres.statements import Statements
from tidewheel.relay.ahead import AHEAD
from tidewheel.relay.outbox_rows import (
    BEGINNING,
    MAX_BYTES,
    PAIR_INDEX,
    SESSION_OPTIONS,
    Batch,
    DueRow,
    OutboxPosition,
    Pair,
    RowRange,
    due_rows,
    end_columns,
    ids_of,
    position_columns,
    position_of,
)

_LOG = logging.getLogger("tidewheel.relay")

_SQL = Statements("tidewheel.relay")
_STAGE_OUTBOX = _SQL["stage_outbox"]

_PART_SECONDS = 2.0  # then the rows found so far are returned, and the scan goes on after it
_EVERY_SECONDS = 2.0
_BRIEF_SECONDS = 0.5
_LARGEST = 5  # tenants of a queue and lane that are named
_PART_ROWS = 20_000  # about 50 ms, on a thread of its own; a million rows take a minute


class OutboxMarks:
    """Marks of reads, of full scans, and of topics that are paused."""

    def __init__(self) -> None:
        # No row is due before this mark, except those in flight, late ones, and those of paused topics.
        self.read: dict[Pair, OutboxPosition] = {}
        # End of the scan under way. Lower where rows behind it are read again since the scan began.
        self.scanning: dict[Pair, OutboxPosition] = {}
        # End of the scans that are complete.
        self.scanned: dict[Pair, OutboxPosition] = {}
        # The read marks at the instant at which each topic was paused.
        self._paused: dict[str, dict[Pair, OutboxPosition]] = {}

    def set_pairs(self, pairs: Sequence[Pair]) -> list[Pair]:
        """Set the slices and lanes of this relay; return those without a mark."""
        for marks in (self.read, self.scanning):
            for pair in marks.keys() - pairs:
                del marks[pair]  # another relay reads it: its front may be far ahead when this relay gets it back
        return [pair for pair in pairs if pair not in self.read]

    def start_at(self, pair: Pair, mark: OutboxPosition) -> None:
        """Set the first mark of a pair: no row at all is due before it."""
        for marks in (self.read, self.scanned, *self._paused.values()):
            marks[pair] = mark

    def lower(self, pair: Pair, position: OutboxPosition) -> None:
        """Lower a pair's marks to this position, so that later rows are read again."""
        for marks in (self.read, self.scanning, self.scanned, *self._paused.values()):
            if position < marks.get(pair, BEGINNING):
                marks[pair] = position

    def reread(self, rows: Iterable[DueRow], pairs: Sequence[Pair]) -> None:
        """Lower the marks so that these rows are read again."""
        first: dict[Pair, DueRow] = {}
        for row in rows:
            first.setdefault(pairs[row[PAIR_INDEX] - 1], row)
        for pair, row in first.items():
            self.lower(pair, just_before(row))

    def set_paused(self, topics: Collection[str]) -> None:
        """Set the paused topics. Rows of a resumed topic are read again from where they were left."""
        for topic in self._paused.keys() - topics:
            for pair, position in self._paused.pop(topic).items():
                self.lower(pair, position)
        for topic in topics:
            if topic not in self._paused:
                self._paused[topic] = dict(self.read)

    def hold(
        self, topic: str, marks: Mapping[Pair, OutboxPosition], rows: Iterable[DueRow], pairs: Sequence[Pair]
    ) -> None:
        """Pause a topic whose rows were read and left, from these marks on."""
        self._paused[topic] = dict(marks)
        for row in rows:
            pair = pairs[row[PAIR_INDEX] - 1]
            self._paused[topic][pair] = min(just_before(row), self._paused[topic][pair])

    def paused_at(self, topic: str) -> Mapping[Pair, OutboxPosition]:
        """Return the marks of a paused topic: no row of it has left that lies behind them."""
        return self._paused[topic]

    def resume_at(self, topic: str, marks: Mapping[Pair, OutboxPosition]) -> None:
        """Resume a topic of which all rows up to these marks have left."""
        self._paused.pop(topic, None)
        for pair, position in marks.items():
            self.lower(pair, position)

    def reread_on_resume(self, topic: str, pair: Pair, row: DueRow) -> None:
        """Read this row of a paused topic again when the topic is resumed."""
        self._paused[topic][pair] = min(just_before(row), self._paused[topic][pair])

    def advance(self, batch: Batch, safe: datetime, *, back: Collection[Pair]) -> None:
        """Move the read marks behind a batch, as far as no earlier row can still be committed.

        A mark moves back only for the pairs in `back`: their scan was cut short.
        """
        for pair, (publish_at, row_id) in batch.last():
            mark = (publish_at, row_id) if publish_at <= safe else (max(safe, publish_at - AHEAD - LATE_COMMIT), 0)
            self.read[pair] = mark if pair in back else max(mark, self.read[pair])

    def set_empty(self, pair: Pair, safe: OutboxPosition) -> None:
        """Move the read mark of a pair up to `safe`: no row behind the mark is due."""
        self.read[pair] = safe


def just_before(row: DueRow) -> OutboxPosition:
    """Return the position just before a row's."""
    publish_at, row_id = position_of(row)
    return publish_at, row_id - 1


@dataclass(frozen=True, slots=True)
class ScanResult:
    """The result of one part of a scan: `more` if it goes on, `complete` if no part of it has failed."""

    rows: Mapping[Pair, Sequence[DueRow]]
    seconds: float
    more: bool
    complete: bool


class LateRowScan:
    """At most one scan at a time. The reader starts it and takes its results."""

    def __init__(self, url: str) -> None:
        self._session = Session(url, "tidewheel-relay-scan", options=SESSION_OPTIONS, autocommit=True)
        self._background = BackgroundQuery[tuple[ScanResult, RowRange]](self._session, "relay-scan")

    @property
    def active(self) -> bool:
        """True if a scan is under way, or has a result that was not taken yet."""
        return self._background.busy

    def start(self, row_range: RowRange) -> None:
        """Start a scan up to the marks. All results of the scan before must have been taken."""
        self._background.start(partial(self._find, row_range))

    def take(self) -> ScanResult | None:
        """Return the result of a finished part once, else None; start the next part if there is one."""
        taken = self._background.take()
        if taken is None:
            return None
        found, rest = taken
        if found.more:
            self._background.start(partial(self._find, rest, found))
        return found

    def close(self) -> None:
        """Cancel the scan under way."""
        self._background.close()

    def _find(self, row_range: RowRange, earlier: ScanResult | None = None) -> tuple[ScanResult, RowRange]:
        """Scan one limit of rows of each slice and lane; return the result and what is left to scan."""
        rows: dict[Pair, Sequence[DueRow]] = {}
        complete = earlier is None or earlier.complete
        rest = dict(row_range.upto)
        after = dict(row_range.after)
        room = MAX_BYTES
        began = monotonic_seconds()
        for pair in row_range.upto:
            if room <= 0 or self._background.closing or monotonic_seconds() - began > _PART_SECONDS:
                break
            try:
                with self._session.transaction() as connection:
                    found, room = due_rows(connection, [pair], row_range, room)
            except (Unavailable, psycopg.Error) as error:
                if not self._background.closing:
                    _LOG.warning(
                        "slice %d, %s: the scan for late rows failed; the relay repeats the scan later: %s",
                        *pair,
                        error,
                    )
                complete = False
                if not is_time_limit(error):
                    rest.clear()
                    break
                del rest[pair]
                continue
            if found:
                rows[pair], after[pair] = found, position_of(found[-1])
            if room > 0 and len(found) < row_range.limits[pair]:
                del rest[pair]
        seconds = monotonic_seconds() - began + (earlier.seconds if earlier else 0.0)
        return ScanResult(rows, seconds, bool(rest), complete), replace(row_range, after=after, upto=rest)


@dataclass(frozen=True, slots=True)
class HeldLane:
    """The runs of a queue and lane that are held back since a monotonic time."""

    queue: str
    lane: str
    began: float
    counts: Mapping[str, int]
    complete: bool  # else there may be more


class HeldReport:
    """The reports of one relay."""

    def __init__(self, session: Session, member_id: UUID) -> None:
        self._session, self._member_id = session, member_id
        self._reported = False
        self._next = 0.0

    def is_due(self, began: Iterable[float]) -> bool:
        """Return True if a report is to be written; `began` are the times at which topics were held back."""
        now = monotonic_seconds()
        return now >= self._next if any(_is_long(at, now) for at in began) else self._reported

    def write(self, lanes: list[HeldLane]) -> None:
        """Write what is held back."""
        began = monotonic_seconds()
        lanes = [lane for lane in lanes if _is_long(lane.began, began)]
        with self._session.transaction() as connection:
            now = read_now(connection)
            held = [_row(lane, now - timedelta(seconds=began - lane.began)) for lane in lanes]
            columns = {"held": Jsonb(held) if held else None, "member_id": self._member_id}
            connection.execute(_SQL["report_held"], columns)
        self._reported, self._next = bool(held), began + _EVERY_SECONDS


@dataclass(frozen=True, slots=True)
class WalkedPart:
    """Due rows of a topic by slice and lane; one with fewer rows than the limit has no further ones."""

    topic: str
    rows: Mapping[Pair, list[tuple[str, int, bytes]]]
    limit: int
    seconds: float


class HeldWalk:
    """At most one part of a walk at a time."""

    def __init__(self, url: str) -> None:
        self._session = Session(url, "tidewheel-relay-walk", options=SESSION_OPTIONS, autocommit=True)
        self._background = BackgroundQuery[WalkedPart](self._session, "relay-walk")
        self._pacer = FullScanPacer(at_once=False)

    def is_due(self) -> bool:
        """Return True if the next part is to be started."""
        return not self._background.busy and self._pacer.start()

    def start(self, topic: str, after: Mapping[Pair, OutboxPosition]) -> None:
        """Start a part: rows of a topic after these positions."""
        self._background.start(partial(self._find, topic, dict(after)))

    def take(self) -> WalkedPart | None:
        """Return a part that has ended, once."""
        part = self._background.take()
        if part is not None:
            self._pacer.record(part.seconds)
        return part

    def close(self) -> None:
        """Cancel the part under way, and close the connection."""
        self._background.close()

    def _find(self, topic: str, after: Mapping[Pair, OutboxPosition]) -> WalkedPart:
        pairs = [*after]
        limit = max(_PART_ROWS // len(pairs), 1)
        columns = {
            **position_columns(pairs, after),
            **end_columns(pairs, {}),
            "topic": topic,
            "tenant": None,
            "priority": None,
            "row_limit": limit,
            "known": ids_of(()),
        }
        began = monotonic_seconds()
        rows: defaultdict[Pair, list[tuple[str, int, bytes]]] = defaultdict(list)
        try:
            with self._session.transaction() as connection:
                found = connection.execute(_STAGE_OUTBOX, columns, binary=True, prepare=False).fetchall()
            for position, tenant, priority, entry in cast("list[tuple[int, str, int, bytes]]", found):
                rows[pairs[position - 1]].append((tenant, priority, entry))
        except (Unavailable, psycopg.Error) as error:
            if not self._background.closing:
                _LOG.warning(
                    "topic %s: the walk for late rows failed; the relay repeats the walk later: %s", topic, error
                )
        return WalkedPart(topic, rows, limit, monotonic_seconds() - began)


def _is_long(began: float, now: float) -> bool:
    return now - began >= _BRIEF_SECONDS


def _row(lane: HeldLane, since: datetime) -> dict[str, object]:
    largest = sorted(lane.counts, key=lambda tenant: (-lane.counts[tenant], tenant))[:_LARGEST]
    return {
        "queue": lane.queue,
        "lane": lane.lane,
        "since": since.isoformat(),
        "runs": sum(lane.counts.values()),
        "complete": lane.complete,
        "tenants": len(lane.counts),
        "largest": {tenant: lane.counts[tenant] for tenant in largest},
    }
