"""Shape the runs of a tenant by its triggers per second, with places in a ring of buckets (ADR 0055).

Runs take their places in a transaction of its own, beside the one that writes them. So the tenant's row is locked for
less than a millisecond. A crash in between loses places, and never exceeds the rate. A run that finds no place is held:
buffered, with `waits_for`, without a message. The scheduler paces held runs. A transaction that holds a run shares a
row of `tenant_locks` before its reservation commits and until it ends itself. While one does, the scheduler keeps the
tenant's row and `held_from`: it cannot see that run yet.

A tenant with a rate has so many places in each bucket of a second, or of a longer time below one a second. A run takes
a place in the first bucket from its own time on that has one. In its own bucket it becomes due at its own time. In a
later one it becomes due at its place, so that a backlog is due evenly. A timer that is written ahead takes a place of
its own time. It delays no trigger of this moment: one time of the next start, as a bucket of tokens has, would.
"""

import math
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Protocol, cast
from uuid import UUID

from psycopg.conninfo import make_conninfo
from psycopg.rows import class_row

from tidewheel.clock import monotonic_seconds
from tidewheel.errors import Unavailable
from tidewheel.ids import micros, rate_key_id
from tidewheel.postgres.own_schema import own_schema, schema_options
from tidewheel.postgres.pg_binary import integers
from tidewheel.postgres.session import CommitUnknown, Conn, Session, own_options
from tidewheel.postgres.session_kinds import SessionPool
from tidewheel.postgres.statements import Statements

_SQL = Statements("tidewheel.transitions")

BUCKETS = 64
_SECOND = 1_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_REACH = 10  # buckets after the present that a backlog takes places in: the rest of it follows an edit of the rate
_FRESH_SECONDS = 1.0
_SESSIONS = 4  # of a process: as many as threads of the API that write
_OPTIONS = "-c lock_timeout=200ms"  # the transaction that writes the runs holds other locks meanwhile


