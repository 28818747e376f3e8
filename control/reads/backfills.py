"""Reading backfills: those of a tenant or a job, or one with how its runs stand.

The states of runs are counted when they are asked for, so they are exact, and gone once the runs' day is dropped: then
only what the backfill's own row says is left.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import cast
from uuid import UUID

from psycopg.rows import class_row

from tidewheel.control.explain.facts import read_job_position
from tidewheel.control.reads.tenants import require_tenant
from tidewheel.errors import UnknownBackfill
from tidewheel.ids import job_id, run_range
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements
from tidewheel.runs import OPEN, RunState

_SQL = Statements("tidewheel.control")
_LIST_BACKFILLS = _SQL["list_backfills"]
_SHOW_BACKFILL = _SQL["show_backfill"]
_COUNT_BACKFILLED = _SQL["count_backfilled"]


@dataclass(frozen=True, slots=True)
class BackfillSummary:
    """A backfill as lists show it.

    Args:
        backfill_id: Its id.
        key: Its job's.
        job_id: Its job.
        state: `running`, `paused`, `finished` or `cancelled`.
        first_at: The first instant of its range.
        last_at: The last.
        what: `missing_only` or `all`.
        versions: `as_of` or `current`.
        job_version: The one that was current when it was accepted.
        overlap: In place of the job's policy.
        newest_first: Whether the last instant comes first.
        max_concurrent: How many of its runs may be open at once.
        occurrences: How many the range held when it was accepted.
        wanted: How many of them were to be run then.
        made: How many runs were made so far.
        passed_over: How many instants were found not to be missing so far.
        cursor_at: The next instant to be looked at; None when none is left.
        request_id: The request's.
        reason: Why it was made, paused or cancelled.
        created_at: When it was accepted.
        finished_at: When it was finished or cancelled.
    """

    backfill_id: UUID
    key: str
    job_id: UUID
    state: str
    first_at: datetime
    last_at: datetime
    what: str
    versions: str
    job_version: int
    overlap: str | None
    newest_first: bool
    max_concurrent: int
    occurrences: int
    wanted: int
    made: int
    passed_over: int
    cursor_at: datetime | None
    request_id: str | None
    reason: str | None
    created_at: datetime
    finished_at: datetime | None


@dataclass(frozen=True, slots=True)
class BackfillProgress:
    """A backfill with how its runs stand.

    Args:
        summary: What lists show.
        runs: How many runs are in each state.
    """

    summary: BackfillSummary
    runs: Mapping[RunState, int]

    @property
    def looked_at(self) -> int:
        """How many occurrences it is done with, of `summary.occurrences`."""
        return self.summary.made + self.summary.passed_over

    @property
    def open(self) -> int:
        """Runs that have not ended."""
        return sum(count for state, count in self.runs.items() if state in OPEN)

    @property
    def succeeded(self) -> int:
        """Runs that succeeded."""
        return self.runs.get(RunState.SUCCEEDED, 0)

    @property
    def failed(self) -> int:
        """Runs that failed or timed out."""
        return self.runs.get(RunState.FAILED, 0) + self.runs.get(RunState.TIMED_OUT, 0)

    @property
    def undone(self) -> int:
        """Runs that were cancelled or skipped."""
        return self.runs.get(RunState.CANCELLED, 0) + self.runs.get(RunState.SKIPPED, 0)


def backfills(connection: Conn, tenant: str, key: str | None = None, *, limit: int = 100) -> list[BackfillSummary]:
    """A tenant's backfills, or those of one job, the newest first.

    Args:
        connection: To read by.
        tenant: Whose.
        key: Only this job's.
        limit: How many.

    Raises:
        InvalidInput: There is no such tenant.
        UnknownJob: There is no such job and never was one.
    """
    require_tenant(connection, tenant)
    if key is not None:
        read_job_position(connection, tenant, key)
    columns = {"tenant": tenant, "job_id": None if key is None else job_id(tenant, key), "most": limit}
    with connection.cursor(row_factory=class_row(BackfillSummary), binary=True) as cursor:
        return cursor.execute(_LIST_BACKFILLS, columns).fetchall()


def backfill(connection: Conn, tenant: str, backfill_id: UUID) -> BackfillProgress:
    """One backfill.

    Raises:
        UnknownBackfill: There is none of this id in this tenant.
    """
    columns = {"tenant": tenant, "backfill_id": backfill_id}
    with connection.cursor(row_factory=class_row(BackfillSummary), binary=True) as cursor:
        summary = cursor.execute(_SHOW_BACKFILL, columns).fetchone()
    if summary is None:
        raise UnknownBackfill(str(backfill_id))
    first, last = run_range(summary.job_id, summary.created_at)
    ids = {"job_id": summary.job_id, "first_run_id": first, "last_run_id": last}
    rows = connection.execute(_COUNT_BACKFILLED, ids, binary=True).fetchall()
    return BackfillProgress(summary, {RunState(str(state)): cast("int", count) for state, count in rows})
