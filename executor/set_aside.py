"""Set aside writes that the database refuses alone, so that the others go on."""

from collections.abc import Hashable, Set
from typing import Generic, TypeVar

from tidewheel.clock import monotonic_seconds

K = TypeVar("K", bound=Hashable)

REFUSED_ALIKE = 3
"""If so many single writes are refused and none is accepted, the cause is the installation, and all wait."""
ASIDE_SECONDS = 1.0
"""Until the next try; doubled each time."""
_LONGEST_ASIDE_SECONDS = 15.0


def pause_seconds(tries: int) -> float:
    """Return the seconds until the next try of a write that was set aside so often before."""
    return min(ASIDE_SECONDS * 2.0**tries, _LONGEST_ASIDE_SECONDS)


class SetAside(Generic[K]):
    """The keys of refused writes, each with the time of its next try."""

    def __init__(self) -> None:
        self._tries: dict[K, tuple[int, float]] = {}

    def __contains__(self, key: K) -> bool:
        return key in self._tries

    def waits(self, key: K) -> bool:
        """Return True if the write must not be tried yet."""
        return key in self._tries and monotonic_seconds() < self._tries[key][1]

    def add(self, key: K) -> float:
        """Set a refused write aside; return the seconds until its next try."""
        tries = self._tries[key][0] if key in self._tries else 0
        seconds = pause_seconds(tries)
        self._tries[key] = tries + 1, monotonic_seconds() + seconds
        return seconds

    def drop(self, key: K) -> None:
        """Forget a write that was accepted."""
        self._tries.pop(key, None)

    def keep(self, keys: Set[K]) -> None:
        """Forget all other writes."""
        for key in self._tries.keys() - keys:
            del self._tries[key]
