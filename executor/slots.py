"""How many runs an executor takes at once.

Of every ten slots one is kept for the critical lane (none below ten), so that a flood of ordinary work never keeps a
critical run waiting for a slot.
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
        self._busy = self._most_busy = 0
        self._changed = threading.Condition()

    def take(self, lane: Lane, most: int) -> int:
        """Take up to `most` slots for a lane, at once.

        Returns:
            How many were taken; 0 where none is free.
        """
        with self._changed:
            taken = max(min(self._free(lane), most), 0)
            self._busy += taken
            self._most_busy = max(self._most_busy, self._busy)
            metrics.set("slots_busy", self._busy)
            return taken

    def give_back(self, count: int) -> None:
        """Free slots that were taken."""
        if count <= 0:
            return
        with self._changed:
            self._busy -= count
            metrics.set("slots_busy", self._busy)
            self._changed.notify_all()

    def free(self, lane: Lane) -> int:
        """How many a lane could take now."""
        with self._changed:
            return max(self._free(lane), 0)

    def watch(self) -> None:
        """Begin to take note of how many are busy at most, for `spare`; for one watcher."""
        with self._changed:
            self._most_busy = self._busy

    def spare(self, lane: Lane) -> int:
        """How many a lane could have taken at any moment since `watch`: what nobody needed all the while."""
        with self._changed:
            return max(self.total - self._most_busy - self._reserved(lane), 0)

    def wait_free(self, lane: Lane, seconds: float) -> bool:
        """Wait until a lane could take one; returns whether that came about in time."""
        with self._changed:
            return self._changed.wait_for(lambda: self._free(lane) > 0, timeout=seconds)

    def _free(self, lane: Lane) -> int:
        return self.total - self._busy - self._reserved(lane)

    def _reserved(self, lane: Lane) -> int:
        return 0 if lane is Lane.CRITICAL else self._kept
