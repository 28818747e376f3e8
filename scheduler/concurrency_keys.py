"""Concurrency keys: promote runs that wait for one, repair counters, remove idle keys.

A walk over all keys begins once a minute. It removes keys that nothing has used for ten minutes. Where the counters of
a key differ from its runs it repairs them: a manual change, or a partial restore. It leaves the counters of a key with
`_MAX_RUNS` open runs or more as they are. It applies a raised limit, for which no claim has come yet.

The row that counts a tenant's runs in flight is repaired by one statement, which reads it and all open runs of the
tenant in one snapshot. Each transaction changes both alike, so the difference that it finds stays until it is added.
A lock keeps a second scheduler from adding it once more. Tenants with `_MAX_OPEN` open runs or more are left
out.

An end passes its place on itself. This module does what no end does: a rate frees a start at a time, and an end may
find all waiting runs locked by other transactions. Both set `wake_at`.
"""

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import cast
from uuid import UUID

import psycopg

from tidewheel.clock import monotonic_seconds
from tidewheel.errors import Unavailable
from tidewheel.ids import FIRST_KEY_ID, tenant_key_id
from tidewheel.postgres.held_lock import try_old_lock
from tidewheel.postgres.low_water import FullScanPacer
from tidewheel.postgres.session import Session
from tidewheel.postgres.session_kinds import BackgroundQuery
from tidewheel.postgres.statements import Statements
from tidewheel.process.metrics import metrics
from tidewheel.runs import Gate
from tidewheel.scheduler.set_aside import SetAside
from tidewheel.transitions.held_back import MAX_RELEASED, find_held_tenants, find_woken_orders, pace, settle_order
from tidewheel.transitions.installation import Installation
from tidewheel.transitions.run_keys import COUNTED_FOR, count_started_runs, settle_keys

_LOG = logging.getLogger("tidewheel.scheduler")

_SQL = Statements("tidewheel.scheduler")

_MAX_WOKEN = 500  # keys in one transaction: about twenty milliseconds
_MAX_SCANNED = 1000  # keys in one step of the repair
_MAX_RUNS = 20_000  # open runs in one step of the repair: about twenty milliseconds
_MAX_READ = 50_000  # open runs in one step of the count: about a hundred milliseconds
_MAX_OPEN = 500_000  # open runs of a tenant whose counter is repaired: about a second
_LEAST_COST = 250  # a transaction takes as long as reading so many runs
_STEP_SECONDS = 0.05  # for queueing held runs; then the scheduler does its other duties
_PASS_SECONDS = 60.0
_SHARE = 100  # the repair of tenants takes one part of so many of the time, at most
_IDLE_AFTER = timedelta(minutes=10)

_BEFORE_ALL = UUID(int=0)  # no run has it

_ScannedRow = tuple[int | None, int | None, bool | None, bool | None, bool | None]
_MeasuredRow = tuple[int, int, int, bool]


@dataclass(slots=True)
class _Count:
    """A pass over the open runs of a tenant whose limit has begun."""

    is_last: bool  # it began after the last claim that may not know the limit
    after: UUID | None = _BEFORE_ALL
    counted: int = 0


