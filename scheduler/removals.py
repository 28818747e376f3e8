"""Remove runs and jobs that retention keeps for less than their days, and count the runs of a day.

Runs go in pages, each a transaction, by the periods of tenants (`tenant_periods`). Their rows have the first day of
which all runs are stored. It moves before the first page: so from then on requests that rely on these runs are refused.
After a crash the pages begin again.

A day is counted by slices of the job ids. A slice and the position behind it are one transaction: so a crash counts no
run twice. A slice reads the whole day in the order of its pages: in the order of the jobs each run would be a read at
random.

A round goes over all jobs in the order of their ids, and a pass takes a part of it: `retention_state` has the position.
A job stays while a timer, a run, a dead letter, a backfill or an edge in force needs it.
"""

import logging
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import LiteralString, cast
from uuid import UUID

from psycopg.rows import class_row

from tidewheel.clock import monotonic_seconds
from tidewheel.jobs.values import LONGEST_DELAY
from tidewheel.postgres.held_lock import try_old_lock, try_table_lock
from tidewheel.postgres.partitions import day_of, start_of
from tidewheel.postgres.pg_binary import uuids
from tidewheel.postgres.session import Conn, list_ids, read_ids, read_rows
from tidewheel.postgres.statements import Statements
from tidewheel.process.failpoint import failpoint
from tidewheel.process.health import health
from tidewheel.process.service import Shutdown

_LOG = logging.getLogger("tidewheel.scheduler")

_SQL = Statements("tidewheel.scheduler")

# A tenth of 100 million runs takes more than a minute. Nothing else writes the rows that the transaction locks. The
# limit of a begun transaction can be removed, and not extended. Source: PostgreSQL's assign_transaction_timeout.
_EXTEND_LIMITS: LiteralString = """
SELECT set_config(name, CASE name WHEN 'statement_timeout' THEN '10min' ELSE '0' END, true)
  FROM pg_settings WHERE name IN ('statement_timeout', 'transaction_timeout')
"""

_DAY = timedelta(days=1)
_NOWHERE = UUID(int=0)
_FIRST = _NOWHERE, datetime(1970, 1, 1, tzinfo=UTC)
_PAGE = 5000  # runs of one transaction, with their attempts: some tenths of a second
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


def remove_by_tenant(
    connection: Conn, days: Collection[date], ready: Collection[date], now: datetime, pace: Pace
) -> int:
    """Remove what is older than the periods of tenants; return the number of removed runs.

    The connection has autocommit. Days go in their order, since a position passes a day once. A day is ready if it is
    closed, counted, and archived where archiving is on.
    """
    removed = 0
    for period in read_rows(connection, class_row(_TenantPeriod), _SQL["find_tenant_periods"], {}):
        end = day_of(now - period.keep)
        since = period.kept_since or date.min
        if period.removing:
            since -= _DAY
        for day in sorted(each for each in days if since <= each < end):
            if day not in ready or not _begin_period(connection, period, day):
                break
            removed += _remove_day(connection, period, day, pace)
            if pace.rest():
                return removed
            _move(connection, period, day, removing=False)
    return removed


def lock_kept_since(connection: Conn) -> bool:
    """Keep requests that rely on old runs waiting; return False while one of them, or an audit, runs."""
    return try_table_lock(connection, _SQL["lock_kept_since"]) and try_old_lock(connection, "kept_since")


def remove_runs(connection: Conn, day: date, run_ids: Collection[UUID]) -> None:
    """Remove runs that ended on a closed day, with what they have on this day and the day before."""
    columns = {"before": start_of(day - _DAY), "first": start_of(day), "end": start_of(day + _DAY)}
    connection.execute(_SQL["remove_runs"], {**columns, "run_ids": uuids(run_ids)})


def _begin_period(connection: Conn, period: _TenantPeriod, day: date) -> bool:
    """Move the position behind a day; return False if an audit or an open backfill needs its runs."""
    columns: dict[str, object] = {"tenant": period.tenant, "end": start_of(day + _DAY)}
    with connection.transaction():
        if not lock_kept_since(connection):
            return False
        if connection.execute(_SQL["has_open_backfill"], columns).fetchone() == (True,):
            return False
        _move(connection, period, day, removing=True)
    return True


