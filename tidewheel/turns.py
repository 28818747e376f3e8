"""Turns of tenants, and threads that they share.

The tenant that sends most waits longest, and its work leaves threads for the others.
"""

from collections import Counter
from collections.abc import Callable, Generator, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from threading import Condition, Lock
from typing import Any, Generic, TypeVar

T = TypeVar("T")
E = TypeVar("E", bound=Hashable)


class Turns(Generic[E]):
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
        self._tenants: dict[str, dict[str, dict[E, None]]] = {}

    def __len__(self) -> int:
        """Return the number of entries."""
        return sum(map(_size, self._tenants.values()))

    def wait(self, tenant: str, key: str, entry: E) -> E | None:
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

    def leave(self, tenant: str, key: str, entry: E) -> None:
        """Remove an entry, if it waits."""
        lines = self._tenants.get(tenant, {})
        if key in lines:
            lines[key].pop(entry, None)
            if not lines[key]:
                del lines[key]
            if not lines:
                del self._tenants[tenant]

    def take(self, may: Callable[[str], bool] = lambda _: True) -> tuple[str, E] | None:
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


class SharedThreads:
    """Threads that tenants share.

    A tenant has at most as many as all others leave free: half of them while it is alone.
    No thread can be stopped: one that hangs stays with the tenant of its work until it returns.
    """

    def __init__(self, threads: int, name: str) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._lock = Lock()
        self._free = threads
        self._busy = Counter[str]()  # threads by tenant
        self._waiting = Turns[_Work[Any]]()

    def submit(self, tenant: str, run: Callable[[], T]) -> "Future[T]":
        """Run work on a thread when the tenant has its turn; until then it can be cancelled."""
        work = _Work(run)
        with self._lock:
            self._waiting.wait(tenant, "", work)
        work.add_done_callback(lambda _: self._leave(tenant, work))
        self._begin()
        return work

    def close(self) -> None:
        """Cancel what waits, and stop idle threads; busy ones end with the process."""
        with self._lock:
            waiting, self._waiting = self._waiting, Turns[_Work[Any]]()
        while (found := waiting.take()) is not None:
            found[1].cancel()
        self._pool.shutdown(wait=False)

    def _begin(self) -> None:
        with self._lock:
            while (found := self._waiting.take(self._may_begin)) is not None:
                tenant, work = found
                self._free -= 1
                self._busy[tenant] += 1
                self._pool.submit(self._on_thread, tenant, work)

    def _may_begin(self, tenant: str) -> bool:
        return self._busy[tenant] < self._free

    def _on_thread(self, tenant: str, work: "_Work[Any]") -> None:
        work.do()
        with self._lock:
            self._free += 1
            less(self._busy, tenant)
        self._begin()

    def _leave(self, tenant: str, work: "_Work[Any]") -> None:
        with self._lock:
            self._waiting.leave(tenant, "", work)


class SharedPlaces:
    """Places of which a tenant has at most as many as all others leave free."""

    def __init__(self, places: int) -> None:
        self._free = places
        self._busy = Counter[str]()  # places by tenant
        self._changed = Condition()

    @contextmanager
    def of(self, tenant: str) -> Generator[None]:
        """Hold a place for the block; wait for one first."""
        with self._changed:
            self._changed.wait_for(lambda: self._busy[tenant] < self._free)
            self._free -= 1
            self._busy[tenant] += 1
        try:
            yield
        finally:
            with self._changed:
                self._free += 1
                less(self._busy, tenant)
                self._changed.notify_all()


class _Work(Future[T]):
    """Work that waits for a thread, or has one."""

    def __init__(self, run: Callable[[], T]) -> None:
        super().__init__()
        self._run = run

    def do(self) -> None:
        """Run it, unless it was cancelled."""
        if not self.set_running_or_notify_cancel():
            return
        try:
            result = self._run()
        except BaseException as error:  # noqa: BLE001 - its caller gets any
            self.set_exception(error)
        else:
            self.set_result(result)


def less(counts: Counter[str], name: str) -> None:
    """Count one less, without a zero."""
    counts[name] -= 1
    if not counts[name]:
        del counts[name]


def _size(lines: dict[str, dict[E, None]]) -> int:
    return sum(map(len, lines.values()))
