"""Remove the runs beyond the number that their job keeps, job by job.

A job is looked at once for each closed day. Only runs that ended on closed days go, in pages. The transaction of each
page locks the limit, which must still be in force. `history_limits` has the day from which all runs of the job are
stored. It moves before the first page: so from then on requests that rely on these runs are refused. After a crash the
job's pages begin again.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from enum import Enum, auto
from typing import cast
from uuid import UUID

from psycopg import Rollback
from psycopg.rows import class_row

from tidewheel.clock import monotonic_seconds
from tidewheel.postgres.partitions import day_of, start_of
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements
from tidewheel.process.failpoint import failpoint
from tidewheel.scheduler.pace import Pace
from tidewheel.scheduler.tenant_periods import has_open_backfill, lock_kept_since, remove_runs

_SQL = Statements("tidewheel.scheduler")
_FIND_HISTORY_LIMITS = _SQL["find_history_limits"]
_FIND_HISTORY_END = _SQL["find_history_end"]
_LOCK_HISTORY_LIMIT = _SQL["lock_history_limit"]
_HAS_RELEASE_WITHOUT_LIMITS = _SQL["has_release_without_limits"]
_MOVE_HISTORY_LIMIT = _SQL["move_history_limit"]
_FIND_HISTORY_TO_REMOVE = _SQL["find_history_to_remove"]
_RECORD_HISTORY_WALK = _SQL["record_history_walk"]

_DAY = timedelta(days=1)
_BEGIN = datetime.min.replace(tzinfo=UTC)
_JOBS = 1000  # whose limits one statement reads
_PAGE = 5000  # runs of one transaction, with their attempts: some tenths of a second
_BUDGET_SECONDS = 1200.0  # of a walk: drops and shorter periods of tenants come first in the next pass


@dataclass(frozen=True, slots=True)
class _HistoryLimit:
    """The number of finished runs that a job keeps."""

    job_id: UUID
    tenant: str
    version: int
    keep: int


class _Left(Enum):
    """The part of a job's runs beyond its limit that a walk leaves."""

    NOTHING = auto()
    FOR_LATER = auto()  # an audit, an open backfill or an old release needs them
    FOR_SOON = auto()  # an edit has the limit, or the time is over


def remove_by_job(connection: Conn, days: Collection[date], pace: Pace) -> tuple[int, bool]:
    """Remove the runs beyond the limits of their jobs; return their number, and True if more is left.

    Args:
        connection: With autocommit.
        days: The days whose runs may go, as for `remove_by_tenant`.
    """
    removed, soon, until = 0, False, monotonic_seconds() + _BUDGET_SECONDS
    if not days:
        return removed, soon
    for limit in _limits(connection, max(days)):
        gone, left = _remove(connection, limit, days, pace, until)
        removed += gone
        if left is _Left.NOTHING:
            columns: dict[str, object] = {"job_id": limit.job_id, "version": limit.version, "day": max(days)}
            soon |= connection.execute(_RECORD_HISTORY_WALK, columns).rowcount == 0
        soon |= left is _Left.FOR_SOON
        if pace.rest() or monotonic_seconds() > until:
            return removed, True
    return removed, soon


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


def _remove(
    connection: Conn, limit: _HistoryLimit, days: Collection[date], pace: Pace, until: float
) -> tuple[int, _Left]:
    """Remove the runs of a job beyond its limit; return their number."""
    columns: dict[str, object] = {"job_id": limit.job_id, "keep": limit.keep, "limit": _PAGE}
    columns |= {"first": start_of(min(days)), "end": start_of(max(days) + _DAY)}
    last = cast("tuple[datetime, UUID] | None", connection.execute(_FIND_HISTORY_END, columns, binary=True).fetchone())
    if last is None:
        return 0, _Left.NOTHING
    columns |= {"last_at": last[0], "last_id": last[1], "after_at": _BEGIN, "after_id": UUID(int=0)}
    kept_since = min(day_of(last[0]), max(days)) + _DAY
    removed, began = 0, False
    while found := connection.execute(_FIND_HISTORY_TO_REMOVE, columns, binary=True).fetchall():
        rows = cast("list[tuple[UUID, datetime, date]]", found)
        runs = [(run_id, ended) for run_id, _, ended in rows if ended in days]
        if runs and not began:
            if (left := _begin(connection, limit, kept_since)) is not _Left.NOTHING:
                return removed, left
            began = True
        for day in {ended for _, ended in runs}:
            of_day = [run_id for run_id, ended in runs if ended == day]
            with connection.transaction():
                if not _locked(connection, limit):
                    return removed, _Left.FOR_SOON
                remove_runs(connection, day, of_day)
            removed += len(of_day)
            failpoint("removing.history")
        columns |= {"after_id": rows[-1][0], "after_at": rows[-1][1]}
        if len(rows) < _PAGE:
            break
        if pace.rest() or monotonic_seconds() > until:
            return removed, _Left.FOR_SOON
    return removed, _Left.NOTHING


def _begin(connection: Conn, limit: _HistoryLimit, kept_since: date) -> _Left:
    """Move the first day with all runs; return the cause for which nothing may go."""
    left = _Left.NOTHING
    with connection.transaction() as transaction:
        # The row first: a submit that has written it may wait for the lock of `kept_since`.
        if not _locked(connection, limit):
            left = _Left.FOR_SOON
        elif (
            connection.execute(_HAS_RELEASE_WITHOUT_LIMITS).fetchone() == (True,)
            or not lock_kept_since(connection)
            or has_open_backfill(connection, limit.tenant, kept_since)
        ):
            left = _Left.FOR_LATER
        else:
            connection.execute(_MOVE_HISTORY_LIMIT, {"job_id": limit.job_id, "kept_since": kept_since})
        if left is not _Left.NOTHING:
            raise Rollback(transaction)
    return left


def _locked(connection: Conn, limit: _HistoryLimit) -> bool:
    """Lock a limit until the commit; return False if an edit has ended or locked it."""
    columns: dict[str, object] = {"job_id": limit.job_id, "version": limit.version}
    return connection.execute(_LOCK_HISTORY_LIMIT, columns).fetchone() is not None
