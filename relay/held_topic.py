"""The rows of one topic that is held back: what is staged, how far it was read, and what leaves next.

The runs of one tenant and priority, the lead, leave in their order: no staged run of the topic changes that order. So
their rows are read once, when they leave, from the front on. The lead is what most of the first rows have. All other
rows are staged as addresses, and fetched when they leave.

Rows may be committed after their time. So the front and the marks stay a second behind the clock. Once a second, for a
twentieth of the time at most, the rows of 15 s before them are staged that were committed later. The walk in the
background finds rows that are later still (`outbox_scans.py`).
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import chain
from operator import itemgetter
from types import MappingProxyType
from typing import cast

from tidewheel.clock import monotonic_seconds
from tidewheel.outbox import OutboxLane, slice_lane_of
from tidewheel.postgres.database_clock import read_now
from tidewheel.postgres.low_water import LATE_COMMIT, FullScanPacer
from tidewheel.postgres.session import Conn, Session
from tidewheel.postgres.statements import Statements
from tidewheel.relay.outbox_rows import (
    BEGINNING,
    ID,
    PAIR_INDEX,
    PUBLISH_AT,
    VALUE,
    Batch,
    DueRow,
    Ids,
    OutboxPosition,
    Pair,
    addresses_of,
    counts_of,
    end_columns,
    ids,
    ids_of,
    position_columns,
    stream_rows,
)
from tidewheel.relay.outbox_scans import WalkedPart
from tidewheel.relay.staging import Lead, Staging, address_of, id_of, position_in

_SQL = Statements("tidewheel.relay")
_STAGE_OUTBOX = _SQL["stage_outbox"]
_FETCH_OUTBOX = _SQL["fetch_outbox"]
_READ_IN_ORDER = _SQL["read_in_order"]
_COUNT_IN_ORDER = _SQL["count_in_order"]

_MOST_STAGED = 1_000_000  # runs of a topic; then it is not staged on until half of them have left
_SCAN_ROWS = 10_000  # staged in one round, all slices together
_SCAN_SECONDS = 0.025  # between two scans that found all there was; each passes the rows of the last second once more
_FULL_SCAN_SECONDS = 1.0  # between two scans while the window has no room and runs are staged
_LATE = timedelta(seconds=15)  # the idle limit of Tidewheel's own transactions
_FETCH_ROWS = 500
_FIRST_ROWS = 128  # of all slices together, of which the lead is what most have
_COUNTED_ROWS = 20_000  # of the lead: about 20 ms, every two seconds
_IN_ORDER = itemgetter(PUBLISH_AT)
_BY_PAIR = itemgetter(PAIR_INDEX)
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)


class HeldTopic:
    """A topic that is held back since a monotonic time.

    All rows of the lead up to the front have left, and all others up to the marks are staged or have left, except late
    ones. `_recent` has the ids and times of staged rows beyond the marks, `_passed` of those that the marks have passed
    less than 15 s ago. The walk in the background continues at `walk`, which is empty before it begins anew.
    """

    def __init__(self, session: Session, topic: str, lane: OutboxLane) -> None:
        self.lane, self.began, self.walked_at = lane, monotonic_seconds(), 0.0
        self.marks: dict[Pair, OutboxPosition] = {}
        self.walk: dict[Pair, OutboxPosition] = {}
        self._session, self._topic = session, topic
        self._staging = Staging()
        self._front: dict[Pair, OutboxPosition] = {}
        self._lead: Lead | None = None
        self._leads = False  # rows of the lead may be due
        self._led_at = 0.0
        self._complete = False  # the last scan found all rows that were due
        self._full = False
        self._recent = defaultdict[Pair, dict[bytes, datetime]](dict)
        self._passed = defaultdict[Pair, dict[bytes, datetime]](dict)
        self._scans = FullScanPacer(_SCAN_SECONDS)
        self._late_scans = FullScanPacer(at_once=False)
        self._scanned_at = 0.0

    def __len__(self) -> int:
        return len(self._staging)

    @property
    def waiting(self) -> bool:
        """True if runs are known to wait."""
        return bool(self._staging) or self._leads

    @property
    def unread(self) -> bool:
        """True if more rows may be due than are staged or read."""
        return self._leads or not (self._complete or self._full)

    def start_at(self, pair: Pair, mark: OutboxPosition) -> None:
        """Stage and read the rows of a slice from this position on, if the slice is new to the topic."""
        if pair[1] == self.lane and pair not in self.marks:
            self.marks[pair] = self._front[pair] = mark
            self._complete = False

    def left_at(self) -> Mapping[Pair, OutboxPosition]:
        """Return the positions up to which all rows have left, if no run waits."""
        return {pair: min(mark, self._front[pair]) for pair, mark in self.marks.items()}

    def scan(self, in_flight: Sequence[DueRow], *, stands: bool) -> None:
        """Stage rows that are due, and move the marks, if that is due; `stands` if no run can leave."""
        if stands and monotonic_seconds() - self._scanned_at < _FULL_SCAN_SECONDS:
            return
        if self._complete and not self._scans.start():
            return
        self._full = len(self) >= (_MOST_STAGED // 2 if self._full else _MOST_STAGED)
        if self._full:
            return
        if self._lead is None:
            self._find_lead(in_flight)
        pairs = [*self.marks]
        limit = max(_SCAN_ROWS // max(len(pairs), 1), 1)
        found, now = self._stage(in_flight, limit)
        safe = now - LATE_COMMIT, 0
        for pair in pairs:
            entries = found[pair]
            self._move(pair, min(_position_of(entries[-1]), safe) if len(entries) == limit else safe)
        self._complete = all(len(entries) < limit for entries in found.values())
        if self._late_scans.start():
            self._stage_late(in_flight, limit)
            self._late_scans.finish()
        self._scans.finish()
        self._scanned_at = monotonic_seconds()

    def take(
        self,
        wanted: int,
        weights: Mapping[str, int],
        pairs: Sequence[Pair],
        in_flight: Sequence[DueRow],
        room: int,
    ) -> list[DueRow]:
        """Return the rows that leave now, until their values fill the room."""
        if self._lead is not None and not self._leads:
            self._leads = monotonic_seconds() - self._led_at >= _SCAN_SECONDS
        rows: list[DueRow] = []
        while wanted > 0 and room > 0 and self.waiting:
            self._staging.lead(self._lead if self._leads else None, min(self._front.values())[0] - _EPOCH)
            most = min(wanted, _FETCH_ROWS) if self._staging else wanted
            chosen, led = self._staging.take(most, weights, room=room)
            found = self._fetch(chosen, pairs)
            room -= sum(len(row[VALUE] or b"") for row in found)
            if led and self._lead is not None:
                read, room = self._read_in_order(self._lead, led, pairs, [*in_flight, *rows], room)
                found += read
                led = len(read)
            wanted -= len(chosen) + led
            rows += found
        return rows

    def add_late(self, part: WalkedPart, in_flight: Sequence[DueRow]) -> None:
        """Stage the late rows that a part of the walk has found."""
        sent = {row[ID] for row in in_flight}
        for pair in part.rows.keys() & self.marks.keys():
            mark, front = self.marks[pair], self._front[pair]
            self._staging.add(
                (tenant, priority, entry)
                for tenant, priority, entry in part.rows[pair]
                if entry not in self._staging
                and id_of(entry) not in sent
                and _position_of(entry) <= (front if (tenant, priority) == self._lead else mark)
            )
        self.walk = {
            pair: last
            for pair, rows in part.rows.items()
            if len(rows) == part.limit and (last := _position_of(rows[-1][2])) < self.marks.get(pair, BEGINNING)
        }

    def counts(self) -> tuple[dict[str, int], bool]:
        """Count the runs of each tenant that wait; also return True if no more are known to."""
        counts = Counter(self._staging.counts())
        all_counted = self._complete and not self._full
        if self._lead is not None and self._leads:
            columns = {**self._columns_of(self._lead, [*self._front]), "row_limit": _COUNTED_ROWS // len(self._front)}
            with self._session.transaction() as connection:
                row = connection.execute(_COUNT_IN_ORDER, columns, binary=True, prepare=False).fetchone()
            found, more = cast("tuple[int, bool]", row)
            counts[self._lead.tenant] += found
            all_counted = all_counted and not more
        return dict(+counts), all_counted

    def _find_lead(self, in_flight: Sequence[DueRow]) -> None:
        limit = max(_FIRST_ROWS // max(len(self.marks), 1), 1)
        with self._session.transaction() as connection:
            first = self._entries(connection, self.marks, known=ids(in_flight), limit=limit)
        counts = Counter(Lead(tenant, priority) for _, tenant, priority, _ in first)
        if counts:
            [(self._lead, _)] = counts.most_common(1)

    def _stage(self, in_flight: Sequence[DueRow], limit: int) -> tuple[Mapping[Pair, list[bytes]], datetime]:
        known = self._known(in_flight, self._recent)
        with self._session.transaction() as connection:
            now = read_now(connection)
            found = self._entries(connection, self.marks, known=known, limit=limit, lead=self._lead)
        return self._add(found), now

    def _stage_late(self, in_flight: Sequence[DueRow], limit: int) -> None:
        """Stage the rows before the marks, and of the lead before the front, that were committed late."""
        for pair, passed in self._passed.items():
            since = self.marks[pair][0] - _LATE
            self._passed[pair] = {row_id: at for row_id, at in passed.items() if at >= since}
        known = self._known(in_flight, self._recent, self._passed)
        with self._session.transaction() as connection:
            found = self._entries(connection, _before(self.marks), known=known, limit=limit, lead=self._lead)
            self._add(found)
            if self._lead is not None:
                self._add(self._entries(connection, _before(self._front), known=known, limit=limit, upto=self._front))

    def _entries(
        self,
        connection: Conn,
        after: Mapping[Pair, OutboxPosition],
        *,
        known: Ids,
        limit: int,
        upto: Mapping[Pair, OutboxPosition] = MappingProxyType({}),
        lead: Lead | None = None,
    ) -> list[tuple[int, str, int, bytes]]:
        """Read due rows, without known ones and those of the lead.

        Each has the number of its pair, its tenant, priority and entry.
        """
        columns = {
            **position_columns([*after], after),
            **end_columns([*after], upto),
            "topic": self._topic,
            "tenant": None if lead is None else lead.tenant,
            "priority": None if lead is None else lead.priority,
            "row_limit": limit,
            "known": known,
        }
        rows = connection.execute(_STAGE_OUTBOX, columns, binary=True, prepare=False).fetchall()
        return cast("list[tuple[int, str, int, bytes]]", rows)

    def _add(self, found: Sequence[tuple[int, str, int, bytes]]) -> Mapping[Pair, list[bytes]]:
        pairs = [*self.marks]
        self._staging.add((tenant, priority, entry) for _, tenant, priority, entry in found)
        entries = defaultdict[Pair, list[bytes]](list)
        for position, _, _, entry in found:
            pair = pairs[position - 1]
            entries[pair].append(entry)
            self._recent[pair][id_of(entry)] = _position_of(entry)[0]
        return entries

    def _move(self, pair: Pair, mark: OutboxPosition) -> None:
        """Set the mark of a pair; a lower one if the clock was set back."""
        recent, passed = self._recent[pair], self._passed[pair]
        if mark < self.marks[pair]:
            recent |= passed
            passed.clear()
        at = mark[0]
        for row_id in [row_id for row_id, time in recent.items() if time < at]:
            passed[row_id] = recent.pop(row_id)
        self.marks[pair] = mark

    def _fetch(self, chosen: Sequence[bytes], pairs: Sequence[Pair]) -> list[DueRow]:
        """Read chosen rows, in their order, without those that are gone. A scan finds those that were moved."""
        if not chosen:
            return []
        numbers = {slice_lane_of(*pair): number for number, pair in enumerate(pairs, start=1)}
        columns = {"ctids": addresses_of(map(address_of, chosen)), "ids": ids_of(map(id_of, chosen))}
        with self._session.transaction() as connection:
            found = connection.execute(_FETCH_OUTBOX, columns, binary=True, prepare=False).fetchall()
        by_id = {row[ID]: row for row in cast("list[DueRow]", found)}
        rows = [row for entry in chosen if (row := by_id.get(id_of(entry))) is not None]
        return [(numbers[row[PAIR_INDEX]], *row[1:]) for row in rows if row[PAIR_INDEX] in numbers]

    def _read_in_order(
        self, lead: Lead, most: int, pairs: Sequence[Pair], in_flight: Sequence[DueRow], room: int
    ) -> tuple[list[DueRow], int]:
        """Read so many rows of the lead, and move the front; also return how many bytes are left of `room`."""
        fronts = [pair for pair in pairs if pair in self._front]
        limit = -(-most // len(fronts))
        columns = {
            **self._columns_of(lead, fronts),
            "before": pairs.index(fronts[0]),
            "known": ids(in_flight),
            "row_limit": limit,
        }
        with self._session.transaction() as connection:
            safe = read_now(connection) - LATE_COMMIT, 0
            found, room = stream_rows(connection, _READ_IN_ORDER, columns, room)
        rows = found if len(found) <= most else sorted(sorted(found, key=_IN_ORDER)[:most], key=_BY_PAIR)
        read, kept = counts_of(found, pairs), counts_of(rows, pairs)
        sent = fronts if room > 0 else fronts[: fronts.index(pairs[found[-1][PAIR_INDEX] - 1])]
        whole = {pair for pair in sent if kept.get(pair, 0) == read.get(pair, 0) < limit}
        self._front |= {pair: min(at, safe) for pair, at in Batch(rows, pairs, kept, full=True).last()}
        self._front |= dict.fromkeys(whole, safe)
        self._leads, self._led_at = len(whole) < len(fronts), monotonic_seconds()
        return rows, room

    def _columns_of(self, lead: Lead, pairs: Sequence[Pair]) -> dict[str, object]:
        return {
            **position_columns(pairs, self._front),
            "topic": self._topic,
            "tenant": lead.tenant,
            "priority": lead.priority,
        }

    @staticmethod
    def _known(in_flight: Sequence[DueRow], *known: Mapping[Pair, Mapping[bytes, datetime]]) -> Ids:
        return ids_of(
            [*chain.from_iterable(of for each in known for of in each.values()), *(row[ID] for row in in_flight)]
        )


def _before(marks: Mapping[Pair, OutboxPosition]) -> dict[Pair, OutboxPosition]:
    return {pair: (at - _LATE, 0) for pair, (at, _) in marks.items()}


def _position_of(entry: bytes) -> OutboxPosition:
    microseconds, row_id = position_in(entry)
    return _EPOCH + timedelta(microseconds=microseconds), row_id
