"""Remove runs and jobs that retention keeps for less than their days, and count the runs of a day.

Runs go in pages, each a transaction, by the periods of tenants (`tenant_periods`) and the limits of jobs
(`history_limits`). Both rows have the first day of which all runs are stored. It moves before the first page: so from
then on requests that rely on these runs are refused. After a crash the pages begin again. A job is looked at once for
each closed day, and each page locks its limit, which must still be in force.

A day is counted by slices of the job ids. A slice and the position behind it are one transaction: so a crash counts no
run twice. A slice reads the whole day in the order of its pages: in the order of the jobs each run would be a read at
random.

A round goes over all jobs in the order of their ids, and a pass takes a part of it: `retention_state` has the position.
A job stays while a timer, a run, a dead letter, a backfill or an edge in force needs it.
"""

import logging
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from enum import Enum, auto
from typing import LiteralString, cast
from uuid import UUID

from psycopg import Rollback
from psycopg.rows import class_row

from tidewheel.clock import monotonic_seconds
from tidewheel.jobs.values import LONGEST_DELAY
from tidewheel.postgres.held_lock import try_old_lock, try_table_lock
from tidewheel.postgres.partitions import day_of, start_of
from tidewheel.postgres.pg_binary import uuids
from tidewheel.postgres.session import Conn, read_ids
from tidewheel.postgres.statements import Statements
from tidewheel.process.failpoint import failpoint
from tidewheel.process.health import health
from tidewheel.process.service import Shutdown

_LOG = logging.getLogger("tidewheel.scheduler")

_SQL = Statements("tidewheel.scheduler")
_FIND_TENANT_PERIODS = _SQL["find_tenant_periods"]
_LOCK_KEPT_SINCE = _SQL["lock_kept_since"]
_HAS_OPEN_BACKFILL = _SQL["has_open_backfill"]
_MOVE_TENANT_PERIOD = _SQL["move_tenant_period"]
_FIND_RUNS_TO_REMOVE = _SQL["find_runs_to_remove"]
_REMOVE_RUNS = _SQL["remove_runs"]
_FIND_HISTORY_LIMITS = _SQL["find_history_limits"]
_FIND_HISTORY_END = _SQL["find_history_end"]
_LOCK_HISTORY_LIMIT = _SQL["lock_history_limit"]
_HAS_RELEASE_WITHOUT_LIMITS = _SQL["has_release_without_limits"]
_MOVE_HISTORY_LIMIT = _SQL["move_history_limit"]
_FIND_HISTORY_TO_REMOVE = _SQL["find_history_to_remove"]
_RECORD_HISTORY_WALK = _SQL["record_history_walk"]
_FIND_DAYS_TO_COUNT = _SQL["find_days_to_count"]
_COUNT_SLICE = _SQL["count_slice"]
_ADVANCE_COUNT = _SQL["advance_count"]
_READ_JOB_ROUND = _SQL["read_job_round"]
_ADVANCE_JOB_ROUND = _SQL["advance_job_round"]
_SCAN_ENDED_JOBS = _SQL["scan_ended_jobs"]
_LOCK_ENDED_JOBS = _SQL["lock_ended_jobs"]
_FIND_UNUSED_JOBS = _SQL["find_unused_jobs"]
_REMOVE_JOBS = _SQL["remove_jobs"]
_FIND_EDITED_JOBS = _SQL["find_edited_jobs"]
_LOCK_JOB = _SQL["lock_backfilled_job"]
_REMOVE_VERSIONS = _SQL["remove_versions"]

# A tenth of 100 million runs takes more than a minute. Nothing else writes the rows that the transaction locks. The
# limit of a begun transaction can be removed, and not extended. Source: PostgreSQL's assign_transaction_timeout.
_EXTEND_LIMITS: LiteralString = """
SELECT set_config(name, CASE name WHEN 'statement_timeout' THEN '10min' ELSE '0' END, true)
  FROM pg_settings WHERE name IN ('statement_timeout', 'transaction_timeout')
"""

