"""How many runs an executor takes at once.

Of every ten slots one is kept for the critical lane (none below ten), so that a flood of ordinary work never keeps a
critical run waiting for a slot.

Runs that end without ever waiting for anything need a slot for microseconds: while all are such, more may be claimed
than there are slots (`ahead`). What begins is bounded by `line.py`, whatever was claimed.
"""

import threading

from tidewheel.metrics import metrics
from tidewheel.runs import Lane

_KEPT_FOR_CRITICAL = 10  # one of so many


class Slots:
    """The slots of one executor; safe from every thread."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._kept = total // _KEPT_FOR_CRITICAL
        self._busy = self._most_busy = self._ahead = 0
        self._changed = threading.Condition()

    def take(self, lane: Lane, most: int, *, ahead: bool = False) -> int:
        """Take up to `most` slots for a lane, at once.

        Args:
            lane: Whose.
            most: How many, at most.
            ahead: Whether those count that are allowed beyond the slots there are.

        Returns:
            How many were taken; 0 where none is free.
        """
        with self._changed:
            taken = max(min(self._free(lane, ahead=ahead), most), 0)
            self._set_busy(self._busy + taken)
            self._most_busy = max(self._most_busy, self._busy)
            return taken

    def give_back(self, count: int) -> None:
        """Free slots that were taken."""
        if count <= 0:
            return
        with self._changed:
            self._set_busy(self._busy - count)
            self._changed.notify_all()

    def allow_ahead(self, count: int) -> None:
        """So many more may be claimed than there are slots, until something else is said."""
        with self._changed:
            self._ahead = count
            self._changed.notify_all()

    def free(self, lane: Lane, *, ahead: bool = False) -> int:
        """How many a lane could take now."""
        with self._changed:
            return max(self._free(lane, ahead=ahead), 0)

    def is_scarce(self, lane: Lane) -> bool:
        """Whether hardly any is free of all that may be claimed: more will come free in a moment."""
        with self._changed:
            return self._free(lane, ahead=True) < (self.total + self._ahead) // 4

    def most_begun(self, lane: Lane) -> int:
        """How many runs there may be at once that have begun, for one of this lane to begin."""
        return self.total - self._reserved(lane)

    def watch(self) -> None:
        """Begin to take note of how many are busy at most, for `spare`; for one watcher."""
        with self._changed:
            self._most_busy = self._busy

    def spare(self, lane: Lane) -> int:
        """How many a lane could have taken at any moment since `watch`: what nobody needed all the while."""
        with self._changed:
            return max(self.total - self._most_busy - self._reserved(lane), 0)

    def wait_free(self, lane: Lane, seconds: float, *, ahead: bool = False) -> bool:
        """Wait until a lane could take one; returns whether that came about in time."""
        with self._changed:
            return self._changed.wait_for(lambda: self._free(lane, ahead=ahead) > 0, timeout=seconds)

    def _free(self, lane: Lane, *, ahead: bool) -> int:
        return self.total + (self._ahead if ahead else 0) - self._busy - self._reserved(lane)

    def _reserved(self, lane: Lane) -> int:
        return 0 if lane is Lane.CRITICAL else self._kept

    def _set_busy(self, busy: int) -> None:
        self._busy = busy
        metrics.set("slots_busy", min(busy, self.total))
