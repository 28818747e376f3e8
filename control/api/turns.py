"""Turns: a tenant after the other, and a key after the other within a tenant.

The tenant that sends most waits longest. A full queue pushes out the last of the tenant that has the most in it. So
requests of another tenant always find room.
"""

import asyncio
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class Turns(Generic[T]):
    """A queue with a line for each key of each tenant; an entry that waits already keeps its place.

    >>> turns = Turns[str](most=5)
    >>> for name in ("a1", "a2", "a3", "b1", "a1"):
    ...     assert turns.wait(name[0], "key", name) is None
    >>> turns.wait("c", "key", "c1"), turns.wait("a", "key", "a4"), turns.wait("a", "other", "a5")
    (None, 'a4', 'a3')
    >>> turns.leave("a", "key", "a2")
    >>> [turns.take(), turns.take(), turns.take(), turns.take(), turns.take()]
    [('a', 'a1'), ('b', 'b1'), ('c', 'c1'), ('a', 'a5'), None]
    """

    def __init__(self, most: int | None = None) -> None:
        self._most = most
        self._tenants: dict[str, dict[str, dict[T, None]]] = {}

    def __len__(self) -> int:
        """Return the number of entries."""
        return sum(map(_size, self._tenants.values()))

    def wait(self, tenant: str, key: str, entry: T) -> T | None:
        """Add an entry; return the one that a full queue pushes out for it, perhaps the same."""
        self._tenants.setdefault(tenant, {}).setdefault(key, {}).setdefault(entry)
        if self._most is None or len(self) <= self._most:
            return None
        largest = max(self._tenants, key=lambda name: (_size(self._tenants[name]), name == tenant))
        lines = self._tenants[largest]
        longest = max(lines, key=lambda name: (len(lines[name]), (largest, name) == (tenant, key)))
        last = next(reversed(lines[longest]))
        self.leave(largest, longest, last)
        return last

    def leave(self, tenant: str, key: str, entry: T) -> None:
        """Remove an entry, if it waits."""
        lines = self._tenants.get(tenant, {})
        if key in lines:
            lines[key].pop(entry, None)
            if not lines[key]:
                del lines[key]
            if not lines:
                del self._tenants[tenant]

    def take(self, may: Callable[[str], bool] = lambda _: True) -> tuple[str, T] | None:
        """Remove and return the entry whose turn it is, with its tenant; None if no tenant that may has one."""
        tenant = next(filter(may, self._tenants), None)
        if tenant is None:
            return None
        lines = self._tenants.pop(tenant)
        key = next(iter(lines))
        line = lines.pop(key)
        entry = next(iter(line))
        del line[entry]
        if line:
            lines[key] = line  # behind the other keys
        if lines:
            self._tenants[tenant] = lines  # behind the others
        return tenant, entry


class Turnstile:
    """Turns `apart_seconds` apart, an address after the other."""

    def __init__(self, *, apart_seconds: float, saved_seconds: float, most: int) -> None:
        self._apart, self._saved = apart_seconds, saved_seconds
        self._waiting = Turns[asyncio.Future[bool]](most)
        self._next = 0.0
        self._timer: asyncio.TimerHandle | None = None

    async def passes(self, address: str) -> bool:
        """Wait for a turn; return False as soon as the queue pushes this entry out."""
        loop = asyncio.get_running_loop()
        if self._timer is None and self._next <= loop.time():
            self._count(loop.time())
            return True
        entry: asyncio.Future[bool] = loop.create_future()
        if (last := self._waiting.wait(address, "", entry)) is not None:
            last.set_result(False)
        self._timer = self._timer or loop.call_at(self._next, self._give)
        try:
            return await entry
        finally:
            self._waiting.leave(address, "", entry)

    def _give(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = None
        if (found := self._waiting.take()) is not None:
            self._count(loop.time())
            found[1].set_result(True)
            self._timer = loop.call_at(self._next, self._give)

    def _count(self, now: float) -> None:
        self._next = max(self._next, now - self._saved) + self._apart


def _size(lines: dict[str, dict[T, None]]) -> int:
    return sum(map(len, lines.values()))
