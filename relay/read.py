"""Reading what is due, from low-water marks on.

Reading from the front of the index would meet each dead row that vacuum could not remove yet, and each that is under
way. A mark says up to where everything of a slice and class has been read, if its transaction committed within a second
of its clock reading. What was read and not published lowers it again. Late rows, that came behind it all the same, are
found by a walk from the very start, once a second and for a twentieth of the time at most. Where pacer take long, they
are made beside (`walk.py`), and where that makes them rare there are short ones between, of what lay behind the marks
for less than 15 s. Marks are only in memory: a new relay first looks for the earliest row of each slice and class.
"""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import cast

from tidewheel.clock import monotonic_seconds
from tidewheel.outbox import OutboxLane
from tidewheel.postgres.low_water import LATE_COMMIT, FullScanPacer
from tidewheel.postgres.session import Conn, Session
from tidewheel.postgres.statements import Statements
from tidewheel.relay.due_rows import (
    BEGINNING,
    FEW_ROWS,
    ID,
    ONE_PLAN,
    POSITION,
    PUBLISH_AT,
    TOPIC,
    Batch,
    DueRow,
    Pair,
    Published,
    Stretch,
    counts_of,
    due_rows,
    ids,
    place_of,
    places,
)
from tidewheel.relay.late_scan import Walker
from tidewheel.relay.low_water import LowWater, before

_READ_CLOCK = Statements("tidewheel")["read_clock"]
_PROBE_OUTBOX = Statements("tidewheel.relay")["probe_outbox"]

# Shares of a batch, in the order they are produced: a class that has less leaves nothing to the others, so the sum may
# exceed 1; what matters is that a flood of one class cannot take another's share.
_WEIGHTS = {OutboxLane.CRITICAL: 1.0, OutboxLane.STANDARD: 0.6, OutboxLane.EVENTS: 0.6, OutboxLane.BATCH: 0.2}

_LONG_TRANSACTION = timedelta(seconds=15)  # as long as one of ours may be idle; those meet short pacer
_RARE_SECONDS = 15.0  # between pacer; from then on late rows would wait too long, and there are short ones
_SHORT_WALKS_SHARE = 10  # they go over what has gone since the one before, and 15 s: at 10,000 runs/s 3 s in 30
_CALM_ROWS = 4  # a batch of so few is followed by a look for few: at least as many of each slice and class
_FINDING_SECONDS = 1.0  # how long a read may be held up by looking for where slices begin that are new