_DAY = timedelta(days=1)
_NOWHERE = UUID(int=0)
_BEGIN = datetime.min.replace(tzinfo=UTC)
_FIRST = _NOWHERE, datetime(1970, 1, 1, tzinfo=UTC)
_JOBS = 1000  # whose limits one statement reads
_PAGE = 5000  # runs of one transaction, with their attempts: some tenths of a second
_BUDGET_SECONDS = 1200.0  # of a walk: drops and shorter periods of tenants come first in the next pass
_SLICE = 1_000_000  # runs of one transaction: some seconds
_MAX_SLICES = 10  # of a day: each reads all of it
_JOBS_READ = 5000  # jobs that one statement reads: some milliseconds
_PAGES = 200  # of a pass: a round over 24 million jobs takes a day
_REMOVED = 200  # jobs of one transaction: each is looked up in every partition of finished runs
_VERSIONS = 1000  # of one transaction, with their definitions: some tens of milliseconds
_VERSION_PAGES = 20  # of a job in a round, which takes a day at most: more than an edit each minute


@dataclass(frozen=True, slots=True)
class _TenantPeriod:
    """The period of a tenant's runs in a state, with its position."""

    tenant: str
    state: str
    keep: timedelta
    kept_since: date | None
    removing: bool


class Pace:
    """Pauses between the transactions of a long pass; a shutdown ends both."""

    def __init__(self, stop: Shutdown) -> None:
        self._stop = stop
        self._since = monotonic_seconds()

    def rest(self) -> bool:
        """Wait as long as the work since the last call took; return True if a shutdown was requested."""
        health.report_waiting()
        stopped = self._stop.wait(monotonic_seconds() - self._since)
        self._since = monotonic_seconds()
        return stopped


