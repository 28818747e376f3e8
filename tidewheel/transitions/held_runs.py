"""Hold runs that find no place in the rate of their tenant; queue them at places (ADR 0055)."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import cast
from uuid import UUID

from psycopg.rows import class_row

from tidewheel.ids import rate_key_id
from tidewheel.outbox import append
from tidewheel.postgres.pg_binary import instants, uuids
from tidewheel.postgres.session import Conn, at_commit
from tidewheel.postgres.statements import Statements
from tidewheel.process.metrics import metrics
from tidewheel.runs import Move, sources, target
from tidewheel.transitions.active_runs import PromotedRun
from tidewheel.transitions.installation import Installation
from tidewheel.transitions.rate_ring import Ring
from tidewheel.transitions.run_messages import build_requests, request_rows
from tidewheel.transitions.tenant_rates import RateRow, write_rate

_SQL = Statements("tidewheel.transitions")
_LOCK_TENANT_RATES = _SQL["lock_tenant_rates"]
_HOLD_RUNS = _SQL["hold_runs"]
_FIND_HELD_TENANTS = _SQL["find_held_tenants"]
_READ_TENANT_RATE = _SQL["read_tenant_rate"]
_RELEASE_HELD_RUNS = _SQL["release_held_runs"]
_SEES_ALL_HELD = _SQL["sees_all_held"]
_FIRST_HELD = _SQL["first_held"]
_DROP_TENANT_RATE = _SQL["drop_tenant_rate"]

_PACED = 2  # buckets after the present that each look fills from the held runs
MAX_RELEASED = 1000
"""Held runs that one transaction queues: about twenty milliseconds."""


def hold_runs(connection: Conn, held: Mapping[UUID, str]) -> None:
    """Hold runs, by tenant, that were just written: no claim matches them until the scheduler queues them."""
    columns = {
        "run_ids": uuids(held),
        "waits_for": [rate_key_id(tenant) for tenant in held.values()],
        "sources": sources(Move.BUFFER),
        "target": target(Move.BUFFER),
    }
    connection.execute(_HOLD_RUNS, columns)
    at_commit(connection, partial(metrics.count, "runs_buffered", len(held)))


def find_held_tenants(connection: Conn) -> list[str]:
    """Return the tenants that have taken places, of which runs may be held."""
    return [str(row[0]) for row in connection.execute(_FIND_HELD_TENANTS).fetchall()]


def pace(connection: Conn, installation: Installation, tenant: str) -> int:
    """Queue held runs of a tenant at the places of the next two seconds; return their number.

    Without a rate all are queued, a thousand in a transaction.
    """
    with connection.cursor(row_factory=class_row(RateRow), binary=True) as cursor:
        row = cursor.execute(_LOCK_TENANT_RATES, {"tenants": [tenant]}).fetchone()
    if row is None:
        return 0
    rate = cast("tuple[float | None] | None", connection.execute(_READ_TENANT_RATE, {"tenant": tenant}).fetchone())
    per_second = None if rate is None else rate[0]
    ring = row.ring
    if per_second is None:
        times = [row.now] * MAX_RELEASED
    else:
        ring.change_rate(per_second)
        ring.forget_past(row.now)
        trial = Ring(ring.per_second, ring.first, list(ring.used))
        times = list[datetime]()
        while len(times) < MAX_RELEASED and (at := trial.place(row.now, reach=_PACED, spaced=True)) is not None:
            times.append(at)
    until = row.now + timedelta(microseconds=_PACED * ring.width)
    released = _release(connection, installation, tenant, times, until) if times else []
    if per_second is not None:
        for _ in released:
            ring.place(row.now, reach=_PACED, spaced=True)
    held_from, sees_all = _held_from(connection, row)
    if sees_all and held_from is None and per_second is None:
        connection.execute(_DROP_TENANT_RATE, {"tenant": tenant})
    else:
        write_rate(connection, tenant, ring, held_from)
    return len(released)


def _held_from(connection: Conn, row: RateRow) -> tuple[datetime | None, bool]:
    """Return the time of the oldest held run, and False if an open transaction may hold further ones."""
    columns: dict[str, object] = {"key_id": rate_key_id(row.tenant), "tenant": row.tenant}
    sees_all = connection.execute(_SEES_ALL_HELD, columns).fetchone() == (True,)
    # A later statement than the lock: it sees the runs of transactions that have ended by then.
    first = cast("tuple[datetime] | None", connection.execute(_FIRST_HELD, columns, binary=True).fetchone())
    known = [] if first is None else [first[0]]
    if not sees_all and row.held_from is not None:
        known.append(row.held_from)
    return min(known, default=None), sees_all


def _release(
    connection: Conn, installation: Installation, tenant: str, times: Sequence[datetime], until: datetime
) -> list[PromotedRun]:
    columns: dict[str, object] = {
        "key_id": rate_key_id(tenant),
        "times": instants(times),
        "count": len(times),
        "until": until,
        "target": target(Move.PROMOTE),
    }
    with connection.cursor(row_factory=class_row(PromotedRun), binary=True) as cursor:
        released = cursor.execute(_RELEASE_HELD_RUNS, columns).fetchall()
    rows = request_rows(released, build_requests(connection, released), installation)
    append(connection, rows, shards=installation.shards)
    return released
