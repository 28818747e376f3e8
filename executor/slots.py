"""How many runs an executor takes at once.

Of every ten slots one is kept for the critical lane (none below ten), so that a flood of ordinary work never keeps a
critical run waiting for a slot.

Runs that end without ever waiting for anything need a slot for microseconds: while all are such, more may be claimed
than there are slots (`ahead`). What begins is bounded by `line.py`, whatever was claimed.
"""

import threading
from typing import NamedTuple

from tidewheel.clock import monotonic_seconds
from tidewheel.process.metrics import metrics
from tidewheel.runs import Lane

_KEPT_FOR_CRITICAL = 10  # one of so many


class Taken(NamedTuple):
    """Slots that were taken: how many, and how many of those there are, and are not merely allowed ahead."""

    taken: int
    real: int


class Slots:
    """The slots of one executor; safe from every thread."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._kept = total // _KEPT_FOR_CRITICAL
        self._critical = self._others = self._most_busy = self._ahead = 0
        self._held_until: dict[Lane, float] = {}  # lanes for which nothing is claimed ahead
        self._next: Lane | None = None  # whose are the next slots that come free, by `take_next`
        self._changed = threading.Condition()

    def take(self, lane: Lane, most: int) -> int:
        """Take up to `most` slots for a lane, at once.

        Returns:
            How many were taken; 0 where none is free.
        """
        with self._changed:
            return self._take(lane, min(self._free(lane), most))

    def take_ahead(self, lane: Lane, most: int) -> Taken:
        """The same, counting those that are allowed beyond the slots there are."""
        with self._changed:
            real = max(self._free(lane), 0)
            taken = self._take(lane, min(self._free_ahead(lane), most))
            if real and taken and self._held_until.pop(lane, None) is not None:
                self._changed.notify_all()
            return Taken(taken, min(real, taken))

    def take_next(self, lane: Lane, most: int, seconds: float) -> int:
        """Take `most` slots that there are before anybody else takes one, or what came free in time; for one thread.

        Until then nobody claims ahead, and the others wait; of them the critical lane only for its own.

        Returns:
            How many were taken; 0 where none came free in time.
        """
        with self._changed:
            self._next = lane
            try:
                self._changed.wait_for(lambda: self._there(lane) >= most, timeout=seconds)
                return self._take(lane, min(self._there(lane), most))
            finally:
                self._next = None
                self._changed.notify_all()

    def give_back(self, lane: Lane, count: int) -> None:
        """Free slots that were taken."""
        if count <= 0:
            return
        with self._changed:
            self._add(lane, -count)
            self._changed.notify_all()

    def allow_ahead(self, count: int) -> None:
        """So many more may be claimed than there are slots, until something else is said."""
        with self._changed:
            self._ahead = count
            self._changed.notify_all()

    def are_ahead(self) -> bool:
        """Whether more may be claimed than there are slots: nothing that begins waits."""
        return self._ahead > 0

    def hold_ahead(self, lane: Lane, seconds: float) -> None:
        """Let nobody claim ahead until this lane has taken a slot that there is, or the time is over.

        That is when what was claimed ahead is worked off: longer than any moment, where the processor is short.
        """
        with self._changed:
            self._held_until[lane] = monotonic_seconds() + seconds

    def free(self, lane: Lane) -> int:
        """How many a lane could take now."""
        with self._changed:
            return max(self._free(lane), 0)

    def free_ahead(self, lane: Lane) -> int:
        """The same, with what is allowed ahead."""
        with self._changed:
            return max(self._free_ahead(lane), 0)

    def is_scarce(self, lane: Lane) -> bool:
        """Whether hardly any is free of all that may be claimed: more will come free in a moment."""
        with self._changed:
            return self._free_ahead(lane) < (self.total + self._ahead) // 4

    def may_begin(self, lane: Lane, critical: int, others: int) -> bool:
        """Whether one more of a lane may begin where so many have begun of the critical lane, and of the others."""
        return critical + others < self.total and (lane is Lane.CRITICAL or others < self.total - self._kept)

    def watch(self) -> None:
        """Begin to take note of how many are busy at most, for `spare`; for one watcher."""
        with self._changed:
            self._most_busy = self._critical + self._others

    def spare(self, lane: Lane) -> int:
        """How many a lane could have taken at any moment since `watch`: what nobody needed all the while."""
        with self._changed:
            reserved = 0 if lane is Lane.CRITICAL else self._kept
            return max(self.total - self._most_busy - reserved, 0)

    def wait_free(self, lane: Lane, seconds: float) -> bool:
        """Wait until a lane could take one; returns whether that came about in time."""
        with self._changed:
            return self._changed.wait_for(lambda: self._free(lane) > 0, timeout=seconds)

    def wait_free_ahead(self, lane: Lane, seconds: float) -> bool:
        """The same, with what is allowed ahead."""
        with self._changed:
            return self._changed.wait_for(lambda: self._free_ahead(lane) > 0, timeout=seconds)

    def wait_half_free(self, lane: Lane, seconds: float) -> None:
        """Wait until a lane could take half of what may be claimed, where anything may be ahead of the slots.

        The other half is in the line meanwhile: claims come in few large batches, and the line does not run dry.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: not self._ahead or self._free_ahead(lane) * 2 >= self.total + self._ahead, timeout=seconds
            )

    def _free(self, lane: Lane) -> int:
        waits = self._next is not None and (lane is not Lane.CRITICAL or self._next is Lane.CRITICAL)
        return min(self._there(lane), 0) if waits else self._there(lane)

    def _there(self, lane: Lane) -> int:
        if lane is Lane.CRITICAL:
            # What others have claimed ahead is in the line behind it, and takes no slot from it.
            return self.total - self._critical - min(self._others, self.total - self._kept)
        return self.total - self._kept - self._critical - self._others

    def _free_ahead(self, lane: Lane) -> int:
        held = self._held_until and max(self._held_until.values()) > monotonic_seconds()
        ahead = 0 if held or self._next is not None else self._ahead
        if lane is Lane.CRITICAL:
            ahead -= max(self._others - (self.total - self._kept), 0)  # what others have of it
        return self._free(lane) + max(ahead, 0)

    def _take(self, lane: Lane, count: int) -> int:
        taken = max(count, 0)
        self._add(lane, taken)
        self._most_busy = max(self._most_busy, self._critical + self._others)
        return taken

    def _add(self, lane: Lane, count: int) -> None:
        if lane is Lane.CRITICAL:
            self._critical += count
        else:
            self._others += count
        metrics.set("slots_busy", min(self._critical + self._others, self.total))