def remove_by_tenant(connection: Conn, days: Collection[date], now: datetime, pace: Pace) -> int:
    """Remove what is older than the periods of tenants; return the number of removed runs.

    The connection has autocommit. The runs of `days` may go: they are closed, counted, and archived if archiving is on.
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
            if not _begin_period(connection, period, day):
                break
            removed += _remove_day(connection, period, day, pace)
            if pace.rest():
                return removed
            _move(connection, period, day, removing=False)
    return removed


def lock_kept_since(connection: Conn) -> bool:
    """Keep requests that rely on old runs waiting; return False while one of them, or an audit, runs."""
    return try_table_lock(connection, _LOCK_KEPT_SINCE) and try_old_lock(connection, "kept_since")


def has_open_backfill(connection: Conn, tenant: str, before: date) -> bool:
    """Return True if an open backfill of missing occurrences of a tenant begins before a day."""
    columns: dict[str, object] = {"tenant": tenant, "end": start_of(before)}
    return connection.execute(_HAS_OPEN_BACKFILL, columns).fetchone() == (True,)


def remove_runs(connection: Conn, day: date, run_ids: Collection[UUID]) -> None:
    """Remove runs that ended on a closed day, with what they have on this day and the day before."""
    columns = {"before": start_of(day - _DAY), "first": start_of(day), "end": start_of(day + _DAY)}
    connection.execute(_REMOVE_RUNS, {**columns, "run_ids": uuids(run_ids)})


def _begin_period(connection: Conn, period: _TenantPeriod, day: date) -> bool:
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
    removed, after = 0, _NOWHERE
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
    """Remove the runs beyond the limits of their jobs; return their number, and True if more is left."""
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
    after = _NOWHERE
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
    columns |= {"last_at": last[0], "last_id": last[1], "after_at": _BEGIN, "after_id": _NOWHERE}
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


def count_days(connection: Conn, pace: Pace) -> None:
    """Count the closed days that are not counted, on a connection with autocommit."""
    found = connection.execute(_FIND_DAYS_TO_COUNT, binary=True).fetchall()
    for day, runs, after_job, after_at in cast("list[tuple[date, int, UUID | None, datetime | None]]", found):
        after = _FIRST if after_job is None or after_at is None else (after_job, after_at)
        slices = min(max(runs, 0) // _SLICE + 1, _MAX_SLICES)
        ends = [UUID(int=(number << 128) // slices) for number in range(1, slices)]
        for end in [*(each for each in ends if each > after[0]), None]:
            _count_slice(connection, day, after, end)
            if pace.rest():
                return
            after = end or after[0], _FIRST[1]


def _count_slice(connection: Conn, day: date, after: tuple[UUID, datetime], end: UUID | None) -> None:
    """Count the runs behind a position, of the jobs before `end`; None for the rest."""
    first = start_of(day)
    columns: dict[str, object] = {
        "day": day, "first": first, "end": first + timedelta(days=1), "after_job": after[0], "after_at": after[1],
        "end_job": end,
    }  # fmt: skip
    behind = (None, None) if end is None else (end, _FIRST[1])
    with connection.transaction():
        connection.execute(_EXTEND_LIMITS)
        connection.execute(_COUNT_SLICE, columns)
        connection.execute(_ADVANCE_COUNT, {"day": day, "after_job": behind[0], "after_at": behind[1]})
        failpoint("counting.before_commit")


def remove_ended_jobs(connection: Conn, before: datetime, pace: Pace) -> int:
    """Remove unneeded jobs that ended before an instant, with autocommit; return their number."""
    removed = 0
    row = cast("tuple[UUID | None] | None", connection.execute(_READ_JOB_ROUND, binary=True).fetchone())
    after = row[0] if row else None
    for _ in range(_PAGES):
        first_id = after or _NOWHERE
        columns: dict[str, object] = {"after": first_id, "before": before, "limit": _JOBS_READ}
        page = connection.execute(_SCAN_ENDED_JOBS, columns, binary=True).fetchone()
        after, ended = cast("tuple[UUID | None, list[UUID]]", page)
        for first in range(0, len(ended), _REMOVED):
            removed += _remove_unused(connection, ended[first : first + _REMOVED], before)
            if pace.rest():
                return removed
        if after is not None and remove_superseded(connection, (first_id, after), before, pace):
            return removed
        connection.execute(_ADVANCE_JOB_ROUND, {"after": after})
        if after is None or pace.rest():
            break
    return removed


def remove_superseded(connection: Conn, jobs: tuple[UUID, UUID], before: datetime, pace: Pace) -> bool:
    """Remove old versions of jobs behind the first id, up to the second; return True at a shutdown.

    No index finds the runs of a version. A run of a version has an instant of at most the longest delay after the
    version was superseded: so the oldest instant of a job's stored runs bounds the versions that they have. The
    instants that the timer, overrides and backfills still need bound them in the same way. No stored day of runs and no
    open occurrence needs a version from before `before`.
    """
    removed, old = 0, before - LONGEST_DELAY
    edited = read_ids(connection, _FIND_EDITED_JOBS, {"after": jobs[0], "last": jobs[1], "before": old})
    for job_id in edited:
        for _ in range(_VERSION_PAGES):
            columns: dict[str, object] = {"job_id": job_id, "before": old, "delay": LONGEST_DELAY, "limit": _VERSIONS}
            with connection.transaction():
                # An edit, a backfill or a rollback reads versions under this lock.
                is_locked = connection.execute(_LOCK_JOB, columns).fetchone() is not None
                gone = connection.execute(_REMOVE_VERSIONS, columns).rowcount if is_locked else 0
            removed += gone
            if pace.rest():
                return True
            if gone < _VERSIONS:
                break
    if removed:
        _LOG.info("removed %d superseded versions of jobs", removed)
    return False


def _remove_unused(connection: Conn, job_ids: list[UUID], before: datetime) -> int:
    with connection.transaction():
        locked = read_ids(connection, _LOCK_ENDED_JOBS, {"job_ids": uuids(job_ids), "before": before})
        unused = read_ids(connection, _FIND_UNUSED_JOBS, {"job_ids": uuids(locked)})
        connection.execute(_REMOVE_JOBS, {"job_ids": uuids(unused)})
    return len(unused)
