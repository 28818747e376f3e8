"""Read a page of a tenant's runs.

An open run has the state of `job_runs`. A queued run that is not due yet is shown as `scheduled`. A list of one job is
in the order of nominal instants. Other lists are in the order of run_id. A run_id begins with the instant of a run by
timer or trigger, and with the time of the request of a backfill or retry.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Annotated, cast
from uuid import UUID

from psycopg.rows import class_row
from psycopg.types.json import Jsonb

from tidewheel.control.reads.job_position import read_job_position
from tidewheel.control.reads.json_form import one_of
from tidewheel.control.reads.tenants import require_tenant
from tidewheel.control.reads.waits import Wait, read_waits
from tidewheel.errors import UnknownRun, refuse
from tidewheel.ids import first_run_id, job_id
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements
from tidewheel.runs import DEAD_LETTERED, OPEN, SCHEDULED, Cause, Lane, RunState

_SQL = Statements("tidewheel.control")
_FIND_RUNS = _SQL["find_runs"]
_FIND_RUNS_OF_JOB = _SQL["find_runs_of_job"]
_FIND_OPEN_RUNS = _SQL["find_open_runs"]
_FIND_OPEN_RUNS_OF_JOB = _SQL["find_open_runs_of_job"]
_FIND_FAILED_RUNS = _SQL["find_failed_runs"]
_READ_RUNS = _SQL["read_runs"]

COUNTED = 10_000  # matches beyond this are not counted: no client pages through more
LOOKED_AT = 20_000  # rows of a page, matching or not: some tens of milliseconds
LOOKED_AT_WITH_LABELS = 1_000  # each needs its job, and its inputs in every partition
STATUSES = (*sorted(RunState), SCHEDULED)

_EARLIEST = datetime(1970, 1, 1, tzinfo=UTC)
_LATEST = datetime(9999, 12, 31, tzinfo=UTC)
_FIRST, _LAST = UUID(int=0), UUID(int=(1 << 128) - 1)
_MILLISECOND = timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True)
class RunSummary:
    """A run as lists show it.

    Args:
        run_id: Its id.
        key: Its job's key.
        job_id: Its job.
        job_version: The version that it was created from.
        status: Its state, or `scheduled`.
        cause: Its cause.
        queue: Its queue.
        lane: Its priority class.
        attempt: The last attempt begun; 0 before the first.
        scheduled_at: The nominal instant.
        created_at: When it was written.
        publish_at: When it may be claimed; None once it is terminal, and while it does not wait for its time.
        started_at: When the last attempt began.
        finished_at: When it ended.
        reason: The reason of a skip or a cancellation, or the timeout that fired.
        error_type: The error type of its last attempt, once it is terminal.
        why: The reason for which it waits, of an open run in a list or by itself.
    """

    run_id: UUID
    key: str
    job_id: UUID
    job_version: int
    status: Annotated[str, one_of(STATUSES)]
    cause: Annotated[str, one_of(Cause)]
    queue: str
    lane: Annotated[str, one_of(Lane)]
    attempt: int
    scheduled_at: datetime
    created_at: datetime
    publish_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    reason: str | None
    error_type: str | None
    why: Wait | None


@dataclass(frozen=True, slots=True)
class RunPage:
    """Runs, the newest first.

    Args:
        runs: The page.
        next_cursor: The run to continue after; None on the last page.
        total: How many all pages have, or a lower bound.
        at_least: True if there may be more than `total`.
    """

    runs: tuple[RunSummary, ...]
    next_cursor: UUID | None
    total: int
    at_least: bool


@dataclass(frozen=True, slots=True)
class RunRow:
    """The columns of a run's rows."""

    run_id: UUID
    key: str
    job_id: UUID
    job_version: int
    state: str
    ahead: bool
    cause: str
    queue: str
    lane: str
    attempt: int
    scheduled_at: datetime
    created_at: datetime
    publish_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    reason: str | None
    error_type: str | None


@dataclass(frozen=True, slots=True)
class RunFilter:
    """Filter of a list of runs, which match all of its fields.

    Args:
        status: Only runs in this state, or `scheduled`.
        key: Only this job's.
        labels: Only runs with all of these, among their own and their job's current labels.
        lane: Only runs of this lane.
        queue: Only runs of this queue.
        cause: Only runs of this cause.
        since: From this instant on.
        until: Up to this instant.
    """

    status: str | None = None
    key: str | None = None
    labels: Mapping[str, str] | None = None
    lane: str | None = None
    queue: str | None = None
    cause: str | None = None
    since: datetime | None = None
    until: datetime | None = None