class KeyRepair(BackgroundQuery[int]):
    """Walks keys and tenants on its own thread and connection, which it closes."""

    def __init__(self, session: Session, installation: Installation) -> None:
        super().__init__(session, "keys")
        self._installation = installation
        self._pacer = FullScanPacer(_PASS_SECONDS, share=_SHARE)
        self._promote, self._failed = partial(_promote, session, installation), SetAside[int]()
        self._after = FIRST_KEY_ID
        self._next_pass = -math.inf
        self._counts: dict[str, _Count] = {}

    def step(self, *, repairs: bool) -> int:
        """Start the next walk if this scheduler repairs; return the number of runs that the last one promoted."""
        promoted = self.take()
        if repairs and not self.busy:
            self.start(self._walk)
        return promoted or 0

    def _walk(self) -> int:
        promoted = 0
        try:
            self.count_started_runs()
            promoted = self.repair()
            if self._pacer.start():
                try:
                    promoted += self.repair_tenants()
                finally:
                    self._pacer.finish()
        except (Unavailable, psycopg.Error) as error:
            _LOG.warning("the repair of keys failed: %s; the scheduler tries again in a second", error)
        return promoted

    def repair(self) -> int:
        """Walk some keys; return the number of runs that got a place.

        A pass over all keys begins a minute after the last one began, or later.
        """
        if self._after == FIRST_KEY_ID:
            if monotonic_seconds() < self._next_pass:
                return 0
            self._next_pass = monotonic_seconds() + _PASS_SECONDS
        columns: dict[str, object] = {
            "after": self._after,
            "limit": _MAX_SCANNED,
            "budget": _MAX_RUNS,
            "idle_after": _IDLE_AFTER,
            "holds": Gate.HOLDS_KEY,
        }
        with self._session.transaction() as connection:
            rows = cast("list[_ScannedRow]", connection.execute(_SQL["scan_keys"], columns, binary=True).fetchall())
            # Before the writes: a key that fails is left to the next pass.
            self._after = FIRST_KEY_ID if rows[0][0] is None else rows[0][0]
            if idle := [key for _, key, is_idle, _, _ in rows if is_idle]:
                connection.execute(_SQL["remove_idle_keys"], {**columns, "key_ids": idle})
        wrong = [key for _, key, _, _, is_wrong in rows if key is not None and is_wrong]
        if wrong:
            self._repair_counters(wrong)
        woken = sorted({*wrong, *(key for _, key, _, waits, _ in rows if key is not None and waits)})
        parts = [woken[first : first + _MAX_WOKEN] for first in range(0, len(woken), _MAX_WOKEN)]
        return sum(self._failed.together(part, self._promote, "wake key") for part in parts)

    def count_started_runs(self) -> None:
        """Count the runs of tenants whose limit of runs in flight has begun.

        A step reads so many runs, at most all of each tenant. The next step goes on where it has stopped.
        """
        columns: dict[str, object] = {"counted_for": COUNTED_FOR}
        with self._session.transaction() as connection:
            rows = connection.execute(_SQL["find_tenants_to_count"], columns, binary=True).fetchall()
        begun = dict(cast("list[tuple[str, bool]]", rows))
        # The passes that the step before has left go first.
        passes = {tenant: one for tenant, one in self._counts.items() if tenant in begun}
        self._counts = passes | {tenant: _Count(is_last) for tenant, is_last in begun.items() if tenant not in passes}
        left = _MAX_READ
        for tenant, one in list(self._counts.items()):
            while one.after is not None and left > 0:
                step = self._session.within(count_started_runs, tenant, one.after)
                one.after, one.counted = step.after, one.counted + step.counted
                left -= max(step.read, _LEAST_COST)
            if one.after is not None:
                return
            del self._counts[tenant]
            if one.is_last and not one.counted:
                with self._session.transaction() as connection:
                    connection.execute(_SQL["end_count"], {**columns, "tenant": tenant})

    def repair_tenants(self) -> int:
        """Repair the rows that count tenants' runs in flight; return the number of runs that got a place."""
        with self._session.transaction() as connection:
            found = cast("list[tuple[str, bool]]", connection.execute(_SQL["find_tenant_keys"], binary=True).fetchall())
        promoted = 0
        for tenant, differs in found:
            columns: dict[str, object] = {"key_id": tenant_key_id(tenant), "tenant": tenant}
            if differs:
                with self._session.transaction() as connection:
                    connection.execute(_SQL["restore_tenant_key"], columns)
            if self._repair_tenant(columns) or differs:
                metrics.count("keys_repaired")
                _LOG.error(
                    "the scheduler repaired the count of the runs in flight of tenant %s; check for manual changes",
                    tenant,
                )
                with self._session.transaction() as connection:
                    woken = [tenant_key_id(tenant)]
                    promoted += settle_keys(connection, self._installation, woken=woken).promoted
        return promoted

    def _repair_tenant(self, columns: dict[str, object]) -> bool:
        """Add to the counters of a tenant's row what they lack; return True if that was anything."""
        limits: dict[str, object] = {"holds": Gate.HOLDS_TENANT, "limit": _MAX_OPEN}
        with self._session.transaction() as connection:
            alone = connection.execute(_SQL["lock_tenant_repair"]).fetchone() is not None
            if not (alone and try_old_lock(connection, "tenant_repair")):
                return False  # another scheduler repairs
            row = connection.execute(_SQL["measure_tenant_key"], columns | limits, binary=True).fetchone()
            if row is None:
                return False  # its limit was lifted, and its row removed
            opened, places, unclaimed, waits = cast("_MeasuredRow", row)
            if opened == _MAX_OPEN or not (places or unclaimed or waits):
                return False
            lacking: dict[str, object] = {"places": places, "unclaimed": unclaimed}
            return connection.execute(_SQL["repair_tenant_key"], columns | lacking).rowcount > 0

    def _repair_counters(self, keys: Sequence[int]) -> None:
        columns: dict[str, object] = {"key_ids": keys, "holds": Gate.HOLDS_KEY}
        with self._session.transaction() as connection:
            connection.execute(_SQL["lock_keys"], columns)
            repaired = connection.execute(_SQL["repair_keys"], columns).rowcount
        if repaired:
            metrics.count("keys_repaired", repaired)
            _LOG.error("the scheduler repaired the counters of %d concurrency keys; check for manual changes", repaired)


