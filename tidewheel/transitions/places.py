"""Places of a concurrency key: who may start now, and from when on the next one may. Pure.

A key has `at_once` places. A run holds one from its claim, or from the moment that an end gave it one, until its
attempt ends. A key with a rate also has a start every `every_us` microseconds, and `burst` of them at once after a
rest. The rate is the generic cell rate algorithm: `tat` is the time at which the bucket is empty again.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import UUID

UNBOUNDED = 1_000_000_000
_LATE = timedelta(milliseconds=250)  # a promotion that comes later than this loses the starts of the time before
_RETRY = timedelta(milliseconds=50)  # until the next look at waiting runs that other transactions hold


class Limit(NamedTuple):
    """The limit of a key: a null is no bound."""

    at_once: int | None
    every_us: int | None
    burst: int


class Arrival(NamedTuple):
    """A run that a claim has locked and that needs a place, unless it holds one."""

    run_id: UUID
    key_id: int
    holds: bool
    scheduled_at: datetime


@dataclass(slots=True)
class KeyRow:
    """The row of a key, locked; `lock_run_keys` returns the columns in this order.

    Args:
        key_id: The key.
        running: The number of places that are held.
        has_waiters: True if runs may wait for a place.
        limit: Its limit, by the job whose run was claimed last.
        tat: The time at which all starts of the burst are free again.
        wake_at: The time from which the scheduler promotes waiting runs.
    """

    key_id: int
    running: int
    has_waiters: bool
    limit: Limit
    tat: datetime | None
    wake_at: datetime | None

    def change_limit(self, limit: Limit, now: datetime) -> None:
        """Apply a limit from now on: the next start is no later than the new rate has it."""
        if limit == self.limit:
            return
        self.limit = limit
        if self.tat is not None and limit.every_us is not None:
            self.tat = min(self.tat, now + limit.burst * timedelta(microseconds=limit.every_us))

    def admit(self, arrivals: Sequence[Arrival], now: datetime) -> set[UUID]:
        """Return the runs that wait from now on: a run without a place overtakes no waiting one."""
        waiting: set[UUID] = set()
        for arrival in sorted(arrivals, key=lambda each: (each.scheduled_at, each.run_id)):
            if arrival.holds:
                continue
            if self.has_waiters or not self._room(now, now):
                waiting.add(arrival.run_id)
                self.has_waiters = True
            else:
                self._take(1, now)
        return waiting

    def free(self, places: int) -> None:
        """Give places back."""
        self.running = max(self.running - places, 0)

    def wanted(self, now: datetime) -> int:
        """Return the number of waiting runs that may get a place now."""
        return self._room(now, self._since(now)) if self.has_waiters else 0

    def promote(self, wanted: int, found: int, now: datetime, *, more: bool) -> None:
        """Give places to `found` waiting runs, of `wanted`.

        Args:
            wanted: The result of `wanted`.
            found: The number of waiting runs that were locked.
            now: The database's clock.
            more: True if runs wait still.
        """
        if found:
            self._take(found, self._since(now))
        self.has_waiters = more
        self.wake_at = None
        if more and (self.limit.at_once is None or self.running < self.limit.at_once):
            self.wake_at = now + _RETRY if found < wanted else self._next_start(now)

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

    def _next_start(self, now: datetime) -> datetime:
        _, every_us, burst = self.limit
        if every_us is None or self.tat is None:
            return now + _RETRY
        return max(self.tat - (burst - 1) * timedelta(microseconds=every_us), now)
