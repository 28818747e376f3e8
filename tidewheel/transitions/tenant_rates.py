"""Shape the runs of a tenant by its triggers per second (ADR 0055).

Runs take their places in a transaction of its own, beside the one that writes them. So the tenant's row is locked for
less than a millisecond, and never while other locks are held. A crash in between loses places, and never exceeds the
rate. A run that finds no place is held: buffered, with `waits_for`, without a message. The scheduler paces held runs.

A process reads the rates of its tenants at most once a second each. Runs of other tenants cost no further statement.
"""

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol, cast
from uuid import UUID

from psycopg.conninfo import make_conninfo
from psycopg.rows import class_row

from tidewheel.clock import monotonic_seconds
from tidewheel.postgres.pg_arrays import integers
from tidewheel.postgres.session import Conn, Session, own_options
from tidewheel.postgres.statements import Statements
from tidewheel.transitions.rate_ring import Ring

_SQL = Statements("tidewheel.transitions")
_FIND_RATES = _SQL["find_rates"]
_ADD_TENANT_RATES = _SQL["add_tenant_rates"]
_LOCK_TENANT_RATES = _SQL["lock_tenant_rates"]
_WRITE_TENANT_RATE = _SQL["write_tenant_rate"]

_FRESH_SECONDS = 1.0


class Shaped(Protocol):
    """The columns of a new run that decide when it is due."""

    @property
    def run_id(self) -> UUID:
        """The run."""
        ...

    @property
    def tenant(self) -> str:
        """Its tenant."""
        ...

    @property
    def publish_at(self) -> datetime:
        """Its own time."""
        ...


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
        self._session: Session | None = None
        self._lock = threading.Lock()
        self._rates: dict[str, float | None] = {}
        self._until = -math.inf

    def __reduce__(self) -> "tuple[type[TenantRates], tuple[()]]":
        """Begin anew in a process to which the installation is sent."""
        return TenantRates, ()

    def close(self) -> None:
        """Close its session."""
        with self._lock:
            if self._session is not None:
                self._session.close()

    def forget(self) -> None:
        """Read the rates before the next runs."""
        self._until = -math.inf

    def shape(self, connection: Conn, runs: Sequence[Shaped]) -> tuple[dict[UUID, datetime], set[UUID]]:
        """Take places for runs; return the times of those that are delayed, and those that are held.

        Args:
            connection: The one that writes the runs.
            runs: The runs.

        Raises:
            Unavailable: The database does not answer; nothing was taken.
        """
        with self._lock:
            self._refresh(connection, {run.tenant for run in runs})
            chosen = [run for run in runs if self._rates[run.tenant] is not None]
            if not chosen:
                return {}, set()
            if self._session is None:
                self._session = Session(_address(connection), "tidewheel-rates", renews=True)
            with self._session.transaction() as reserving:
                return self._take(reserving, chosen)

    def _refresh(self, connection: Conn, tenants: set[str]) -> None:
        """Read the rates of tenants, unless they were read within the last second."""
        now = monotonic_seconds()
        if now >= self._until:
            self._rates, self._until = {}, now + _FRESH_SECONDS
        if unknown := tenants - self._rates.keys():
            # By name: a session that acts for a tenant sees no other row.
            found = connection.execute(_FIND_RATES, {"tenants": sorted(unknown)}).fetchall()
            self._rates |= dict.fromkeys(unknown) | dict(cast("list[tuple[str, float | None]]", found))

    def _take(self, connection: Conn, runs: Sequence[Shaped]) -> tuple[dict[UUID, datetime], set[UUID]]:
        tenants = sorted({run.tenant for run in runs})
        rates = {tenant: rate for tenant in tenants if (rate := self._rates[tenant]) is not None}
        connection.execute(_ADD_TENANT_RATES, {"tenants": tenants, "rates": list(rates.values())})
        with connection.cursor(row_factory=class_row(RateRow), binary=True) as cursor:
            rows = {row.tenant: row for row in cursor.execute(_LOCK_TENANT_RATES, {"tenants": tenants})}
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
    """Return the address of the database of a connection."""
    info = connection.info
    known = {**info.get_parameters(), "options": own_options(connection)}
    return make_conninfo("", **known, password=info.password or None)


def write_rate(connection: Conn, tenant: str, ring: Ring, held_from: datetime | None) -> None:
    """Write the places of a tenant whose row is locked."""
    columns: dict[str, object] = {
        "tenant": tenant,
        "per_second": ring.per_second,
        "first_bucket": ring.first,
        "used": integers(ring.used),
        "held_from": held_from,
    }
    connection.execute(_WRITE_TENANT_RATE, columns)
