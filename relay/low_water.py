"""Low-water marks of one relay: the position up to which each slice and lane is read."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime

from tidewheel.postgres.low_water import LATE_COMMIT
from tidewheel.relay.due_rows import BEGINNING, PAIR_INDEX, Batch, DueRow, OutboxPosition, Pair, position_of


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
            mark = (publish_at, row_id) if publish_at <= safe else (max(safe, publish_at - LATE_COMMIT), 0)
            self.read[pair] = mark if pair in back else max(mark, self.read[pair])

    def set_empty(self, pair: Pair, safe: OutboxPosition) -> None:
        """Move the read mark of a pair up to `safe`: no row behind the mark is due."""
        self.read[pair] = safe


def just_before(row: DueRow) -> OutboxPosition:
    """Return the position just before a row's."""
    publish_at, row_id = position_of(row)
    return publish_at, row_id - 1