def _move(connection: Conn, period: _TenantPeriod, day: date, *, removing: bool) -> None:
    columns: dict[str, object] = {
        "tenant": period.tenant, "state": period.state, "kept_since": day + _DAY, "removing": removing,
    }  # fmt: skip
    connection.execute(_SQL["move_tenant_period"], columns)


def _remove_day(connection: Conn, period: _TenantPeriod, day: date, pace: Pace) -> int:
    removed, after = 0, _NOWHERE
    columns: dict[str, object] = {
        "tenant": period.tenant, "state": period.state, "limit": _PAGE,
        "first": start_of(day), "end": start_of(day + _DAY),
    }  # fmt: skip
    while True:
        run_ids = list_ids(connection, _SQL["find_runs_to_remove"], {**columns, "after": after})
        if run_ids:
            after = run_ids[-1]
            remove_runs(connection, day, run_ids)
            removed += len(run_ids)
            failpoint("removing.page")
        if len(run_ids) < _PAGE or pace.rest():
            return removed


def count_days(connection: Conn, pace: Pace) -> None:
    """Count the closed days that are not counted, on a connection with autocommit."""
    found = connection.execute(_SQL["find_days_to_count"], binary=True).fetchall()
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
    first = start_of(day)
    columns: dict[str, object] = {
        "day": day, "first": first, "end": first + timedelta(days=1), "after_job": after[0], "after_at": after[1],
        "end_job": end,
    }  # fmt: skip
    behind = (None, None) if end is None else (end, _FIRST[1])
    with connection.transaction():
        connection.execute(_EXTEND_LIMITS)
        connection.execute(_SQL["count_slice"], columns)
        connection.execute(_SQL["advance_count"], {"day": day, "after_job": behind[0], "after_at": behind[1]})
        failpoint("counting.before_commit")


def remove_ended_jobs(connection: Conn, before: datetime, pace: Pace) -> int:
    """Remove unneeded jobs that ended before an instant, with autocommit; return their number."""
    removed = 0
    row = cast("tuple[UUID | None] | None", connection.execute(_SQL["read_job_round"], binary=True).fetchone())
    after = row[0] if row else None
    for _ in range(_PAGES):
        first_id = after or _NOWHERE
        columns: dict[str, object] = {"after": first_id, "before": before, "limit": _JOBS_READ}
        page = connection.execute(_SQL["scan_ended_jobs"], columns, binary=True).fetchone()
        after, ended = cast("tuple[UUID | None, list[UUID]]", page)
        for first in range(0, len(ended), _REMOVED):
            removed += _remove_unused(connection, ended[first : first + _REMOVED], before)
            if pace.rest():
                return removed
        if after is not None and remove_superseded(connection, (first_id, after), before, pace):
            return removed
        connection.execute(_SQL["advance_job_round"], {"after": after})
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
    edited = read_ids(connection, _SQL["find_edited_jobs"], {"after": jobs[0], "last": jobs[1], "before": old})
    for job_id in edited:
        for _ in range(_VERSION_PAGES):
            columns: dict[str, object] = {"job_id": job_id, "before": old, "delay": LONGEST_DELAY, "limit": _VERSIONS}
            with connection.transaction():
                # An edit, a backfill or a rollback reads versions under this lock.
                is_locked = connection.execute(_SQL["lock_backfilled_job"], columns).fetchone() is not None
                gone = connection.execute(_SQL["remove_versions"], columns).rowcount if is_locked else 0
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
        locked = read_ids(connection, _SQL["lock_ended_jobs"], {"job_ids": uuids(job_ids), "before": before})
        unused = read_ids(connection, _SQL["find_unused_jobs"], {"job_ids": uuids(locked)})
        connection.execute(_SQL["remove_jobs"], {"job_ids": uuids(unused)})
    return len(unused)
