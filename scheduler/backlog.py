"""Which shards come next while more is due than one batch takes: few at a time, in turn.

An id begins with its job's bucket, so the rows of one shard lie side by side in every index: a batch out of two shards
touches a thirtieth of the pages that one out of sixty-four does. While less is due than a batch takes all shards share
it, so that nobody waits for another's turn.
"""

from collections import deque
from collections.abc import Iterable

_FEWEST = 2


class Rush:
    """The shards that are due and whose turn is still to come, the longest due first; used by two threads."""

    def __init__(self) -> None:
        self._line: deque[int] = deque()

    @property
    def on(self) -> bool:
        """Whether anybody's turn is still to come."""
        return bool(self._line)

    def begin(self, due: Iterable[int]) -> None:
        """More is due in these than a batch takes."""
        self._line = deque(due)

    def next(self, most: int) -> list[int]:
        """The shards whose turn is now, fewer where fewer are left."""
        some: list[int] = []
        while len(some) < most:
            try:
                some.append(self._line.popleft())
            except IndexError:
                break
        return some


class Bite:
    """From how many shards one thread takes a batch: few, as long as they fill it."""

    def __init__(self) -> None:
        self.shards = _FEWEST

    def took(self, *, full: bool) -> None:
        """A batch was a full one, or not."""
        self.shards = max(self.shards // 2, _FEWEST) if full else self.shards * 2
