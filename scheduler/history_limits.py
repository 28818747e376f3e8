"""Remove the runs beyond the number that their job keeps, job by job.

A job is looked at once for each closed day. Only runs that ended on closed days go, in pages, each a transaction.
`history_limits` has the day from which all runs of the job are stored. It moves before the first page: so from then on
requests that rely on these runs are refused. After a crash the job's pages begin again.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import cast
from uuid import UUID

from psycopg import Rollback
from psycopg.rows import class_row

from tidewheel.postgres.partitions import day_of, start_of
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements
from tidewheel.process.failpoint import failpoint
from tidewheel.scheduler.pace import Pace
from tidewheel.scheduler.tenant_periods import has_open_backfill, lock_kept_since, remove_runs

_SQL = Statements("tidewheel.scheduler")
_FIND_HISTORY_LIMITS = _SQL["find_history_limits"]
_FIND_HISTORY_END = _SQL["find_history_end"]
_MOVE_HISTORY_LIMIT = _SQL["move_history_limit"]
_FIND_HISTORY_TO_REMOVE = _SQL["find_history_to_remove"]
_RECORD_HISTORY_WALK = _SQL["record_history_walk"]

_DAY = timedelta(days=1)
_BEGIN = datetime.min.replace(tzinfo=UTC)
_JOBS = 1000  # whose limits one statement reads
_PAGE = 5000  # runs of one transaction, with their attempts: some tenths of a second


@dataclass(frozen=True, slots=True)
class _HistoryLimit:
    """The number of finished runs that a job keeps."""

    job_id: UUID
    tenant: str
    keep: int


def remove_by_job(connection: Conn, days: Collection[date], pace: Pace) -> int:
    """Remove the runs beyond the limits of their jobs; return their number.

    Args:
        connection: With autocommit.
        days: The days whose runs may go, as for `remove_by_tenant`.
        pace: Pauses between pages.
    """
    removed = 0
    if not days:
        return removed
    for limit in _limits(connection, max(days)):
        gone = _remove(connection, limit, days, pace)
        if gone is None:
            continue
        removed += gone
        if pace.rest():
            break
        connection.execute(_RECORD_HISTORY_WALK, {"job_id": limit.job_id, "day": max(days)})
    return removed


def _limits(connection: Conn, day: date) -> Iterator[_HistoryLimit]:
    """Yield the limits in force of jobs that were not looked at for a day yet."""
    after = UUID(int=0)
    while True:
        with connection.cursor(row_factory=class_row(_HistoryLimit), binary=True) as cursor:
            found = cursor.execute(_FIND_HISTORY_LIMITS, {"after": after, "day": day, "limit": _JOBS}).fetchall()
        yield from found
        if len(found) < _JOBS:
            return
        after = found[-1].job_id


def _remove(connection: Conn, limit: _HistoryLimit, days: Collection[date], pace: Pace) -> int | None:
    """Remove the runs of a job beyond its limit; return None if an audit or an open backfill needs them."""
    columns: dict[str, object] = {"job_id": limit.job_id, "keep": limit.keep, "limit": _PAGE}
    columns |= {"first": start_of(min(days)), "end": start_of(max(days) + _DAY)}
    last = cast("tuple[datetime, UUID] | None", connection.execute(_FIND_HISTORY_END, columns, binary=True).fetchone())
    if last is None:
        return 0
    columns |= {"last_at": last[0], "last_id": last[1], "after_at": _BEGIN, "after_id": UUID(int=0)}
    kept_since = min(day_of(last[0]), max(days)) + _DAY
    removed, began = 0, False
    while found := connection.execute(_FIND_HISTORY_TO_REMOVE, columns, binary=True).fetchall():
        rows = cast("list[tuple[UUID, datetime, date]]", found)
        runs = [(run_id, ended) for run_id, _, ended in rows if ended in days]
        if runs and not began:
            if not _begin(connection, limit, kept_since):
                return None
            began = True
        for day in {ended for _, ended in runs}:
            of_day = [run_id for run_id, ended in runs if ended == day]
            remove_runs(connection, day, of_day)
            removed += len(of_day)
            failpoint("removing.history")
        columns |= {"after_id": rows[-1][0], "after_at": rows[-1][1]}
        if len(rows) < _PAGE or pace.rest():
            break
    return removed


def _begin(connection: Conn, limit: _HistoryLimit, kept_since: date) -> bool:
    """Move the first day with all runs; return False if an audit or an open backfill needs older ones."""
    may_go = False
    with connection.transaction() as transaction:
        # The row first: a submit that has written it may wait for the lock.
        connection.execute(_MOVE_HISTORY_LIMIT, {"job_id": limit.job_id, "kept_since": kept_since})
        may_go = lock_kept_since(connection) and not has_open_backfill(connection, limit.tenant, kept_since)
        if not may_go:
            raise Rollback(transaction)
    return may_go
