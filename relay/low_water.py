"""The low-water marks of one relay: up to where all is read, of each slice and class, by reading and by walking."""

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime

from tidewheel.postgres.low_water import LATE_COMMIT
from tidewheel.relay.due_rows import BEGINNING, POSITION, Batch, DueRow, Pair, Place, place_of


class LowWater:
    """Marks of reading, of walking, and of topics that are parked; only in memory."""

    def __init__(self) -> None:
        self.read: dict[Pair, Place] = {}  # behind it nothing is due, but for what is under way, late, or parked
        self.walking: dict[Pair, Place] = {}  # up to where a walk looks; lower where that is read again since it began
        self.walked: dict[Pair, Place] = {}  # up to where walks that are over have looked
        self._parked: dict[str, dict[Pair, Place]] = {}  # of reading, as it was when each topic was parked

    def hold(self, pairs: Sequence[Pair]) -> list[Pair]:
        """These are ours, and no others; returns those that have no mark yet."""
        for marks in (self.read, self.walking):
            for pair in marks.keys() - pairs:
                del marks[pair]  # somebody else's by now; should it come back, much may have gone from it
        return [pair for pair in pairs if pair not in self.read]

    def found(self, pair: Pair, mark: Place) -> None:
        """Nothing at all is due behind this mark."""
        for marks in (self.read, self.walked, *self._parked.values()):
            marks[pair] = mark

    def lower(self, pair: Pair, place: Place) -> None:
        """What lies behind this place is read again."""
        for marks in (self.read, self.walking, self.walked, *self._parked.values()):
            if place < marks.get(pair, BEGINNING):
                marks[pair] = place

    def lower_below(self, rows: Iterable[DueRow], pairs: Sequence[Pair]) -> None:
        """These rows are read again."""
        first: dict[Pair, DueRow] = {}
        for row in rows:
            first.setdefault(pairs[row[POSITION] - 1], row)
        for pair, row in first.items():
            self.lower(pair, before(row))

    def park(self, topics: Collection[str]) -> None:
        """These are left alone, and no others: the rows of one that is served again come before newer ones."""
        for topic in self._parked.keys() - topics:
            for pair, place in self._parked.pop(topic).items():
                self.lower(pair, place)
        for topic in topics:
            if topic not in self._parked:
                self._parked[topic] = dict(self.read)

    def leave(self, topic: str, pair: Pair, row: DueRow) -> None:
        """This row of a parked topic is read when that is served again."""
        self._parked[topic][pair] = min(before(row), self._parked[topic][pair])

    def move(self, batch: Batch, safe: datetime, *, back: Collection[Pair]) -> None:
        """Behind what was read, as far as nothing sooner can still be committed; back only where that was cut short."""
        for pair, (publish_at, row_id) in batch.last():
            mark = (publish_at, row_id) if publish_at <= safe else (max(safe, publish_at - LATE_COMMIT), 0)
            self.read[pair] = mark if pair in back else max(mark, self.read[pair])

    def nothing_due(self, pair: Pair, safe: Place) -> None:
        """Nothing was found behind its mark up to now."""
        self.read[pair] = safe


def before(row: DueRow) -> Place:
    """The place just before a row's."""
    publish_at, row_id = place_of(row)
    return publish_at, row_id - 1
