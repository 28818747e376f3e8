"""The pace of bulk work over the last half minute, from the counts that this process has read.

The rows of bulk work have counts, and no history. A page that is open reads them again with each change, so a process
remembers what it read for half a minute. A page that is opened first has the rate since the acceptance.
"""

from collections import OrderedDict, deque
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from threading import Lock
from typing import NamedTuple

from tidewheel.control.console.progress import TOO_EARLY, Work, time_left

SPAN = timedelta(seconds=30)
_STALE = 2 * SPAN  # no page has read it for so long
_MOST = 500  # works that are remembered


class _Read(NamedTuple):
    at: datetime
    done: int


@dataclass(frozen=True, slots=True)
class Paces:
    """The counts of bulk work that were read within the last minute."""

    _read: OrderedDict[str, deque[_Read]] = field(default_factory=OrderedDict[str, deque[_Read]])
    _lock: Lock = field(default_factory=Lock)

    def __len__(self) -> int:
        return len(self._read)

    def seen(self, work: Work, now: datetime) -> Work:
        """Remember the count of a work; return it with its rate over the last 30 s, if that is known."""
        if work.state != "running":
            return work
        with self._lock:
            first = self._first(work, now)
        if now - first.at < TOO_EARLY or work.done < first.done:
            return work
        rate = (work.done - first.done) / (now - first.at).total_seconds()
        return replace(work, rate=rate, is_recent=True, left=time_left(work, rate))

    def _first(self, work: Work, now: datetime) -> _Read:
        """Return what the span begins with: the newest count that is old enough, or the oldest one."""
        name = f"{work.kind}/{work.id}"
        counts = self._read.setdefault(name, deque())
        self._read.move_to_end(name)
        while len(self._read) > _MOST:
            self._read.popitem(last=False)
        while counts and counts[0].at <= now - _STALE:
            counts.popleft()
        while len(counts) > 1 and counts[1].at <= now - SPAN:
            counts.popleft()
        if not counts or counts[-1].at < now:
            counts.append(_Read(now, work.done))
        return counts[0]
