"""Choose the next runs of a topic that is held back, and how many may be published unclaimed.

Tenants take turns: each turn is as many runs as the tenant's weight (deficit round robin; every run costs one). Inside
a tenant a step of priority is worth 30 s: a run of priority 9 goes before one of priority 0 that is up to 270 s older,
and no later one ever passes what is older still. Runs of one tenant and priority leave in their order.

Only addresses are kept, in bytes that PostgreSQL has made: about 130 bytes a run, with its places in a line and a set.
The runs of one tenant and priority, the lead, need no staging: the reader has them in their order. They have a place in
the turns all the same.

`Window` decides how many runs of one topic may be published and not claimed. Kafka is first in, first out, and nothing
in it can be recalled. What the relay publishes now delays all that comes after it. So it keeps the wait of published
runs short: it measures how old the oldest unclaimed one is, and makes the window smaller or larger. No fixed number is
right, since handlers may take a millisecond or a minute.

A topic with a moderate flow spends a credit, and its runs are counted every five seconds only. A trickle is counted
every 30 s. So a fleet that keeps up pays next to nothing, and a slow overload is seen all the same.

A large window is a fast flow, in which each run would be looked up several times. There the relay counts a sample.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

STEP_SECONDS = 30  # that one step of priority is worth
_MICROSECOND = timedelta(microseconds=1)
_STEP_MICROSECONDS = STEP_SECONDS * 1_000_000
_TIME = slice(0, 8)  # publish_at, microseconds since 2000
_ADDRESS = slice(8, 14)
_ID = slice(14, 22)
_SIZE = slice(22, 26)  # of the value
MOST: int = 20_000  # of a window
_UNSERVED = 64  # the window of a queue without an executor
_FIRST = 16  # at the least, of a window that begins
_FIRST_SLOTS = 128  # of idle executors that a window fills at first: a credit lets as many leave without a count
_PER_EXECUTOR = 4  # a window of the fleet's slots would put a second filling of them in front of all others
_LEAST = 4
_EARLY_PER_SLOT = 50  # runs that leave before they are due: an idle executor starts so many of a burst in 0.4 s
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
_GROWING_SECONDS = 0.02  # after one that has made the window larger, or may have been too early
_YOUNG_SECONDS = 0.05  # while the window is small
_YOUNG_ROWS = 1000
_STANDSTILL_SECONDS = 1.0  # the longest pause while no executor claims; the sweep serves a free slot by then
_MOST_DOUBLINGS = 8
_FEW = 100


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


class Lead(NamedTuple):
    """The tenant and priority of a topic whose runs are read in order."""

    tenant: str
    priority: int


class Staging:
    """The runs of one topic that are held back.

    An entry is the time, the address, the id and the size of an outbox row, 26 bytes in network order.
    """

    def __init__(self) -> None:
        self._lines: dict[str, dict[int, deque[bytes]]] = {}  # by tenant and priority; empty ones are removed
        self._entries: set[bytes] = set()  # of all lines
        self._turns: deque[str] = deque()  # tenants with runs, the next one first
        self._left = 0  # runs in the turn of the first tenant; 0 before it begins
        self._lead: Lead | None = None
        self._led = b""  # the last entry in the line of the lead, as of its next run

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, entry: bytes) -> bool:
        return entry in self._entries

    def counts(self) -> dict[str, int]:
        """Return the number of runs of each tenant that has some."""
        counts = {tenant: sum(map(len, line.values())) for tenant, line in self._lines.items()}
        if self._lead is not None:
            counts[self._lead.tenant] -= 1
        return counts

    def lead(self, lead: Lead | None, due: timedelta) -> None:
        """Let the lead take turns, whose next run is due so long after 2000; None ends that."""
        if self._lead is not None:
            self._lines[self._lead.tenant][self._lead.priority].pop()
        before, self._lead, self._led = self._lead, lead, (due // _MICROSECOND).to_bytes(8, signed=True)
        if lead is not None:
            self._line(lead.tenant, lead.priority).append(self._led)
        if before is not None:
            self._remove_empty(before.tenant, before.priority)

    def add(self, rows: Iterable[tuple[str, int, bytes]]) -> None:
        """Add runs: tenant, priority and entry, in the order of their times. Those that are here already stay."""
        for tenant, priority, entry in rows:
            if entry in self._entries:
                continue
            line = self._line(tenant, priority)
            if (tenant, priority) == self._lead:
                line.insert(len(line) - 1, entry)  # late: the reader has passed it
            else:
                line.append(entry)
            self._entries.add(entry)

    def take(self, most: int, weights: Mapping[str, int], *, room: int) -> tuple[list[bytes], int]:
        """Remove the next runs, until their values fill the room; the last one may exceed it.

        A tenant without a weight has 1. Return the runs, and how many of the lead take turns among them.
        """
        if self._lead is not None and not self._entries:
            return [], most
        taken: list[bytes] = []
        led = 0
        while len(taken) + led < most and room > 0 and self._turns:
            tenant = self._turns[0]
            line = self._lines[tenant]
            if not self._left:
                self._left = max(weights.get(tenant, 1), 1)
            priority = _next_priority(line)
            entries = line[priority]
            if entries[0] is self._led:
                led += 1
            else:
                taken.append(entries.popleft())
                room -= size_of(taken[-1])
            self._left -= 1
            if not self._remove_empty(tenant, priority) and not self._left:
                self._turns.rotate(-1)
        self._entries.difference_update(taken)
        return taken, led

    def _line(self, tenant: str, priority: int) -> deque[bytes]:
        line = self._lines.get(tenant)
        if line is None:
            line = self._lines[tenant] = {}
            self._turns.append(tenant)
        if (entries := line.get(priority)) is None:
            entries = line[priority] = deque()
        return entries

    def _remove_empty(self, tenant: str, priority: int) -> bool:
        """Remove a line without entries; return True if its tenant has no run any more."""
        line = self._lines[tenant]
        if not line[priority]:
            del line[priority]
        if line:
            return False
        del self._lines[tenant]
        if self._turns[0] == tenant:
            self._left = 0
        self._turns.remove(tenant)
        return True


class Unclaimed(NamedTuple):
    """A published run."""

    sent: float  # the monotonic time at which it was published, or is due if that is later
    publish_at: datetime  # of its message: a later attempt of the run has a later one
    represents: float


class Window:
    """The window of one topic."""

    def __init__(self, now: float) -> None:
        self.unclaimed: dict[bytes, Unclaimed] = {}
        self.size = 0
        self._early: dict[bytes, Unclaimed] = {}  # published and not due yet
        self._early_size, self._left_early = MOST, 0  # the bound of early runs, and those since the last count
        self._credit, self._credited_at = _CREDIT_ROWS, now
        self._counted_at = now
        self._strained = False  # at the last count runs had waited for long
        self._grows = False  # the last count made the window larger, or may have been too early
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
        self.settle(now)
        return self._spends(rows, now) or rows <= self.room()

    def _spends(self, rows: int, now: float) -> bool:
        credit = min(self._credit + (now - self._credited_at) * _CREDIT_ROWS_PER_SECOND, _CREDIT_ROWS)
        self._credit, self._credited_at = credit, now
        if rows <= credit and not self._strained:
            self._credit -= rows
            return True
        return False

    @property
    def early_stride(self) -> int:
        """The distance of the runs to record, among those that leave together before they are due."""
        return max(self._early_size // _SAMPLE, 1)

    def takes_early(self, rows: int, slots: int, now: float) -> int:
        """Return how many of so many runs may be published before they are due, for so many slots."""
        self.settle(now)
        if self._spends(rows, now):
            return rows
        most = min(slots * _EARLY_PER_SLOT, self._early_size)
        count = min(rows, max(most - round(_total(self._early) + _total(self.unclaimed)), 0))
        self._left_early += count
        return count

    def settle(self, now: float) -> None:
        """Count the early runs that have become due as unclaimed."""
        for run_id in [run_id for run_id, one in self._early.items() if one.sent <= now]:
            self.unclaimed[run_id] = self._early.pop(run_id)

    def publish(self, sample: Sequence[tuple[bytes, datetime, float]], now: float, *, runs: int) -> None:
        """Record that so many runs leave, by some of them: id, time, and when they leave or are due."""
        if sample:
            represents = runs / len(sample)
            for run_id, publish_at, sent in sample:
                recorded = self._early if sent > now else self.unclaimed
                recorded[run_id] = Unclaimed(sent, publish_at, represents)

    def seconds_to_count(self, now: float, *, held: bool) -> float:
        """Return the seconds until the unclaimed runs should be counted again."""
        if held:
            pause = _YOUNG_SECONDS if self.size < _YOUNG_ROWS else _HELD_SECONDS
            if self._grows:
                pause = _GROWING_SECONDS
            if not self.room():
                pause = min(pause * 2**self._standstill, _STANDSTILL_SECONDS)
        elif self._strained or self._credit < _CREDIT_ROWS / 2:
            pause = _OPEN_SECONDS
        elif not self.unclaimed:
            return _CALM_SECONDS
        else:
            pause = _CALM_SECONDS if _total(self.unclaimed) >= _FEW else _TRICKLE_SECONDS
        return max(self._counted_at + pause - now, 0.0)

    def counted(
        self,
        waiting: Iterable[bytes],
        executors: int,
        now: float,
        *,
        share: float,
        held: bool,
        slots: int = 0,
        running: int = 0,
        ended: int = 0,
    ) -> None:
        """Record a count at a monotonic time, and make the window smaller or larger.

        This relay has a share of the slices, and the executors have so many slots. Of the recorded runs `running` have
        an attempt in progress, and `ended` are over.
        """
        self._counted_at = now
        since = now - _FORGET_SECONDS if executors else float("-inf")
        recorded, published = len(self.unclaimed), _total(self.unclaimed)
        left = {run_id: one for run_id in waiting if (one := self.unclaimed.get(run_id)) is not None}
        age = now - min((one.sent for one in left.values()), default=now)  # with those that are forgotten now
        self.unclaimed = {run_id: one for run_id, one in left.items() if one.sent > since}
        self._strained = age > _LONG_SECONDS
        before, early, self._left_early = self.size, self._left_early, 0
        if executors and not before:
            self.size = max(_FIRST, int(_PER_EXECUTOR * executors * share), int(min(slots, _FIRST_SLOTS) * share))
        else:
            quick = recorded > 0 and (ended >= recorded / 2 or published * running / recorded > slots)
            self.size = _next_size(before, published, _total(left), age, executors, share=share, held=held, quick=quick)
        if self._strained:
            self._early_size = max(self.size, _LEAST)
        elif age < _SHORT_SECONDS and early >= self._early_size / 2:
            self._early_size = min(self._early_size * 2, MOST)
        # Runs that left a moment ago may have been counted too early.
        self._grows = self.size > before or (0.0 < age < _SHORT_SECONDS)
        stands = recorded == len(self.unclaimed) and not self.room()
        self._standstill = min(self._standstill + 1, _MOST_DOUBLINGS) if stands else 0


def _next_priority(line: Mapping[int, deque[bytes]]) -> int:
    """Return the priority of a tenant's run that leaves next; at equal ranks the higher one."""
    if len(line) == 1:
        [priority] = line
        return priority
    return min(line, key=lambda each: (_rank(each, line[each][0]), -each))


def _rank(priority: int, entry: bytes) -> int:
    return int.from_bytes(entry[_TIME], signed=True) - priority * _STEP_MICROSECONDS


def _total(runs: Mapping[bytes, Unclaimed]) -> float:
    return sum(one.represents for one in runs.values())


def _next_size(
    size: int, published: float, unclaimed: float, age: float, executors: int, *, share: float, held: bool, quick: bool
) -> int:
    if not executors:
        return _UNSERVED
    least = max(_LEAST, int(executors * share))
    if age > _LONG_SECONDS:
        return max(int(size * 0.7), least)
    full = published > 0 and (held or published >= size)
    if quick and published >= size / 2 and age < _SHORT_SECONDS and unclaimed <= size / 8:
        # More than free slots took them: most are over, or more run than slots exist. Four times as many take a
        # fraction of a second.
        return min(max(size * 4, least), MOST)
    if full and age < _SHORT_SECONDS and unclaimed <= size / 2:
        return min(max(int(size * 1.5), least), MOST)
    if full and age < _FAIR_SECONDS and unclaimed <= size / 8:
        return min(max(int(size * 1.25), least), MOST)
    return max(size, least)
