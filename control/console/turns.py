"""Turns: one after the other, a tenant after the other."""

from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class Turns(Generic[T]):
    """Waits of tenants, each with those who wait: who begins to wait again while waiting keeps its place.

    >>> turns = Turns[str]()
    >>> for name in ("a1", "a2", "a3", "b1", "a1"):
    ...     turns.wait(name[0], name)
    >>> turns.leave("a", "a2")
    >>> [turns.take(), turns.take(), turns.take(), turns.take()]
    ['a1', 'b1', 'a3', None]
    """

    def __init__(self) -> None:
        self._tenants: dict[str, dict[T, None]] = {}

    def wait(self, tenant: str, waiting: T) -> None:
        """Begin to wait."""
        self._tenants.setdefault(tenant, {}).setdefault(waiting)

    def leave(self, tenant: str, waiting: T) -> None:
        """Wait no longer."""
        if tenant in self._tenants:
            self._tenants[tenant].pop(waiting, None)

    def take(self) -> T | None:
        """Return who has its turn; None if none waits."""
        while self._tenants:
            tenant = next(iter(self._tenants))
            waiting = self._tenants.pop(tenant)
            if first := next(iter(waiting), None):
                del waiting[first]
                if waiting:
                    self._tenants[tenant] = waiting  # behind the others
                return first
        return None