class KeyDuties:
    """The scheduler's duties for concurrency keys, in the session that fires."""

    def __init__(self, session: Session, installation: Installation) -> None:
        self._session, self._installation = session, installation
        self._promote, self._failed = partial(_promote, session, installation), SetAside[int]()
        self._to_pace: list[str] = []
        self._unpaced = SetAside[str]()

    def promote(self, shards: Sequence[int]) -> tuple[int, float]:
        """Give free places of keys to waiting runs; return their number, and the seconds until the next."""
        columns: dict[str, object] = {
            "shards": list(shards), "count": self._installation.shards, "limit": _MAX_WOKEN,
            "left": list(self._failed.current()),
        }  # fmt: skip
        with self._session.transaction() as connection:
            due = [row[0] for row in connection.execute(_SQL["find_woken_keys"], columns, binary=True).fetchall()]
            found = None if due else connection.execute(_SQL["probe_keys"], columns, binary=True).fetchone()
        if due:
            return self._failed.together(cast("list[int]", due), self._promote, "wake key"), 0.0
        return 0, max(cast("float", found[0]), 0.0) if found else math.inf

    def wake(self) -> int:
        """Queue the next runs of ordering keys that other transactions held; return their number."""
        keys = self._session.within(find_woken_orders, left=self._failed.current())
        return self._failed.together(keys, self._settle_order, "wake ordering key") if keys else 0

    def _settle_order(self, keys: Sequence[int]) -> int:
        return self._session.within(settle_order, self._installation, woken=keys)

    def pace(self) -> tuple[int, bool]:
        """Queue held runs of tenants with a rate for up to `_STEP_SECONDS`; return their number.

        Also return True if there are more: the next call goes on where this one stops.
        """
        if not self._to_pace:
            left = self._unpaced.current()
            self._to_pace = [tenant for tenant in self._session.within(find_held_tenants) if tenant not in left]
        until = monotonic_seconds() + _STEP_SECONDS
        queued = 0
        while self._to_pace and monotonic_seconds() < until:
            tenant, released = self._to_pace[-1], 0
            with self._unpaced.alone(tenant, "queue held runs of tenant"), self._session.transaction() as connection:
                released = pace(connection, self._installation, tenant)
            queued += released
            if released < MAX_RELEASED:
                self._to_pace.pop()
        return queued, bool(self._to_pace)


def _promote(session: Session, installation: Installation, keys: Sequence[int]) -> int:
    return session.within(settle_keys, installation, woken=keys).promoted
