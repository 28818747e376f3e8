"""Read backfills: those of a tenant or a job, or one with the states of its runs.

Each read counts the states of runs, so they are exact. After the day of the runs is dropped, only the figures of the
backfill's own row remain.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import cast
from uuid import UUID

from psycopg.rows import class_row

from tidewheel.control.reads.job_position import read_job_position
from tidewheel.errors import UnknownBackfill
from tidewheel.ids import job_id, run_range
from tidewheel.nouns.tenants.reads import require_tenant
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements
from tidewheel.runs import OPEN, RunState

_SQL = Statements("tidewheel.control")
_LIST_BACKFILLS = _SQL["list_backfills"]
_SHOW_BACKFILL = _SQL["show_backfill"]
_COUNT_BACKFILLED = _SQL["count_backfilled"]

ENDS = "ends with the job's deletion"
"""What becomes of a backfill of a deleted job, until a scheduler cancels it."""


@dataclass(frozen=True, slots=True)
class BackfillSummary:
    """A backfill as lists show it.

    Args:
        backfill_id: Its id.
        key: Its job's key.
        job_id: Its job.
        state: `running`, `paused`, `finished` or `cancelled`.
        first_at: The first instant of its range.
        last_at: The last.
        what: `missing_only` or `all`.
        versions: `as_of` or `current`.
        job_version: The job's current version at its acceptance.
        overlap: Replaces the job's policy.
        newest_first: True if the last instant runs first.
        max_concurrent: How many of its runs may be open at once.
        occurrences: How many the range had at its acceptance.
        expected_count: The number of them that were to run, at its acceptance.
        created_count: The number of runs created so far.
        existing_count: The number of processed occurrences that were not missing.
        cursor_at: The next instant to process; None when none is left.
        request_id: The request's id.
        reason: The reason of its creation, pause or cancellation.
        created_at: When it was accepted.
        finished_at: When it was finished or cancelled.
        ending: True if its job was deleted: it creates no further run, and a scheduler cancels it.
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
    expected_count: int
    created_count: int
    existing_count: int
    cursor_at: datetime | None
    request_id: str | None
    reason: str | None
    created_at: datetime
    finished_at: datetime | None
    ending: bool


@dataclass(frozen=True, slots=True)
class BackfillProgress:
    """A backfill with the states of its runs.

    Args:
        summary: The backfill as in lists.
        runs: How many runs are in each state.
    """

    summary: BackfillSummary
    runs: Mapping[RunState, int]

    @property
    def processed(self) -> int:
        """Number of processed occurrences, of `summary.occurrences`."""
        return self.summary.created_count + self.summary.existing_count

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
    """Return a tenant's backfills, or those of one job, the newest first.

    Raises:
        InvalidInput: There is no such tenant.
        UnknownJob: There is no such job and never was one.
    """
    require_tenant(connection, tenant)
    if key is not None:
        read_job_position(connection, tenant, key)
    columns = {"tenant": tenant, "job_id": None if key is None else job_id(tenant, key), "limit": limit}
    with connection.cursor(row_factory=class_row(BackfillSummary), binary=True) as cursor:
        return cursor.execute(_LIST_BACKFILLS, columns).fetchall()


def backfill(connection: Conn, tenant: str, backfill_id: UUID) -> BackfillProgress:
    """Return one backfill, or raise UnknownBackfill."""
    columns = {"tenant": tenant, "backfill_id": backfill_id}
    with connection.cursor(row_factory=class_row(BackfillSummary), binary=True) as cursor:
        summary = cursor.execute(_SHOW_BACKFILL, columns).fetchone()
    if summary is None:
        raise UnknownBackfill(str(backfill_id))
    first, last = run_range(summary.job_id, summary.created_at)
    ids = {"job_id": summary.job_id, "first_run_id": first, "last_run_id": last}
    rows = connection.execute(_COUNT_BACKFILLED, ids, binary=True).fetchall()
    return BackfillProgress(summary, {RunState(str(state)): cast("int", count) for state, count in rows})
