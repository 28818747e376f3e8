"""Remove the runs of tenants with a shorter period, day by day.

A day's runs go in pages, each a transaction. `tenant_periods` has the position, which moves before the first page: so
from then on requests that rely on these runs are refused. After a crash the pages of the day begin again.
"""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import cast
from uuid import UUID

from psycopg.rows import class_row

from tidewheel.postgres.held_lock import try_table_lock
from tidewheel.postgres.partitions import day_of, start_of
from tidewheel.postgres.pg_binary import uuids
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements
from tidewheel.process.failpoint import failpoint
from tidewheel.scheduler.pace import Pace

_SQL = Statements("tidewheel.scheduler")
_FIND_TENANT_PERIODS = _SQL["find_tenant_periods"]
_LOCK_KEPT_SINCE = _SQL["lock_kept_since"]
_LOCK_OLD_KEPT_SINCE = _SQL["lock_old_kept_since"]
_HAS_OPEN_BACKFILL = _SQL["has_open_backfill"]
_MOVE_TENANT_PERIOD = _SQL["move_tenant_period"]
_FIND_RUNS_TO_REMOVE = _SQL["find_runs_to_remove"]
_REMOVE_RUNS = _SQL["remove_runs"]

_DAY = timedelta(days=1)
_PAGE = 5000  # runs of one transaction, with their attempts: some tenths of a second


@dataclass(frozen=True, slots=True)
class _TenantPeriod:
    """The period of a tenant's runs in a state, with its position."""

    tenant: str
    state: str
    keep: timedelta
    kept_since: date | None
    removing: bool


def remove_by_tenant(connection: Conn, days: Collection[date], now: datetime, pace: Pace) -> int:
    """Remove what is older than the periods of tenants; return the number of removed runs.

    Args:
        connection: With autocommit.
        days: The days whose runs may go: they are closed and counted, and archived if archiving is on.
    """
    removed = 0
    with connection.cursor(row_factory=class_row(_TenantPeriod), binary=True) as cursor:
        periods = cursor.execute(_FIND_TENANT_PERIODS).fetchall()
    for period in periods:
        end = day_of(now - period.keep)
        since = period.kept_since or date.min
        if period.removing:
            since -= _DAY
        for day in sorted(each for each in days if since <= each < end):
            if not _begin(connection, period, day):
                break
            removed += _remove_day(connection, period, day, pace)
            if pace.rest():
                return removed
            _move(connection, period, day, removing=False)
    return removed


def lock_kept_since(connection: Conn) -> bool:
    """Keep requests that rely on old runs waiting; return False while one of them, or an audit, runs."""
    return try_table_lock(connection, _LOCK_KEPT_SINCE) and try_table_lock(connection, _LOCK_OLD_KEPT_SINCE)


def has_open_backfill(connection: Conn, tenant: str, before: date) -> bool:
    """Return True if an open backfill of missing occurrences of a tenant begins before a day."""
    columns: dict[str, object] = {"tenant": tenant, "end": start_of(before)}
    return connection.execute(_HAS_OPEN_BACKFILL, columns).fetchone() == (True,)


def remove_runs(connection: Conn, day: date, run_ids: Collection[UUID]) -> None:
    """Remove runs that ended on a closed day, with what they have on this day and the day before."""
    columns = {"before": start_of(day - _DAY), "first": start_of(day), "end": start_of(day + _DAY)}
    connection.execute(_REMOVE_RUNS, {**columns, "run_ids": uuids(run_ids)})


def _begin(connection: Conn, period: _TenantPeriod, day: date) -> bool:
    """Move the position behind a day; return False if an audit or an open backfill needs its runs."""
    with connection.transaction():
        if not lock_kept_since(connection) or has_open_backfill(connection, period.tenant, day + _DAY):
            return False
        _move(connection, period, day, removing=True)
    return True


def _move(connection: Conn, period: _TenantPeriod, day: date, *, removing: bool) -> None:
    columns: dict[str, object] = {
        "tenant": period.tenant, "state": period.state, "kept_since": day + _DAY, "removing": removing,
    }  # fmt: skip
    connection.execute(_MOVE_TENANT_PERIOD, columns)


def _remove_day(connection: Conn, period: _TenantPeriod, day: date, pace: Pace) -> int:
    removed, after = 0, UUID(int=0)
    columns: dict[str, object] = {
        "tenant": period.tenant, "state": period.state, "limit": _PAGE,
        "first": start_of(day), "end": start_of(day + _DAY),
    }  # fmt: skip
    while True:
        rows = connection.execute(_FIND_RUNS_TO_REMOVE, {**columns, "after": after}, binary=True).fetchall()
        run_ids = [run_id for (run_id,) in cast("list[tuple[UUID]]", rows)]
        if run_ids:
            after = run_ids[-1]
            remove_runs(connection, day, run_ids)
            removed += len(run_ids)
            failpoint("removing.page")
        if len(run_ids) < _PAGE or pace.rest():
            return removed
