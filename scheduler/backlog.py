"""Rotate through the due shards while more is due than one batch takes, a few shards per batch.

An id begins with its job's bucket, so the rows of one shard lie next to each other in every index. A batch out of two
shards touches a thirtieth of the pages that a batch out of sixty-four does. Without a backlog all shards share a batch,
so that no shard waits for another.
"""

from collections import deque
from collections.abc import Iterable

_MIN_SHARDS = 2


class ShardRotation:
    """The due shards not yet polled in this backlog, the longest due first. Two threads use it."""

    def __init__(self) -> None:
        self._shards: deque[int] = deque()

    @property
    def active(self) -> bool:
        """True if shards are left to poll."""
        return bool(self._shards)

    def start(self, due: Iterable[int]) -> None:
        """Start a rotation through these shards."""
        self._shards = deque(due)

    def take(self, limit: int) -> list[int]:
        """Take the next shards, at most `limit`."""
        taken: list[int] = []
        while len(taken) < limit:
            try:
                taken.append(self._shards.popleft())
            except IndexError:
                break
        return taken


class BatchWidth:
    """The number of shards of one thread's next batch: few, as long as they fill it."""

    def __init__(self) -> None:
        self.shards = _MIN_SHARDS

    def adjust(self, *, full: bool) -> None:
        """Halve the width after a full batch, else double it."""
        self.shards = max(self.shards // 2, _MIN_SHARDS) if full else self.shards * 2