@dataclass(slots=True)
class Ring:
    """The places of one tenant that are taken.

    Args:
        first: The number of the first bucket, counted from 1970.
        used: The taken places of the buckets, from the first one on.
    """

    per_second: float
    first: int = 0
    used: list[int] = field(default_factory=lambda: [0] * BUCKETS)

    @property
    def width(self) -> int:
        """The microseconds of a bucket."""
        return max(1, math.ceil(1 / self.per_second)) * _SECOND

    def change_rate(self, per_second: float) -> None:
        """Apply a rate from now on: places that are taken stay taken, unless the buckets have another width."""
        width = self.width
        self.per_second = per_second
        if self.width != width:
            self.first, self.used = 0, [0] * BUCKETS

    def forget_past(self, now: datetime) -> None:
        """Begin with the bucket of this moment."""
        present = micros(now) // self.width
        gone = min(max(present - self.first, 0), BUCKETS)
        self.used = self.used[gone:] + [0] * gone
        self.first = max(self.first, present)

    def place(self, at: datetime, *, reach: int = _REACH, spaced: bool = False) -> datetime | None:
        """Take a place for a run that may become due at `at`; return the time at which it is due.

        Args:
            reach: The number of buckets after the first one in which a run that is delayed finds a place.
            spaced: True for a run that has waited: it is due at its place in its own bucket too.

        Returns:
            None if no bucket within reach has a place.
        """
        own = max(micros(at) // self.width - self.first, 0)
        for bucket in range(own, min(max(own + 1, reach + 1), BUCKETS)):
            room = self._places(bucket)
            if self.used[bucket] < room:
                self.used[bucket] += 1
                if bucket == own and not spaced:
                    return at
                start = (self.first + bucket) * self.width
                due = start + (self.used[bucket] - 1) * self.width // room
                return max(at, _EPOCH + timedelta(microseconds=due))
        return None

    def _places(self, bucket: int) -> int:
        """Return the places of a bucket; a rate of 2.5 a second has two and three in turn."""
        a_bucket = self.per_second * self.width / _SECOND
        number = self.first + bucket
        return math.floor((number + 1) * a_bucket) - math.floor(number * a_bucket)


class Shaped(Protocol):
    """The columns of a new run that decide when it is due."""

    @property
    def run_id(self) -> UUID: ...  # noqa: D102 - the column of that name, as below
    @property
    def tenant(self) -> str: ...  # noqa: D102
    @property
    def publish_at(self) -> datetime: ...  # noqa: D102


@dataclass(slots=True)
class RateRow:
    """The row of a tenant, locked; `lock_tenant_rates` returns these columns."""

    tenant: str
    per_second: float
    first_bucket: int
    used: list[int]
    held_from: datetime | None
    now: datetime

    @property
    def ring(self) -> Ring:
        """The places of the tenant."""
        return Ring(self.per_second, self.first_bucket, self.used)


class TenantRates:
    """The rates of tenants, for all threads of a process."""

    def __init__(self) -> None:
        self._sessions: SessionPool | None = None
        self._lock = threading.Lock()
        self._known: tuple[Mapping[str, float | None], float] = ({}, -math.inf)  # replaced as a whole, so no lock

    def __reduce__(self) -> "tuple[type[TenantRates], tuple[()]]":
        """Begin anew in a process to which the installation is sent."""
        return TenantRates, ()

    def close(self) -> None:
        """Close its sessions."""
        with self._lock:
            if self._sessions is not None:
                self._sessions.close()
                self._sessions = None

    def forget(self) -> None:
        """Read the rates before the next runs."""
        self._known = ({}, -math.inf)

    def shape(self, connection: Conn, runs: Sequence[Shaped]) -> tuple[dict[UUID, datetime], set[UUID]]:
        """Take places for runs; return the times of those that are delayed, and those that are held.

        Raises:
            Unavailable: The database does not answer; nothing was taken.
        """
        rates = self._read(connection, {run.tenant for run in runs})
        if not rates:
            return {}, set()
        chosen = [run for run in runs if run.tenant in rates]
        try:
            with self._pool(connection).transaction() as reserving:
                delayed, held = _take(reserving, chosen, rates)
                if held:
                    # It never waits: who takes the lock alone has locked the tenant's row, as `reserving` has.
                    _announce(connection, sorted({run.tenant for run in chosen if run.run_id in held}))
        except CommitUnknown as error:
            # Places may be lost. The caller has not come to its own COMMIT.
            raise Unavailable(str(error)) from error
        return delayed, held

    def _pool(self, connection: Conn) -> SessionPool:
        with self._lock:
            if self._sessions is None:
                address = _address(connection)
                self._sessions = SessionPool(
                    lambda: Session(address, "tidewheel-rates", options=_OPTIONS, renews=True, pooled=True), _SESSIONS
                )
            return self._sessions

    def _read(self, connection: Conn, tenants: set[str]) -> dict[str, float]:
        """Return the rates of those of these tenants that have one, read within the last second."""
        known, until = self._known
        now = monotonic_seconds()
        if now >= until:
            known, until = {}, now + _FRESH_SECONDS
        if unknown := tenants - known.keys():
            # By name: a session that acts for a tenant sees no other row.
            found = connection.execute(_SQL["find_rates"], {"tenants": sorted(unknown)}).fetchall()
            known = {**known, **dict.fromkeys(unknown), **dict(cast("list[tuple[str, float | None]]", found))}
            self._known = known, until
        return {tenant: rate for tenant in sorted(tenants) if (rate := known[tenant]) is not None}


def _announce(connection: Conn, tenants: Sequence[str]) -> None:
    columns: dict[str, object] = {"tenants": tenants, "key_ids": sorted(map(rate_key_id, tenants))}
    if connection.execute(_SQL["announce_held"], columns).rowcount < len(tenants):
        add_rate_locks(connection, tenants)
    connection.execute(_SQL["announce_old_held"], columns)


def _take(
    connection: Conn, runs: Sequence[Shaped], rates: Mapping[str, float]
) -> tuple[dict[UUID, datetime], set[UUID]]:
    connection.execute(_SQL["add_tenant_rates"], {"tenants": list(rates), "rates": list(rates.values())})
    with connection.cursor(row_factory=class_row(RateRow), binary=True) as cursor:
        rows = {row.tenant: row for row in cursor.execute(_SQL["lock_tenant_rates"], {"tenants": list(rates)})}
    delayed: dict[UUID, datetime] = {}
    held: set[UUID] = set()
    for tenant, row in rows.items():
        ring = row.ring
        ring.change_rate(rates[tenant])
        ring.forget_past(row.now)
        for run in runs:
            if run.tenant != tenant:
                continue
            at = max(run.publish_at, row.now)
            due = None if row.held_from is not None and at >= row.held_from else ring.place(at)
            if due is None:
                held.add(run.run_id)
                row.held_from = at if row.held_from is None else min(row.held_from, at)
            elif due > at:
                delayed[run.run_id] = due
        write_rate(connection, tenant, ring, row.held_from)
    return delayed, held


def _address(connection: Conn) -> str:
    info = connection.info
    options = own_options(connection)
    if (schema := own_schema(connection)) is not None:
        options = f"{options} {schema_options(schema)}"
    known = {**info.get_parameters(), "options": options}
    return make_conninfo("", **known, password=info.password or None)


def add_rate_locks(connection: Conn, tenants: Sequence[str]) -> None:
    """Insert the rows that announce held runs: early, for two inserts of one row wait for each other."""
    connection.execute(_SQL["add_rate_locks"], {"tenants": tenants})


def write_rate(connection: Conn, tenant: str, ring: Ring, held_from: datetime | None) -> None:
    """Write the places of a tenant whose row is locked."""
    columns: dict[str, object] = {
        "tenant": tenant,
        "per_second": ring.per_second,
        "first_bucket": ring.first,
        "used": integers(ring.used),
        "held_from": held_from,
    }
    connection.execute(_SQL["write_tenant_rate"], columns)