def list_runs(
    connection: Conn, tenant: str, filters: RunFilter, *, after: UUID | None = None, limit: int = 50
) -> RunPage:
    """Return a page of a tenant's runs, the newest first.

    A page looks at a limited number of runs. With a filter that few match, it may be
    short, or empty, and have a cursor.

    Args:
        connection: Reads the rows.
        tenant: The tenant.
        filters: Only runs that match all of these.
        after: Begin after this run.
        limit: How many at most.

    Raises:
        InvalidInput: There is no such tenant or status, or the filter would have to read every run.
        UnknownJob: There is no such job and never was one.
        UnknownRun: There is no run `after`.
    """
    require_tenant(connection, tenant)
    _require_narrow(filters)
    if filters.key is not None:
        read_job_position(connection, tenant, filters.key)
    look = LOOKED_AT_WITH_LABELS if filters.labels else LOOKED_AT
    # Without a filter each row matches: no row is read beyond those that are counted, and those of the page.
    is_narrow = any((filters.status, filters.labels, filters.lane, filters.queue, filters.cause))
    counting = look if is_narrow else max(COUNTED, limit) + 1
    counted = found = _find(connection, tenant, filters, None, limit=limit + 1, look=counting)
    if after is not None:
        found = _find(connection, tenant, filters, after, limit=limit + 1, look=look if is_narrow else limit + 1)
    more = len(found.run_ids) > limit
    runs = read_runs(connection, found.run_ids[:limit])
    waits = read_waits(connection, [run.run_id for run in runs if run.finished_at is None])
    return RunPage(
        runs=tuple(replace(run, why=waits.get(run.run_id)) for run in runs),
        next_cursor=found.run_ids[limit - 1] if more else found.goes_on_after,
        total=min(counted.matching, COUNTED),
        at_least=counted.matching > COUNTED or counted.goes_on_after is not None,
    )


def _require_narrow(filters: RunFilter) -> None:
    for path, allowed in (("status", STATUSES), ("lane", tuple(Lane)), ("cause", tuple(Cause))):
        value = getattr(filters, path)
        if value is not None and value not in allowed:
            refuse(path, f"{value!r} is not valid", f"write one of {', '.join(allowed)}")
    if filters.labels and filters.key is None and filters.since is None:
        refuse("labels", "a filter by labels alone would read all runs", "name the job, or the earliest time")


@dataclass(frozen=True, slots=True)
class _Found:
    """Result of a search.

    Args:
        run_ids: The first matching ids.
        matching: How many of the looked at match.
        goes_on_after: The last run looked at, if there may be more.
    """

    run_ids: Sequence[UUID]
    matching: int
    goes_on_after: UUID | None


def _find(connection: Conn, tenant: str, filters: RunFilter, after: UUID | None, *, limit: int, look: int) -> _Found:
    """Look for matching runs after one of them, among `look` rows of the index that serves the filter."""
    since, until = filters.since or _EARLIEST, filters.until or _LATEST
    columns: dict[str, object] = {
        "tenant": tenant, "labels": Jsonb(dict(filters.labels)) if filters.labels else None, "limit": limit,
        "queue": filters.queue, "lane": filters.lane, "cause": filters.cause, "look": look, "ahead": None,
        "states": None if filters.status is None else [filters.status], "before_id": after or _LAST,
    }  # fmt: skip
    if filters.status in {SCHEDULED, RunState.QUEUED}:
        columns |= {"states": [RunState.QUEUED], "ahead": filters.status == SCHEDULED}
    is_open = filters.status == SCHEDULED or (filters.status is not None and RunState(filters.status) in OPEN)
    if filters.key is not None:
        before_at = _instant_of(connection, after) if after else _LATEST
        columns |= {"job_id": job_id(tenant, filters.key), "since": since, "until": until, "before_at": before_at}
        statement = _FIND_OPEN_RUNS_OF_JOB if is_open else _FIND_RUNS_OF_JOB
    else:
        columns["first_id"] = first_run_id(since)
        if filters.until is not None:
            columns["before_id"] = min(after or _LAST, first_run_id(until + _MILLISECOND))
        is_failed = filters.status is not None and filters.status in DEAD_LETTERED
        statement = _FIND_OPEN_RUNS if is_open else _FIND_FAILED_RUNS if is_failed else _FIND_RUNS
    row = connection.execute(statement, columns, binary=True).fetchone()
    run_ids, matching, looked_at, last_seen = cast("tuple[list[UUID], int, int, UUID | None]", row)
    return _Found(run_ids, matching, last_seen if looked_at >= look else None)


def _instant_of(connection: Conn, run_id: UUID) -> datetime:
    found = read_runs(connection, [run_id])
    if not found:
        raise UnknownRun(str(run_id))
    return found[0].scheduled_at


def read_runs(connection: Conn, run_ids: Sequence[UUID]) -> list[RunSummary]:
    """Return the runs of these ids that are stored, in their order."""
    with connection.cursor(row_factory=class_row(RunRow), binary=True) as cursor:
        found = {row.run_id: row for row in cursor.execute(_READ_RUNS, {"run_ids": list(run_ids)})}
    return [summary_of(found[run_id]) for run_id in run_ids if run_id in found]


def summary_of(row: RunRow) -> RunSummary:
    """Return a run as lists show it."""
    return RunSummary(
        run_id=row.run_id,
        key=row.key,
        job_id=row.job_id,
        job_version=row.job_version,
        status=SCHEDULED if row.ahead and row.state == RunState.QUEUED else row.state,
        cause=row.cause,
        queue=row.queue,
        lane=row.lane,
        attempt=row.attempt,
        scheduled_at=row.scheduled_at,
        created_at=row.created_at,
        publish_at=row.publish_at,
        started_at=row.started_at,
        finished_at=row.finished_at,
        reason=row.reason,
        error_type=row.error_type,
        why=None,
    )
