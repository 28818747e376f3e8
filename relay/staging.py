"""Choose the next runs of a topic that is held back: tenants by weight, then priority with ageing.

Tenants take turns: each turn is as many runs as the tenant's weight (deficit round robin; every run costs one). Inside
a tenant a step of priority is worth 30 s: a run of priority 9 goes before one of priority 0 that is up to 270 s older,
and no later one ever passes what is older still. Runs of one tenant and priority leave in their order.

Only addresses are kept, in bytes that PostgreSQL has made: about 130 bytes a run, with its places in a line and a set.
"""

from collections import deque
from collections.abc import Iterable, Mapping

PRIORITIES = 10
STEP_SECONDS = 30  # that one step of priority is worth
_STEP_MICROSECONDS = STEP_SECONDS * 1_000_000

_TIME = slice(0, 8)  # publish_at, microseconds since 2000
_ADDRESS = slice(8, 14)
_ID = slice(14, 22)
_SIZE = slice(22, 26)  # of the value


def address_of(entry: bytes) -> bytes:
    """Return the physical address in an entry."""
    return entry[_ADDRESS]


def id_of(entry: bytes) -> bytes:
    """Return the outbox id in an entry."""
    return entry[_ID]


def size_of(entry: bytes) -> int:
    """Return the bytes of the row's value."""
    return int.from_bytes(entry[_SIZE])


def position_in(entry: bytes) -> tuple[int, int]:
    """Return the time and the id of an entry: the order in which the outbox is read."""
    return int.from_bytes(entry[_TIME], signed=True), int.from_bytes(entry[_ID])


class Staging:
    """The runs of one topic that are held back.

    An entry is the time, the address, the id and the size of an outbox row, 26 bytes in network order.
    """

    def __init__(self) -> None:
        self._lines: dict[str, dict[int, deque[bytes]]] = {}  # by tenant and priority; empty ones are removed
        self._entries: set[bytes] = set()  # of all lines
        self._turns: deque[str] = deque()  # tenants with runs, the next one first
        self._left = 0  # runs in the turn of the first tenant; 0 before it begins

    def __len__(self) -> int:
        """Return the number of runs."""
        return len(self._entries)

    def __contains__(self, entry: bytes) -> bool:
        """Return True if a run with this entry is here."""
        return entry in self._entries

    def counts(self) -> dict[str, int]:
        """Return the number of runs of each tenant that has some."""
        return {tenant: sum(map(len, line.values())) for tenant, line in self._lines.items()}

    def add(self, rows: Iterable[tuple[str, int, bytes]]) -> None:
        """Add runs: tenant, priority and entry, in the order of their times. Those that are here already stay."""
        for tenant, priority, entry in rows:
            if entry in self._entries:
                continue
            line = self._lines.get(tenant)
            if line is None:
                line = self._lines[tenant] = {}
                self._turns.append(tenant)
            if (entries := line.get(priority)) is None:
                entries = line[priority] = deque()
            entries.append(entry)
            self._entries.add(entry)

    def take(self, most: int, weights: Mapping[str, int], *, room: int) -> list[bytes]:
        """Remove and return the next runs, until their values fill the room.

        Args:
            most: Runs that are returned at most.
            weights: Of tenants; one without a weight has 1.
            room: Bytes of the values. The last one may exceed it.
        """
        taken: list[bytes] = []
        while len(taken) < most and room > 0 and self._turns:
            tenant = self._turns[0]
            line = self._lines[tenant]
            if not self._left:
                self._left = max(weights.get(tenant, 1), 1)
            taken.append(_pop_first(line))
            room -= size_of(taken[-1])
            self._left -= 1
            if not line:
                del self._lines[tenant]
                self._turns.popleft()
                self._left = 0
            elif not self._left:
                self._turns.rotate(-1)
        self._entries.difference_update(taken)
        return taken


def _pop_first(line: dict[int, deque[bytes]]) -> bytes:
    """Remove and return the entry that leaves next of a tenant; at equal ranks the one of higher priority."""
    if len(line) == 1:
        [priority] = line
    else:
        priority = min(line, key=lambda each: (_rank(each, line[each][0]), -each))
    entries = line[priority]
    entry = entries.popleft()
    if not entries:
        del line[priority]
    return entry


def _rank(priority: int, entry: bytes) -> int:
    return int.from_bytes(entry[_TIME], signed=True) - priority * _STEP_MICROSECONDS
