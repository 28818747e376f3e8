"""Read due rows of the outbox, from low-water marks on.

A read from the front of the index would meet each deleted row that vacuum could not remove yet, and each row in flight.
A low-water mark is the position up to which all rows of a slice and lane have been read, if their transactions
committed within a second of reading the clock. Rows that were read and not published lower it again.

Late rows lie behind the mark all the same. A full scan from the very start finds them, once a second and for a
twentieth of the time at most. Slow full scans run in the background (`outbox_scans.py`). Where that makes them rare,
short scans run between them, over rows that lay behind the marks for less than 15 s.

Marks are kept in memory only: a new relay first looks up the earliest row of each slice and lane.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import cast
from uuid import UUID

from tidewheel.clock import monotonic_seconds
from tidewheel.message_signatures import MessageKeys
from tidewheel.outbox import OutboxLane
from tidewheel.postgres.database_clock import read_now
from tidewheel.postgres.low_water import LATE_COMMIT, FullScanPacer
from tidewheel.postgres.session import Session
from tidewheel.postgres.statements import Statements
from tidewheel.process.fallbacks import Step, work
from tidewheel.relay.ahead import Ahead
from tidewheel.relay.hold_back import HoldBack
from tidewheel.relay.outbox_rows import (
    BEGINNING,
    ID,
    PAIR_INDEX,
    PUBLISH_AT,
    QUICK_ROWS,
    SESSION_OPTIONS,
    TOPIC,
    Batch,
    DueRow,
    OutboxPosition,
    Pair,
    Published,
    RowRange,
    counts_of,
    due_rows,
    ids,
    position_columns,
    position_of,
)
from tidewheel.relay.outbox_scans import LateRowScan, OutboxMarks, just_before

_PROBE_OUTBOX = Statements("tidewheel.relay")["probe_outbox"]

# Shares of a batch, in the order in which they are produced. A lane does not use another lane's share, so a flood of
# one lane cannot delay another. The sum may exceed 1.
_WEIGHTS = {OutboxLane.CRITICAL: 1.0, OutboxLane.STANDARD: 0.6, OutboxLane.EVENTS: 0.6, OutboxLane.BATCH: 0.2}

_LONG_TRANSACTION = timedelta(seconds=15)  # the idle limit of Tidewheel's own transactions; short scans find their rows
_MAX_SCAN_PAUSE_SECONDS = 15.0  # between full scans; above it short scans run too, since late rows would wait too long
_SHORT_SCANS_SHARE = 10  # short scans meet the rows deleted since the one before, and 15 s: at 10,000 runs/s 3 s in 30
_SMALL_BATCH_ROWS = 16  # a quick poll follows a batch of so few
_MIN_QUICK_ROWS = 4  # of each slice and lane, in a quick poll; a full read follows where there are as many
_KEYS_SECONDS = 2.0  # a key signs 10 s after its creation, and no longer than this after its deletion
_MARKS_SECONDS = 1.0  # the longest delay of a read by the search for the first marks of new slices


class Reader:
    """Reads due rows of the slices that this relay holds."""

    def __init__(
        self,
        url: str,
        limit: int,
        *,
        fair_prefix: str | None = None,
        member_id: UUID | None = None,
        ahead: Ahead | None = None,
    ) -> None:
        """Create a reader, which connects at the first read.

        Topics of the fair prefix may be held back. The relay of this id reports what it holds back. Without `ahead` no
        run leaves before it is due.
        """
        self._session = Session(url, "tidewheel-relay", options=SESSION_OPTIONS, autocommit=True)
        self._limit = limit
        self._hold_back = None if fair_prefix is None else HoldBack(self._session, url, fair_prefix, member_id)
        self._ahead = ahead or Ahead(None, lambda: BEGINNING[0])
        self._marks = OutboxMarks()
        self._unacknowledged: list[Batch] = []
        self._full_scans = FullScanPacer(at_once=False)
        self._short_scans = FullScanPacer(at_once=False, share=_SHORT_SCANS_SHARE)
        self._scan_pacer = self._full_scans  # of the scan in the background
        self._late_scan = LateRowScan(url)
        self._late: dict[Pair, Sequence[DueRow]] = {}  # its results
        self._marks_seconds = 0.0
        self._was_full = self._was_small = False  # of the previous batch

    def refresh_keys(self, keys: MessageKeys) -> None:
        """Read the keys that sign run messages, every few seconds; Unavailable if there is none."""
        keys.refresh_aged(self._session, _KEYS_SECONDS)
        keys.require()

    def read(self, held: Sequence[int], paused: list[str], in_flight: Sequence[DueRow]) -> Batch:
        """Read the next batch, without rows in flight: those were read before and may still be there.

        Its rows are not read again, unless `acknowledged` finds some missing, or `reset` is called.
        """
        hold_back = self._hold_back
        if hold_back is not None:
            hold_back.set_slices(held)
        stopped, paused = paused, self._paused(paused)
        pairs = self._ensure_marks(_pairs(held), paused)
        before = dict(self._marks.read)
        late = self._late_rows(pairs, paused)
        limits = self._limits(held)
        self._ahead.refresh(self._session)
        reach, began = self._ahead.reach(), self._ahead.now()
        row_range = RowRange(limits, paused=paused, in_flight=ids([*in_flight, *late]))
        full_scan = self._begin_scan(pairs, row_range)
        quick = self._was_small and not (full_scan or late or reach) and len(in_flight) <= QUICK_ROWS
        if quick:
            limits = {
                pair: min(limit, max(QUICK_ROWS // len(limits), _MIN_QUICK_ROWS)) for pair, limit in limits.items()
            }
        if not full_scan:
            early = [*self._ahead.slots] if reach else []
            row_range = replace(row_range, limits=limits, after=self._marks.read, ahead=reach, early_topics=early)
        with self._session.transaction() as connection:
            now = read_now(connection) if self._was_full else BEGINNING[0]
            rows, room = due_rows(connection, pairs, row_range, quick=quick)
        self._late.clear()
        behind = sum(position_of(row) <= before[pairs[row[PAIR_INDEX] - 1]] for row in rows) if full_scan else 0
        work.count(Step.READ, len(late) + behind, fallback=True)
        work.count(Step.READ, len(rows) - behind)
        counts = counts_of(rows, pairs)
        cut_short = {pair for pair, count in counts.items() if count == limits[pair]}
        if room <= 0:
            cut_short.add(pairs[rows[-1][PAIR_INDEX] - 1])
        self._was_full, self._was_small = bool(cut_short), not cut_short and len(rows) <= _SMALL_BATCH_ROWS
        batch = Batch(rows, pairs, counts, full=self._was_full)
        self._marks.advance(batch, now - LATE_COMMIT, back=cut_short if full_scan else ())
        if full_scan:
            self._full_scans.finish()
            self._marks.scanned |= self._marks.read
        else:
            self._ahead.read(reach, began, {lane for _, lane in cut_short})
        if late:
            rows = sorted([*late, *rows], key=_position)
            batch = Batch(rows, pairs, counts_of(rows, pairs), full=True)
        if hold_back is not None and (batch or hold_back.topics()):
            batch = self._held_back(hold_back, batch, before=before, stopped=stopped, in_flight=in_flight, room=room)
        if hold_back is not None:
            hold_back.report()
        if batch:
            self._unacknowledged.append(batch)
        return batch

    def held_seconds(self) -> float | None:
        """Return the seconds until topics that are held back need a look; None if none is."""
        return None if self._hold_back is None else self._hold_back.seconds_left()

    def _paused(self, paused: list[str]) -> list[str]:
        return paused if self._hold_back is None else [*{*paused, *self._hold_back.topics()}]

    def _held_back(
        self,
        hold_back: HoldBack,
        batch: Batch,
        *,
        before: Mapping[Pair, OutboxPosition],
        stopped: list[str],
        in_flight: Sequence[DueRow],
        room: int,
    ) -> Batch:
        """Return the batch without rows that exceed their window, and with what held topics may send."""
        pairs = batch.pairs
        rows, early = self._ahead.split(batch.rows)
        exceeding = hold_back.exceeding(rows) if rows else set[str]()
        for topic in exceeding:
            left = [row for row in rows if row[TOPIC] == topic]
            self._marks.hold(topic, before, left, pairs)
            hold_back.hold(topic, pairs[left[0][PAIR_INDEX] - 1][1])
        for topic in hold_back.topics():
            hold_back.start_at(topic, self._marks.paused_at(topic))
        if exceeding:
            rows = [row for row in rows if row[TOPIC] not in exceeding]
        for topic, of_topic in early.items():
            rows = [*rows, *self._leaving_early(hold_back, topic, of_topic, pairs)]
        most = int(self._limit * _WEIGHTS[OutboxLane.STANDARD])
        taken, ended = hold_back.take(pairs, stopped, [*in_flight, *rows], most, room)
        for topic, marks in ended.items():
            self._marks.resume_at(topic, marks)
        if not taken and len(rows) == len(batch.rows):
            return batch
        rows = sorted([*rows, *taken], key=_position)
        return Batch(rows, pairs, counts_of(rows, pairs), full=batch.full)

    def _leaving_early(
        self, hold_back: HoldBack, topic: str, rows: Sequence[DueRow], pairs: Sequence[Pair]
    ) -> Sequence[DueRow]:
        """Return those rows of a topic that leave before they are due: the first ones."""
        if topic in hold_back.topics():
            return ()
        count = hold_back.early_room(topic, len(rows), slots=self._ahead.slots[topic])
        if count < len(rows):
            rows = sorted(rows, key=position_of)
            _, lane = pairs[rows[count][PAIR_INDEX] - 1]
            self._ahead.left(lane, rows[count][PUBLISH_AT], all_of_them=not count)
            rows = rows[:count]
        hold_back.record_early(topic, rows, self._ahead.now())
        return rows

    def earliest(
        self, held: Sequence[int], paused: list[str], *, all_read: bool = False
    ) -> tuple[datetime, dict[str, datetime]]:
        """Read the database's clock and the due time of the earliest row of each lane.

        If no row is in flight, `all_read`, this poll is the full scan when one is due. If it finds a row, the next read
        is a full scan too.
        """
        paused = self._paused(paused)
        pairs = self._ensure_marks(_pairs(held), paused)
        full_scan = all_read and self._begin_scan(pairs, RowRange(self._limits(held), paused=paused))
        columns = {**position_columns(pairs, {} if full_scan else self._marks.read), "backed_off": paused}
        began = monotonic_seconds()
        with self._session.transaction() as connection:
            rows = connection.execute(_PROBE_OUTBOX, columns, binary=True).fetchall()
        taken = timedelta(seconds=monotonic_seconds() - began)  # the statement may have read the clock at its end
        now = cast("datetime", rows[0][2])
        found = {pairs[cast("int", position) - 1]: at for position, at, _ in rows if isinstance(at, datetime)}
        due = {pair for pair, at in found.items() if at <= now}
        earliest: dict[str, datetime] = {}
        for (_, lane), at in found.items():
            wakes_at = self._ahead.wakes_at(lane, at)
            earliest[lane] = min(wakes_at, earliest.get(lane, wakes_at))
        safe = now - taken - LATE_COMMIT, 0
        for pair in pairs:
            self._marks.lower(pair, safe)  # a clock that is set back lowers the marks
            if pair not in due:
                self._marks.set_empty(pair, safe)
        if full_scan and not due:
            self._full_scans.finish()
            self._marks.scanned |= self._marks.read
        self._collect_late()
        for (_, name), late in self._late.items():
            earliest[name] = min(late[0][PUBLISH_AT], earliest.get(name, now))
        if len(pairs) < len(_pairs(held)):
            # Until all pairs have marks, the earliest row is unknown.
            earliest[OutboxLane.STANDARD] = min(now, earliest.get(OutboxLane.STANDARD, now))
        return now, earliest

    def reset(self) -> None:
        """Read all rows again that are not acknowledged."""
        for batch in self._unacknowledged:
            self._marks.reread(batch.rows, batch.pairs)
        self._unacknowledged.clear()
        self._forget_held()

    def drop_slices(self) -> None:
        """Drop the marks of all slices: another relay reads them."""
        self._marks.set_pairs(())
        self._late.clear()
        self._forget_held()
        if self._hold_back is not None:
            self._hold_back.report()

    def acknowledged(self, batch: Batch, published: Published) -> None:
        """Process the result of a batch: rows that are neither published nor set aside are read again."""
        self._unacknowledged = [one for one in self._unacknowledged if one is not batch]
        set_aside = published.set_aside()
        if len(batch.rows) > len(published.acknowledged) + len(set_aside):
            done = {row[ID] for row in (*published.acknowledged, *set_aside)}
            left = [row for row in batch.rows if row[ID] not in done]
            self._marks.reread(left, batch.pairs)
            self._forget_held({row[TOPIC] for row in left})

    def _forget_held(self, topics: Collection[str] | None = None) -> None:
        if self._hold_back is not None:
            self._hold_back.forget(self._hold_back.topics() if topics is None else topics)

    def close(self) -> None:
        """Close the connections."""
        self._late_scan.close()
        if self._hold_back is not None:
            self._hold_back.close()
        self._session.close()

    def _limits(self, held: Sequence[int]) -> dict[Pair, int]:
        return {pair: max(1, int(self._limit * _WEIGHTS[pair[1]] / len(held))) for pair in _pairs(held)}

    def _ensure_marks(self, pairs: Sequence[Pair], paused: list[str]) -> Sequence[Pair]:
        """Return the pairs that have marks.

        A pair without one gets it, just before its earliest row, as far as `_MARKS_SECONDS` allows.
        """
        self._marks.set_paused(paused)
        missing = self._marks.set_pairs(pairs)
        if not missing:
            return pairs
        began = monotonic_seconds()
        for pair in missing:
            with self._session.transaction() as connection:
                mark = read_now(connection) - LATE_COMMIT, 0
                rows, _ = due_rows(connection, [pair], RowRange({pair: 1}), quick=True)
            self._marks.start_at(pair, min(mark, just_before(rows[0])) if rows else mark)
            if monotonic_seconds() - began > _MARKS_SECONDS:
                break
        self._marks_seconds += monotonic_seconds() - began
        known = [pair for pair in pairs if pair in self._marks.read]
        if len(known) == len(pairs):
            self._full_scans.record(self._marks_seconds, whole=False)
            self._marks_seconds = 0.0
        return known

    def _begin_scan(self, pairs: Sequence[Pair], all_rows: RowRange) -> bool:
        """Return True if this poll must be a full scan. Start a slow full scan in the background instead."""
        if self._late_scan.active or self._late:
            return False
        if self._full_scans.start():
            if not self._full_scans.slow:
                return True
            self._scan_in_background(self._full_scans, pairs, all_rows)
        elif self._full_scans.pause_seconds > _MAX_SCAN_PAUSE_SECONDS and self._short_scans.start():
            after = {pair: (publish_at - _LONG_TRANSACTION, 0) for pair, (publish_at, _) in self._marks.scanned.items()}
            self._scan_in_background(self._short_scans, pairs, replace(all_rows, after=after))
        return False

    def _scan_in_background(self, pacer: FullScanPacer, pairs: Sequence[Pair], row_range: RowRange) -> None:
        self._scan_pacer = pacer
        self._marks.scanning = {pair: self._marks.read[pair] for pair in pairs}
        self._late_scan.start(replace(row_range, upto=dict(self._marks.scanning)))

    def _collect_late(self) -> None:
        if not self._late and (found := self._late_scan.take()):
            self._late = dict(found.rows)
            if not found.more:
                self._scan_pacer.record(found.seconds, whole=found.complete)
                if found.complete:
                    self._marks.scanned |= self._marks.scanning

    def _late_rows(self, pairs: Sequence[Pair], paused: list[str]) -> list[DueRow]:
        """Return the late rows for a batch of these pairs, without those above a mark: reads find them."""
        self._collect_late()
        rows: list[DueRow] = []
        for position, pair in enumerate(pairs, start=1):
            for row in self._late.get(pair, ()):
                if position_of(row) > self._marks.scanning.get(pair, BEGINNING):
                    continue
                if (topic := row[TOPIC]) in paused:  # since the scan began
                    self._marks.reread_on_resume(topic, pair, row)
                    self._forget_held({topic})
                else:
                    rows.append((position, *row[1:]))
        return rows


def _pairs(held: Sequence[int]) -> list[Pair]:
    return [(number, name) for name in _WEIGHTS for number in held]


def _position(row: DueRow) -> int:
    return row[PAIR_INDEX]