class Reader:
    """Due rows of the slices that are held."""

    def __init__(self, url: str, most: int) -> None:
        """Connects when it first reads.

        Args:
            url: A libpq connection string.
            most: Rows in a batch.
        """
        self._session = Session(url, "tidewheel-relay", options=ONE_PLAN, autocommit=True)
        self._most = most
        self._low = LowWater()
        self._unproven: list[Batch] = []
        self._full_scans = FullScanPacer(at_once=False)
        self._short_scans = FullScanPacer(at_once=False, share=_SHORT_WALKS_SHARE)
        self._pace = self._full_scans  # of the walk beside
        self._walker = Walker(url)
        self._late: dict[Pair, Sequence[DueRow]] = {}  # what it has found
        self._finding_seconds = 0.0
        self._was_full = self._was_small = False  # the batch before

    def read(self, held: Sequence[int], parked: list[str], under_way: Sequence[DueRow]) -> Batch:
        """The next batch; it will not be read again, but for what is left of it when it is `proven`, or after `forget`.

        Args:
            held: The slices that are ours.
            parked: Topics that are left alone.
            under_way: What was read before, and may still be there.

        Raises:
            Unavailable: PostgreSQL does not answer.
        """
        pairs = self._find_marks(_pairs(held), parked)
        late = self._late_rows(pairs, parked)
        limits = self._limits(held)
        stretch = Stretch(limits, parked=parked, under_way=ids([*under_way, *late]))
        walk = self._begin_walk(pairs, stretch)
        few = self._was_small and not (walk or late) and len(under_way) <= FEW_ROWS
        if few:
            limits = {pair: min(most, max(FEW_ROWS // len(limits), _CALM_ROWS)) for pair, most in limits.items()}
        if not walk:
            stretch = replace(stretch, limits=limits, after=self._low.read)
        with self._session.transaction() as connection:
            now = _clock(connection) if self._was_full else BEGINNING[0]
            rows, room = due_rows(connection, pairs, stretch, few=few)
        self._late.clear()
        counts = counts_of(rows, pairs)
        cut_short = {pair for pair, count in counts.items() if count == limits[pair]}
        if room <= 0:
            cut_short.add(pairs[rows[-1][POSITION] - 1])
        self._was_full, self._was_small = bool(cut_short), not cut_short and len(rows) <= _CALM_ROWS
        batch = Batch(rows, pairs, counts, full=self._was_full)
        self._low.move(batch, now - LATE_COMMIT, back=cut_short if walk else ())
        if walk:
            self._full_scans.finish()
            self._low.walked |= self._low.read
        if late:
            rows = sorted([*late, *rows], key=_position)
            batch = Batch(rows, pairs, counts_of(rows, pairs), full=True)
        if batch:
            self._unproven.append(batch)
        return batch

    def earliest(
        self, held: Sequence[int], parked: list[str], *, all_read: bool = False
    ) -> tuple[datetime, dict[str, datetime]]:
        """The database's clock, and when the earliest row of each class is due.

        Args:
            held: The slices that are ours.
            parked: Topics that are left alone.
            all_read: Whether nothing is under way: then this look is the walk, when one is due, and where it finds
                something the next read is another.

        Raises:
            Unavailable: PostgreSQL does not answer.
        """
        pairs = self._find_marks(_pairs(held), parked)
        walk = all_read and self._begin_walk(pairs, Stretch(self._limits(held), parked=parked))
        columns = {**places(pairs, {} if walk else self._low.read), "parked": parked}
        began = monotonic_seconds()
        with self._session.transaction() as connection:
            rows = connection.execute(_PROBE_OUTBOX, columns, binary=True).fetchall()
        taken = timedelta(seconds=monotonic_seconds() - began)  # the clock may have been read at the end of it
        now = cast("datetime", rows[0][2])
        earliest = {str(name): at for name, at, _ in rows if isinstance(at, datetime)}
        due = {name for name, at in earliest.items() if at <= now}
        safe = now - taken - LATE_COMMIT, 0
        for pair in pairs:
            self._low.lower(pair, safe)  # a clock that jumps back takes the marks along
            if pair[1] not in due:
                self._low.nothing_due(pair, safe)
        if walk and not due:
            self._full_scans.finish()
            self._low.walked |= self._low.read
        self._collect_late()
        for (_, name), late in self._late.items():
            earliest[name] = min(late[0][PUBLISH_AT], earliest.get(name, now))
        if len(pairs) < len(_pairs(held)):
            earliest[OutboxLane.STANDARD] = min(now, earliest.get(OutboxLane.STANDARD, now))  # nobody knows yet
        return now, earliest

    def forget(self) -> None:
        """Read again what was read and is not proven."""
        for batch in self._unproven:
            self._low.lower_below(batch.rows, batch.pairs)
        self._unproven.clear()

    def leave(self) -> None:
        """No slice is held: somebody else reads them."""
        self._low.hold(())
        self._late.clear()

    def proven(self, batch: Batch, published: Published) -> None:
        """What became of a batch: what was left of it is read again."""
        self._unproven = [one for one in self._unproven if one is not batch]
        if len(batch.rows) > len(published.proven) + len(published.refused):
            done = {row[ID] for row in published.proven} | {row[ID] for row, _ in published.refused}
            self._low.lower_below((row for row in batch.rows if row[ID] not in done), batch.pairs)

    def close(self) -> None:
        """Close the connections."""
        self._walker.close()
        self._session.close()

    def _limits(self, held: Sequence[int]) -> dict[Pair, int]:
        """The most rows of each slice and class in a batch."""
        return {pair: max(1, int(self._most * _WEIGHTS[pair[1]] / len(held))) for pair in _pairs(held)}

    def _find_marks(self, pairs: Sequence[Pair], parked: list[str]) -> Sequence[Pair]:
        """Those that have marks; where there are none, below the earliest row, as many as can be found soon."""
        self._low.park(parked)
        missing = self._low.hold(pairs)
        if not missing:
            return pairs
        began = monotonic_seconds()
        for pair in missing:
            with self._session.transaction() as connection:
                mark = _clock(connection) - LATE_COMMIT, 0
                rows, _ = due_rows(connection, [pair], Stretch({pair: 1}), few=True)
            self._low.found(pair, min(mark, before(rows[0])) if rows else mark)
            if monotonic_seconds() - began > _FINDING_SECONDS:
                break
        self._finding_seconds += monotonic_seconds() - began
        known = [pair for pair in pairs if pair in self._low.read]
        if len(known) == len(pairs):
            self._full_scans.record(self._finding_seconds, whole=False)
            self._finding_seconds = 0.0
        return known

    def _begin_walk(self, pairs: Sequence[Pair], everywhere: Stretch) -> bool:
        """Whether this look is to be the walk that is due; once they take long it is begun beside instead."""
        if self._walker.walking or self._late:
            return False
        if self._full_scans.start():
            if not self._full_scans.slow:
                return True
            self._walk_beside(self._full_scans, pairs, everywhere)
        elif self._full_scans.pause_seconds > _RARE_SECONDS and self._short_scans.start():
            after = {pair: (publish_at - _LONG_TRANSACTION, 0) for pair, (publish_at, _) in self._low.walked.items()}
            self._walk_beside(self._short_scans, pairs, replace(everywhere, after=after))
        return False

    def _walk_beside(self, pace: FullScanPacer, pairs: Sequence[Pair], stretch: Stretch) -> None:
        self._pace = pace
        self._low.walking = {pair: self._low.read[pair] for pair in pairs}
        self._walker.begin(replace(stretch, upto=dict(self._low.walking)))

    def _collect_late(self) -> None:
        """What a walk beside has found by now."""
        if not self._late and (found := self._walker.take()):
            self._late = dict(found.rows)
            if not found.more:
                self._pace.record(found.seconds, whole=found.whole)
                if found.whole:
                    self._low.walked |= self._low.walking

    def _late_rows(self, pairs: Sequence[Pair], parked: list[str]) -> list[DueRow]:
        """That, for a batch of these slices and classes; not what lies above a mark by now, for there it is read."""
        self._collect_late()
        rows: list[DueRow] = []
        for position, pair in enumerate(pairs, start=1):
            for row in self._late.get(pair, ()):
                if place_of(row) > self._low.walking.get(pair, BEGINNING):
                    continue
                if (topic := row[TOPIC]) in parked:  # since the walk began
                    self._low.leave(topic, pair, row)
                else:
                    rows.append((position, *row[1:]))
        return rows


def _pairs(held: Sequence[int]) -> list[Pair]:
    return [(number, name) for name in _WEIGHTS for number in held]


def _position(row: DueRow) -> int:
    return row[POSITION]


def _clock(connection: Conn) -> datetime:
    row = connection.execute(_READ_CLOCK, binary=True).fetchone()
    return cast("datetime", row[0] if row else None)
