"""Which shards to look at while more is due than one batch takes: few at a time, in turn.

An id begins with its job's bucket, so the rows of one shard lie side by side in every index: a batch out of two shards
touches a thirtieth of the pages that one out of sixty-four does. While less is due than a batch takes all shards share
it, so that nobody waits for another's turn.
"""

from collections.abc import Sequence

_FEWEST = 4  # two for each of two connections


class Rush:
    """The shards that are due and whose turn is still to come; empty while there is no rush."""

    def __init__(self) -> None:
        self._line: list[int] = []
        self._at_once = 0  # 0: all of them

    @property
    def on(self) -> bool:
        """Whether the last batch was a full one, or one of few shards."""
        return self._at_once > 0

    def next(self) -> list[int]:
        """The shards whose turn is now; none when it is time to look at all."""
        some, self._line = self._line[: self._at_once], self._line[self._at_once :]
        return some

    def take(self, due: Sequence[int]) -> Sequence[int]:
        """Those of the shards that are due, the longest due first, that go into this batch; the others' turn comes."""
        if not self.on:
            return due
        self._line = [*due[self._at_once :], *self._line]
        return due[: self._at_once]

    def saw(self, shards: int, *, full: bool) -> None:
        """A batch of so many shards was a full one, or not."""
        if full:
            self._at_once = max((self._at_once or shards) // 2, _FEWEST)
        elif self.on:
            self._at_once *= 2
            if not self._line:
                self._at_once = 0
