"""How many runs an executor takes at once.

Of every ten slots one is kept for the critical lane (none below ten), so that a flood of ordinary work never keeps a
critical run waiting for a slot.
"""

import threading

from tidewheel.clock import monotonic_seconds
from tidewheel.metrics import metrics
from tidewheel.runs import Lane

_KEPT_FOR_CRITICAL = 10  # one of so many


class Slots:
    """The slots of one executor; safe from every thread."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._kept = total // _KEPT_FOR_CRITICAL
        self._busy = 0
        self._changed = threading.Condition()

    def take(self, lane: Lane, most: int, *, wait_seconds: float) -> int:
        """Take up to `most` slots for a lane, waiting until there is at least one.

        Returns:
            How many were taken; 0 when none came free in time.
        """
        deadline = monotonic_seconds() + wait_seconds
        with self._changed:
            while (free := self._free(lane)) <= 0:
                left = deadline - monotonic_seconds()
                if left <= 0:
                    return 0
                self._changed.wait(left)
            taken = min(free, most)
            self._busy += taken
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

    def wait_idle(self, seconds: float) -> bool:
        """Wait until none is taken; returns whether that came about in time."""
        with self._changed:
            return self._changed.wait_for(lambda: self._busy == 0, timeout=seconds)

    def _free(self, lane: Lane) -> int:
        return self.total - self._busy - (0 if lane is Lane.CRITICAL else self._kept)
