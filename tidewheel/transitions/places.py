"""Places of a concurrency key: who may start now, and from when on the next one may. Pure.

A key has `at_once` places. A run holds one from its claim, or from the moment that an end gave it one, until its
attempt ends. A key with a rate also has a start every `every_us` microseconds, and `burst` of them at once after a
rest. The rate is the generic cell rate algorithm: `tat` is the time at which the bucket is empty again.

A promotion charges the rate. While the run has not started, it counts as a start of this moment, or at most `_LATE`
before. So executors that come back after an outage find no more than the burst and the starts of `_LATE`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from tidewheel.ids import tenant_key_id
from tidewheel.runs import HOLDS, Gate, RunState

UNBOUNDED = 1_000_000_000
_LATE = timedelta(milliseconds=250)  # a promotion or a start that comes later delays those after it
_RETRY = timedelta(milliseconds=50)  # until the next look at waiting runs that other transactions hold


class Limit(NamedTuple):
    """The limit of a key: a null is no bound."""

    at_once: int | None
    every_us: int | None
    burst: int


class Arrival(NamedTuple):
    """A run that a claim has locked and that needs places, unless it holds them.

    Args:
        holds: True if it holds a place of its key.
        scheduled_at: Its age, which decides who is first.
        may_wait: False if its policy limits overlaps and it is not its job's active run: it must not wait before it is.
        tenant_key: The key of its tenant, if that limits runs in flight.
    """

    run_id: UUID
    key_id: int | None
    holds: bool
    scheduled_at: datetime
    may_wait: bool = True
    tenant_key: int | None = None
    holds_tenant: bool = False

    @property
    def places(self) -> list[tuple[int, bool]]:
        """The keys of which it needs a place, in the order in which it waits, each with True if it holds one."""
        wanted = ((self.key_id, self.holds), (self.tenant_key, self.holds_tenant))
        return [(key, holds) for key, holds in wanted if key is not None]


class Refusal(NamedTuple):
    """A run that does not start, and the key for which it waits; `keeps` if it holds its own key."""

    run_id: UUID
    waits_for: int
    keeps: bool


class FreedPlace(NamedTuple):
    """A place that the end of an attempt, or of a run that has not started, gives back.

    Args:
        ended: An ordered run that has ended; then the place is its place in the order.
        passes: True if the next run starts though this one fails.
        order_no: Its number; None if the caller does not know it.
    """

    key_id: int
    started: bool = True
    ended: UUID | None = None
    state: RunState | None = None
    passes: bool = False
    order_no: int | None = None


def held_places(gates: int, key: int | None, tenant: str, *, started: bool = True) -> list[FreedPlace]:
    """Return the places that a run holds by its gates."""
    if not gates & HOLDS:
        return []
    found = [FreedPlace(key, started)] if key is not None and gates & Gate.HOLDS_KEY else []
    return [*found, FreedPlace(tenant_key_id(tenant), started)] if gates & Gate.HOLDS_TENANT else found


@dataclass(slots=True)
class KeyRow:
    """The row of a key, locked; `lock_run_keys` returns the columns in this order.

    Args:
        unclaimed: The number of held places whose runs were promoted and have not started.
        has_waiters: True if runs may wait for a place.
        limit: Its limit, by the job whose run was claimed last.
        tat: The time at which all starts of the burst are free again.
        wake_at: The time from which the scheduler promotes waiting runs.
        of_tenant: True for the row that counts a tenant's runs in flight.
    """

    key_id: int
    running: int
    unclaimed: int
    has_waiters: bool
    limit: Limit
    tat: datetime | None
    wake_at: datetime | None
    of_tenant: bool = False

    def change_limit(self, limit: Limit, now: datetime) -> None:
        """Apply a limit from now on: the next start is no later than the new rate has it."""
        if limit == self.limit:
            return
        self.limit = limit
        if self.tat is not None and limit.every_us is not None:
            self.tat = min(self.tat, now + limit.burst * timedelta(microseconds=limit.every_us))

    def has_room(self, now: datetime) -> bool:
        """Return True if a run without a place may take one: it overtakes no waiting run."""
        return not self.has_waiters and self._room(now, now) > 0

    def start(self, now: datetime, *, holds: bool) -> None:
        """Count the start of a run that holds a place, or takes one."""
        if holds:
            self.unclaimed = max(self.unclaimed - 1, 0)
        else:
            self._take(1, now)

    def reserve(self, now: datetime) -> None:
        """Give a place to a run that waits for another one before it starts."""
        self._take(1, now)
        self.unclaimed += 1

    def free(self, places: int, unstarted: int) -> None:
        """Give places back, of which runs that have not started held `unstarted`."""
        self.running = max(self.running - places, 0)
        self.unclaimed = max(self.unclaimed - unstarted, 0)

    def wanted(self, now: datetime) -> int:
        """Return the number of waiting runs that may get a place now."""
        return self._room(now, self._since(now)) if self.has_waiters else 0

    def promote(self, wanted: int, found: int, now: datetime, *, more: bool) -> None:
        """Give places to `found` waiting runs, of `wanted`."""
        if found:
            self._take(found, self._since(now))
            self.unclaimed += found
        self.has_waiters = more
        self.wake_at = None
        if more and (self.limit.at_once is None or self.running < self.limit.at_once):
            self.wake_at = now + _RETRY if found < wanted else self._next_start(now)

    def charge_unclaimed(self, now: datetime) -> None:
        """Count promoted runs that have not started as starts of this moment, so that the next ones keep off."""
        if self.unclaimed and self.limit.every_us is not None:
            charged = now - _LATE + self.unclaimed * timedelta(microseconds=self.limit.every_us)
            self.tat = charged if self.tat is None else max(self.tat, charged)

    def _since(self, now: datetime) -> datetime:
        """Return the time from which starts of a waiting run count: a promotion that is a bit late loses none."""
        return now if self.wake_at is None else min(now, max(self.wake_at, now - _LATE))

    def _room(self, now: datetime, since: datetime) -> int:
        at_once, every_us, burst = self.limit
        room = UNBOUNDED if at_once is None else at_once - self.running
        if every_us is not None:
            empty = since if self.tat is None else max(self.tat, since)
            room = min(room, (now - empty) // timedelta(microseconds=every_us) + burst)
        return max(room, 0)

    def _take(self, places: int, since: datetime) -> None:
        self.running += places
        if self.limit.every_us is not None:
            empty = since if self.tat is None else max(self.tat, since)
            self.tat = empty + places * timedelta(microseconds=self.limit.every_us)

    def _next_start(self, now: datetime) -> datetime | None:
        """Return the time of the next promotion; None if a promoted run has to start or end first."""
        _, every_us, burst = self.limit
        if every_us is None or self.tat is None:
            return now + _RETRY
        if self.unclaimed >= burst + _LATE // timedelta(microseconds=every_us):
            return None
        return max(self.tat - (burst - 1) * timedelta(microseconds=every_us), now)


def share_out(wanted: Mapping[int, int], most: int) -> dict[int, int]:
    """Return how many runs each key may promote: `most` in all, in equal shares if it is short.

    >>> share_out({1: 10, 2: 1, 3: 10}, 9)
    {1: 4, 2: 1, 3: 4}
    """
    left = most
    shares = dict.fromkeys(wanted, 0)
    for others, key in enumerate(sorted(wanted, key=wanted.__getitem__)):
        shares[key] = min(wanted[key], left // (len(wanted) - others))
        left -= shares[key]
    return shares


def admit(rows: Mapping[int, KeyRow], arrivals: Sequence[Arrival], now: datetime) -> list[Refusal]:
    """Count the starts of runs, the oldest first; return those that do not start.

    A run takes a place of its own key first. It keeps that while it waits for its tenant, and never waits the other way
    round. So no two runs wait for each other's place, and a run that gets the last place starts.
    """
    for row in rows.values():
        row.charge_unclaimed(now)
    refused: list[Refusal] = []
    for arrival in sorted(arrivals, key=lambda each: (each.scheduled_at, each.run_id)):
        places = arrival.places
        lacking = next((key for key, holds in places if not holds and not rows[key].has_room(now)), None)
        if lacking is None:
            for key, holds in places:
                rows[key].start(now, holds=holds)
            continue
        keeps = lacking == arrival.tenant_key and arrival.key_id is not None
        refused.append(Refusal(arrival.run_id, lacking, keeps))
        if not arrival.may_wait:
            continue
        rows[lacking].has_waiters = True
        if keeps and not arrival.holds and arrival.key_id is not None:
            rows[arrival.key_id].reserve(now)
        if arrival.holds_tenant and arrival.tenant_key is not None:
            rows[arrival.tenant_key].free(1, 1)
    return refused
