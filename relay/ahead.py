"""The time by which runs leave before they are due, so that executors have them at their instant.

An executor keeps an early message until its run is due. So broker and relay have done their part of a burst before it,
and its runs start as fast as they are claimed. Rows of a second are read together, some times a second: a relay that
reads each row at its time pays for many small batches.

Only topics of queues leave early whose executors all keep early messages. Those of 0.1 and in other languages claim a
message as it comes, in vain if its run is not due.

More rows may be due within a second than the relay lets leave early (`staging.py`). Then the lane is read less far
ahead, as far as its rows found room; a burst behind which none finds any is read at its time.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final, cast

from tidewheel.clock import monotonic_seconds
from tidewheel.kafka.topics import Topics
from tidewheel.outbox import OutboxLane
from tidewheel.postgres.session import Session
from tidewheel.postgres.statements import Statements
from tidewheel.relay.outbox_rows import PUBLISH_AT, TOPIC, DueRow
from tidewheel.runs import Lane

AHEAD: Final = timedelta(seconds=1)  # the farthest

_FIND_EARLY_QUEUES = Statements("tidewheel.relay")["find_early_queues"]

_SHORTEST = timedelta(milliseconds=50)  # below it rows are read at their time
_GATHER = 0.25  # of the time ahead, for which rows wait for others
_GROWS = 1.25  # the time ahead, by each read whose rows all left
_CLOCK = timedelta(milliseconds=5)  # by which this process may wake too early
_REFRESH_SECONDS = 2.0
_BEGINNING = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(slots=True)
class _Reading:
    """The reads of one lane."""

    ahead: timedelta = AHEAD
    read: datetime = _BEGINNING  # rows due before it were read
    resumes: datetime = _BEGINNING  # until then rows are read at their time

    def due(self) -> datetime:
        """Return the instant from which it is read ahead again."""
        return max(self.read - self.ahead * (1 - _GATHER), self.resumes)


class Ahead:
    """The topics whose rows leave early, and the time by which each lane is read ahead."""

    def __init__(self, topics: Topics | None, database_now: Callable[[], datetime]) -> None:
        """Read nothing ahead without topics."""
        self._topics, self.now = topics, database_now
        self.slots: Mapping[str, int] = {}  # of the executors of each topic whose rows leave early
        self._refreshed_at = float("-inf")
        self._lanes: Mapping[OutboxLane, _Reading] = {
            lane: _Reading() for lane in OutboxLane if lane is not OutboxLane.EVENTS
        }

    def refresh(self, session: Session) -> None:
        """Read which topics leave early, every two seconds."""
        if self._topics is None or monotonic_seconds() < self._refreshed_at + _REFRESH_SECONDS:
            return
        with session.transaction() as connection:
            rows = cast("list[tuple[str, int]]", connection.execute(_FIND_EARLY_QUEUES, binary=True).fetchall())
        self.slots = {self._topics.runs(queue, lane): slots for queue, slots in rows for lane in Lane}
        self._refreshed_at = monotonic_seconds()

    def reach(self) -> Mapping[OutboxLane, timedelta]:
        """Return how far ahead lanes are read now; a lane that is read at its time is left out."""
        if not self.slots:
            return {}
        now = self.now() + _CLOCK
        return {lane: each.ahead for lane, each in self._lanes.items() if each.due() <= now}

    def read(self, reach: Mapping[OutboxLane, timedelta], now: datetime, cut_short: Collection[OutboxLane]) -> None:
        """Record a read that reached so far from this instant; lanes that were cut short have more rows."""
        for lane in reach.keys() - cut_short:
            reading = self._lanes[lane]
            reading.read = now + reading.ahead
            reading.ahead = min(reading.ahead * _GROWS, AHEAD)

    def left(self, lane: OutboxLane, first: datetime, *, all_of_them: bool) -> None:
        """Record that rows of a lane from this instant on found no room: all that were read, or only some."""
        reading = self._lanes[lane]
        reading.read = min(reading.read, first)
        reading.ahead = min(max(first - self.now(), _SHORTEST), reading.ahead)
        if all_of_them or reading.ahead == _SHORTEST:
            reading.resumes = first

    def split(self, rows: Iterable[DueRow]) -> tuple[list[DueRow], Mapping[str, list[DueRow]]]:
        """Return the rows that are due, and those that are not, by topic."""
        now, due, early = self.now(), list[DueRow](), defaultdict[str, list[DueRow]](list)
        for row in rows:
            if row[PUBLISH_AT] > now and row[TOPIC] in self.slots:
                early[row[TOPIC]].append(row)
            else:
                due.append(row)
        return due, early

    def wakes_at(self, lane: OutboxLane, due: datetime) -> datetime:
        """Return the instant at which the earliest unread row of a lane is to be read, which is due then."""
        reading = self._lanes.get(lane)
        if reading is None or not self.slots or due < reading.read or due <= reading.resumes:
            return due
        return max(due - reading.ahead * (1 - _GATHER), reading.resumes)
