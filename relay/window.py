"""Decide how many runs of one topic may be published and not claimed.

Kafka is first in, first out, and nothing in it can be recalled. What the relay publishes now delays all that comes
after it. So it keeps the wait of published runs short: it measures how old the oldest unclaimed one is, and makes the
window smaller or larger. No fixed number is right, since handlers may take a millisecond or a minute.

A topic with a moderate flow spends a credit, and its runs are counted every five seconds only. A trickle is counted
every 30 s. So a fleet that keeps up pays next to nothing, and a slow overload is seen all the same.

A large window is a fast flow, in which each run would be looked up several times. There the relay counts a sample.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

MOST: int = 20_000  # of a window
_UNSERVED = 64  # the window of a queue without an executor
_FIRST = 16  # at the least, of a window that begins
_PER_EXECUTOR = 4  # a window of the fleet's slots would put a second filling of them in front of all others
_LEAST = 4
_SAMPLE = 256  # runs of a full window that are counted at the least; of a larger one each represents several

_CREDIT_ROWS = 128.0  # published at once without a count
_CREDIT_ROWS_PER_SECOND = 256.0

_LONG_SECONDS = 0.4  # the age of the oldest unclaimed run at which the window shrinks
_SHORT_SECONDS = 0.1  # the age up to which it grows by half
_FAIR_SECONDS = 0.2  # the age up to which it grows by a quarter, if nearly all are claimed
_FORGET_SECONDS = 30.0  # then a run counts no more: no executor takes it by its message

_CALM_SECONDS = 5.0  # between two counts while the credit suffices
_TRICKLE_SECONDS = 30.0  # where fewer than _FEW were published since
_OPEN_SECONDS = 0.25  # between two counts while it does not
_HELD_SECONDS = 0.1
_YOUNG_SECONDS = 0.05  # while a small window grows
_YOUNG_ROWS = 1000
_STANDSTILL_SECONDS = 1.0  # the longest pause while no executor claims; the sweep serves a free slot by then
_MOST_DOUBLINGS = 8
_FEW = 100


class Unclaimed(NamedTuple):
    """A published run.

    Args:
        sent: The monotonic time at which it was published.
        publish_at: Of its message. A later attempt of the run has a later one.
    """

    sent: float
    publish_at: datetime
    represents: float


class Window:
    """The window of one topic."""

    def __init__(self, now: float) -> None:
        self.unclaimed: dict[bytes, Unclaimed] = {}
        self.size = 0
        self._credit, self._credited_at = _CREDIT_ROWS, now
        self._counted_at = now
        self._strained = False  # at the last count runs had waited for long
        self._standstill = 0  # counts in a row that found no room, and nothing claimed since the one before

    def room(self) -> int:
        """Return how many more runs may be published."""
        return max(self.size - round(_total(self.unclaimed)), 0)

    @property
    def stride(self) -> int:
        """The distance of the runs to record, among those that leave together."""
        return max(self.size // _SAMPLE, 1)

    def takes(self, rows: int, now: float) -> bool:
        """Return True if so many runs may be published now, by credit or by room."""
        credit = min(self._credit + (now - self._credited_at) * _CREDIT_ROWS_PER_SECOND, _CREDIT_ROWS)
        self._credit, self._credited_at = credit, now
        if rows <= credit and not self._strained:
            self._credit -= rows
            return True
        return rows <= self.room()

    def publish(self, sample: Sequence[tuple[bytes, datetime]], now: float, *, runs: int) -> None:
        """Record that so many runs leave, by each `stride`-th of them."""
        if sample:
            represents = runs / len(sample)
            self.unclaimed.update((run_id, Unclaimed(now, publish_at, represents)) for run_id, publish_at in sample)

    def seconds_to_count(self, now: float, *, held: bool) -> float:
        """Return the seconds until the unclaimed runs should be counted again."""
        if held:
            pause = _YOUNG_SECONDS if self.size < _YOUNG_ROWS else _HELD_SECONDS
            if not self.room():
                pause = min(pause * 2**self._standstill, _STANDSTILL_SECONDS)
        elif self._strained or self._credit < _CREDIT_ROWS / 2:
            pause = _OPEN_SECONDS
        elif not self.unclaimed:
            return _CALM_SECONDS
        else:
            pause = _CALM_SECONDS if _total(self.unclaimed) >= _FEW else _TRICKLE_SECONDS
        return max(self._counted_at + pause - now, 0.0)

    def counted(self, waiting: Iterable[bytes], executors: int, now: float, *, share: float, held: bool) -> None:
        """Record a count at a monotonic time, and make the window smaller or larger."""
        self._counted_at = now
        since = now - _FORGET_SECONDS if executors else float("-inf")
        recorded, published = len(self.unclaimed), _total(self.unclaimed)
        left = {run_id: one for run_id in waiting if (one := self.unclaimed.get(run_id)) is not None}
        age = now - min((one.sent for one in left.values()), default=now)  # with those that are forgotten now
        self.unclaimed = {run_id: one for run_id, one in left.items() if one.sent > since}
        self._strained = age > _LONG_SECONDS
        self.size = _next_size(self.size, published, _total(left), age, executors, share=share, held=held)
        stands = recorded == len(self.unclaimed) and not self.room()
        self._standstill = min(self._standstill + 1, _MOST_DOUBLINGS) if stands else 0


def _total(runs: Mapping[bytes, Unclaimed]) -> float:
    return sum(one.represents for one in runs.values())


def _next_size(
    size: int, published: float, unclaimed: float, age: float, executors: int, *, share: float, held: bool
) -> int:
    if not executors:
        return _UNSERVED
    if not size:
        return max(_FIRST, int(_PER_EXECUTOR * executors * share))
    least = max(_LEAST, int(executors * share))
    if age > _LONG_SECONDS:
        return max(int(size * 0.7), least)
    full = published > 0 and (held or published >= size)
    if full and age < _SHORT_SECONDS and unclaimed <= size / 2:
        return min(max(int(size * 1.5), least), MOST)
    if full and age < _FAIR_SECONDS and unclaimed <= size / 8:
        return min(max(int(size * 1.25), least), MOST)
    return max(size, least)
