"""A cache that is bounded by the size of its entries, not by their number."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class WeighedCache(Generic[K, V]):
    """Values by their keys, the least recently used first out; thread-safe.

    Args:
        read: Returns the value of a key; what it raises is not kept.
        weigh: Returns the bytes of an entry, by its key.
        most_bytes: The bound. The newest entry is kept even if it alone is larger.
    """

    def __init__(self, read: Callable[[K], V], weigh: Callable[[K], int], most_bytes: int) -> None:
        self._read, self._weigh, self._most_bytes = read, weigh, most_bytes
        self._bytes = 0
        self._values: OrderedDict[K, V] = OrderedDict()
        self._lock = threading.Lock()

    def of(self, key: K) -> V:
        """Return the value of a key."""
        with self._lock:
            found = self._values.get(key)
            if found is not None:
                self._values.move_to_end(key)
                return found
            found = self._values[key] = self._read(key)
            self._bytes += self._weigh(key)
            while self._bytes > self._most_bytes and len(self._values) > 1:
                dropped, _ = self._values.popitem(last=False)
                self._bytes -= self._weigh(dropped)
            return found

    def cache_clear(self) -> None:
        """Forget all values, as the method of that name of `lru_cache`."""
        with self._lock:
            self._values.clear()
            self._bytes = 0
