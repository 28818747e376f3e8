"""Messages that come before their runs are due.

Each waits here until the database's clock has reached its instant.
The claim's own statement compares the two once more. Offsets do not move past a message that waits: another member
reads it again if this one dies. So many messages and bytes are kept at most; more stay with the broker. A message that
comes long before its time is an old copy, and is claimed in vain.
"""

import heapq
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Final

from tidewheel.executor.run_messages import FetchedMessage

_MOST: Final = 10_000
_MOST_BYTES: Final = 8 << 20
_LONGEST: Final = timedelta(seconds=5)


class EarlyMessages:
    """The messages of one lane whose runs are not due yet; for one thread."""

    def __init__(self, database_now: Callable[[], datetime]) -> None:
        self._now = database_now
        self._waiting: list[tuple[datetime, int, FetchedMessage]] = []
        self._count = self._bytes = 0

    @property
    def full(self) -> bool:
        """True if no more messages are to be fetched before the next one is due."""
        return len(self._waiting) >= _MOST or self._bytes >= _MOST_BYTES

    def __len__(self) -> int:
        return len(self._waiting)

    def exchange(self, fetched: Iterable[FetchedMessage]) -> list[FetchedMessage]:
        """Keep the messages whose runs are not due; return the others, behind those that have become due."""
        now, due = self._now(), list[FetchedMessage]()
        for each in fetched:
            if each.run is None or not now < each.run.request.publish_at < now + _LONGEST:
                due.append(each)
            else:
                self._count += 1
                self._bytes += len(each.message)
                heapq.heappush(self._waiting, (each.run.request.publish_at, self._count, each))
        waited: list[FetchedMessage] = []
        while self._waiting and self._waiting[0][0] <= now:
            waited.append(heapq.heappop(self._waiting)[2])
        self._bytes -= sum(len(message) for message, _ in waited)
        return waited + due

    def seconds_left(self, most: float) -> float:
        """Return the seconds until the next message is due, at most so many."""
        if not self._waiting:
            return most
        return min(max((self._waiting[0][0] - self._now()).total_seconds(), 0.0), most)

    def first_offsets(self) -> Mapping[int, int]:
        """Return the first offset of each partition that has messages here."""
        first: dict[int, int] = {}
        for _, _, (message, _) in self._waiting:
            partition, offset = message.partition(), message.offset()
            if partition is not None and offset is not None:
                first[partition] = min(offset, first.get(partition, offset))
        return first

    def drop(self, partitions: Collection[int]) -> None:
        """Drop the messages of partitions that are another member's now."""
        self._waiting = [each for each in self._waiting if each[2].message.partition() not in partitions]
        heapq.heapify(self._waiting)
        self._bytes = sum(len(message) for _, _, (message, _) in self._waiting)
