"""Low-water marks: start each poll behind the last processed row, past dead index entries.

Rows that are deleted from the front of an index leave dead entries there. Vacuum cannot remove them while any
transaction is open in the database, and a poll from the start of the index would scan all of them. A mark lies one
second below the clock and below the earliest row left, because a transaction may commit an earlier row late. Rows due
even earlier (a pause that ended, a clock that jumped back) are found by a full scan. Full scans run at most once a
second and take at most a twentieth of the time. A slow full scan is made in parts, so that no poll waits long for it.

A key without a mark is read from the start. So marks may be forgotten, and are where tenants come and go.
"""

import sys
from collections.abc import Hashable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final, Generic, TypeVar

from tidewheel.clock import monotonic_seconds

BEGINNING = datetime.min.replace(tzinfo=UTC)

K = TypeVar("K", bound=Hashable)

LATE_COMMIT: Final = timedelta(seconds=1)  # between a transaction's clock reading and its commit; later ones are late
_MOST_MARKS = 10_000  # about 2 MB; an installation has fewer shards
_QUICK_SECONDS = 0.1  # a full scan that need not be split: latency's 99th percentile may be 60 ms (docs/performance.md)


class LowWaterMarks(Generic[K]):
    """The low-water marks of one kind of poll, by key: a shard, or a tenant in a queue and lane."""

    def __init__(self) -> None:
        self._marks: dict[K, datetime] = {}
        self._pacer = FullScanPacer()
        self._limit = sys.maxsize  # keys that one poll scans in full: halved while full scans are slow
        self._order: list[K] = []  # the key whose full scan is longest ago comes first

    def scan_from(self, keys: Sequence[K]) -> list[datetime]:
        """Start a poll; return the instant from which it scans each key."""
        full = self._next(keys) if self._pacer.start() else frozenset[K]()
        return [BEGINNING if key in full else self._marks.get(key, BEGINNING) for key in keys]

    def _next(self, keys: Sequence[K]) -> frozenset[K]:
        self._limit = max(min(self._limit, len(keys)), 1)
        self._limit = max(self._limit // 2, 1) if self._pacer.slow else self._limit * 2
        order, wanted = dict.fromkeys([*self._order, *keys]), frozenset(keys)
        full = dict.fromkeys([key for key in order if key in wanted][: self._limit])
        self._order = [*(key for key in order if key not in full), *full]
        return frozenset(full)

    def scan_soon(self) -> None:
        """Make the next poll a full scan if the share of time allows it.

        A notification reports new rows; they may be due already, below the mark.
        """
        self._pacer.scan_soon()

    def record(self, earliest: Mapping[K, datetime | None], now: datetime) -> None:
        """Record the earliest row that the poll found for each key, by the database's clock."""
        self._pacer.finish()
        for key, at in earliest.items():
            self._marks[key] = min(at or now, now) - LATE_COMMIT
        if len(self._marks) > _MOST_MARKS:
            self._marks = {key: self._marks[key] for key in earliest}
            self._order = [key for key in self._order if key in self._marks]

    def of(self, keys: Iterable[K]) -> dict[K, datetime]:
        """Return the marks of these keys, for the statement that takes due rows."""
        return {key: self._marks.get(key, BEGINNING) for key in keys}


class FullScanPacer:
    """Decide when the next full scan is due: every so often, and for a bounded share of the time.

    A full scan meets all dead entries that vacuum cannot remove yet, so its duration has no bound.

    Args:
        every_seconds: From the end of one full scan to the next, while they are quick.
        at_once: True if the first full scan is due now, False if `every_seconds` come first.
        share: Full scans take at most one part in `share` of the time.
    """

    def __init__(self, every_seconds: float = 1.0, *, at_once: bool = True, share: int = 20) -> None:
        self._every_seconds, self._share = every_seconds, share
        self._next = 0.0 if at_once else monotonic_seconds() + every_seconds
        self._allowed = self._started = 0.0
        self._scanning = False
        self._seconds = 0.0

    @property
    def slow(self) -> bool:
        """True if the last full scan took so long that the next is better split, or made in the background."""
        return self._seconds > _QUICK_SECONDS

    @property
    def pause_seconds(self) -> float:
        """The time from the end of the last full scan to the next."""
        return max(self._every_seconds, self._seconds * self._share)

    def start(self) -> bool:
        """Start a poll; return True if it is a full scan, which lasts until `finish`."""
        now = monotonic_seconds()
        if self._scanning:  # the last full scan failed, possibly because it took too long
            self._seconds = max(now - self._started, self._seconds)
        self._started = now
        self._scanning = now >= self._next
        return self._scanning

    def finish(self) -> None:
        """End the poll. A full scan that fails is never finished, so the next poll is a full scan again."""
        if self._scanning:
            self.record(monotonic_seconds() - self._started)

    def record(self, seconds: float, *, whole: bool = True) -> None:
        """Record the duration of a full scan, or of a part of one."""
        ended = monotonic_seconds()
        allowed = ended + seconds * self._share
        self._seconds = seconds if whole else max(seconds, self._seconds)
        self._allowed = allowed if whole else max(allowed, self._allowed)
        self._next = max(ended + self._every_seconds, self._allowed)
        self._scanning = False

    def scan_soon(self) -> None:
        """Make the next poll a full scan, unless full scans have used up their share of the time."""
        self._next = self._allowed
