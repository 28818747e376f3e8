"""Read a page of a tenant's runs.

An open run has the state of `job_runs`. A queued run that is not due yet is shown as `scheduled`.

Runs whose time has come are first, the latest first. Runs whose time is ahead follow, in the same order. In a list of
one job that time is the nominal instant. In other lists it is that of the run_id: the instant of a run by timer or
trigger, the time of the request of a backfill or retry. A cursor has the instant that separates the two, so each run is
on one page.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Annotated, NamedTuple, cast
from uuid import UUID

from psycopg.rows import class_row
from psycopg.types.json import Jsonb

from tidewheel.control.reads.job_position import read_job_position
from tidewheel.control.reads.json_form import one_of
from tidewheel.control.reads.waits import Wait, read_waits
from tidewheel.errors import refuse
from tidewheel.ids import first_run_id, instant_of, job_id, order_id
from tidewheel.jobs.validation import shown
from tidewheel.jobs.values import format_timestamp, parse_timestamp
from tidewheel.nouns.tenants.reads import require_tenant
from tidewheel.postgres.database_clock import read_now
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements
from tidewheel.runs import DEAD_LETTERED, FINAL, IN_FLIGHT, OPEN, OWNED, SCHEDULED, Cause, Lane, Move, RunState, sources

_SQL = Statements("tidewheel.control")
_FIND_RUNS = _SQL["find_runs"]
_FIND_RUNS_OF_JOB = _SQL["find_runs_of_job"]
_FIND_OPEN_RUNS = _SQL["find_open_runs"]
_FIND_OPEN_RUNS_OF_JOB = _SQL["find_open_runs_of_job"]
_FIND_LONGEST_ATTEMPTS = _SQL["find_longest_attempts"]
_FIND_FAILED_RUNS = _SQL["find_failed_runs"]
_READ_RUNS = _SQL["read_runs"]

COUNTED = 10_000  # matches beyond this are not counted: no client pages through more
LOOKED_AT = 20_000  # rows of a page, matching or not: some tens of milliseconds
LOOKED_AT_WITH_LABELS = 1_000  # each needs its job, and its inputs in every partition
STATUSES = (*sorted(RunState), SCHEDULED)
DUE = "due"
GROUPS: Mapping[str, Sequence[str]] = {
    DUE: sources(Move.CLAIM), "running_or_cancelling": OWNED, "failed_or_timed_out": sorted(DEAD_LETTERED),
}  # fmt: skip
"""States that one figure counts together. `due` leaves out the runs whose time is ahead."""

_EARLIEST = datetime(1970, 1, 1, tzinfo=UTC)
_LATEST = datetime(9999, 12, 31, tzinfo=UTC)
_LAST = UUID(int=(1 << 128) - 1)
_MILLISECOND, _MICROSECOND = timedelta(milliseconds=1), timedelta(microseconds=1)


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
        concurrency_key: The key of which it needs a place to start.
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
    concurrency_key: str | None
    why: Wait | None


@dataclass(frozen=True, slots=True)
class RunPage:
    """Runs whose time has come, the latest first, and then those whose time is ahead.

    Args:
        next_cursor: The place to continue after; None on the last page.
        total: How many all pages have, or a lower bound.
        at_least: True if there may be more than `total`.
    """

    runs: tuple[RunSummary, ...]
    next_cursor: str | None
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
    concurrency_key: str | None


@dataclass(frozen=True, slots=True)
class RunFilter:
    """Filter of a list of runs, which match all of its fields.

    Args:
        status: Only runs in this state, or `scheduled`.
        labels: Only runs of jobs that have all of these labels now, as for cancellations and freezes.
        run_labels: Only runs with all of these labels, which are their job's overridden by their trigger's.
        ordering_key: Only open runs with this key; a run that has ended is in no order.
        ended_since: Only runs that ended at this instant or later.
        ended_until: Only runs that ended before this instant.
        group: Only runs in the states of this one of `GROUPS`.
    """

    status: str | None = None
    key: str | None = None
    labels: Mapping[str, str] | None = None
    run_labels: Mapping[str, str] | None = None
    lane: str | None = None
    queue: str | None = None
    cause: str | None = None
    concurrency_key: str | None = None
    ordering_key: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    ended_since: datetime | None = None
    ended_until: datetime | None = None
    group: str | None = None


def list_runs(
    connection: Conn, tenant: str, filters: RunFilter, *, after: str | None = None, limit: int = 50
) -> RunPage:
    """Return a page of a tenant's runs: those whose time has come, the latest first, and then those ahead.

    A page looks at a limited number of runs. With a filter that few match, it may be
    short, or empty, and have a cursor.
    """
    require_tenant(connection, tenant)
    _require_narrow(filters)
    if filters.key is not None:
        read_job_position(connection, tenant, filters.key)
    look = LOOKED_AT_WITH_LABELS if filters.labels or filters.run_labels else LOOKED_AT
    # Without a filter each row matches: no row is read beyond those that are counted, and those of the page.
    narrowed_by = (
        filters.status, filters.labels, filters.run_labels, filters.lane, filters.queue, filters.cause,
        filters.concurrency_key, filters.ordering_key, filters.ended_since, filters.ended_until, filters.group,
    )  # fmt: skip
    counting = look if any(narrowed_by) else max(COUNTED, limit) + 1
    start = _start(read_now(connection)) if after is None else _read_place(after)
    counted = found = _find(connection, tenant, filters, start._replace(run_id=None), limit=limit + 1, look=counting)
    if start.run_id is not None:
        found = _find(connection, tenant, filters, start, limit=limit + 1, look=look if any(narrowed_by) else limit + 1)
    more = len(found.run_ids) > limit
    last = found.run_ids[limit - 1] if more else found.goes_on_after
    return RunPage(
        runs=read_runs_and_waits(connection, found.run_ids[:limit]),
        next_cursor=None if last is None else _place_after(connection, start.ahead, last),
        total=min(counted.matching, COUNTED),
        at_least=counted.matching > COUNTED or counted.goes_on_after is not None,
    )


def longest_attempts(connection: Conn, tenant: str, since: datetime, *, limit: int) -> Sequence[RunSummary]:
    """Return the runs whose open attempts began up to an instant, the longest first.

    No run begins before the instant of its id, so no later id is looked at; nor are more than 20,000 open runs.
    """
    columns: dict[str, object] = {
        "tenant": tenant, "since": since, "before_id": first_run_id(since + _MILLISECOND), "states": IN_FLIGHT,
        "look": LOOKED_AT, "limit": limit,
    }  # fmt: skip
    found = connection.execute(_FIND_LONGEST_ATTEMPTS, columns, binary=True).fetchall()
    return read_runs(connection, [run_id for (run_id,) in cast("list[tuple[UUID]]", found)])


def find_short_id(connection: Conn, tenant: str, begin: str, end: str) -> tuple[Sequence[RunSummary], bool]:
    """Return the runs of a tenant whose ids have this begin and end, and True if some were not looked at.

    Args:
        begin: The first digits, without hyphens; eight are a minute, by the upper 32 of the 48 bits of milliseconds.
    """
    since, until = (instant_of(min(UUID(begin.ljust(32, digit)), first_run_id(_LATEST))) for digit in "0f")
    start = _start(read_now(connection))
    run_ids: dict[UUID, None] = {}
    is_cut = False
    for group in (None, "failed_or_timed_out"):  # those of failed runs outlast the retention of others
        filters = RunFilter(group=group, since=since, until=until)
        found = _find(connection, tenant, filters, start, limit=LOOKED_AT, look=LOOKED_AT)
        run_ids |= dict.fromkeys(
            each for each in found.run_ids if each.hex.startswith(begin) and each.hex.endswith(end)
        )
        is_cut = is_cut or found.goes_on_after is not None
    return read_runs(connection, list(run_ids)), is_cut


class _Place(NamedTuple):
    """A place in a list.

    Args:
        ahead: The first instant that was ahead when the list began, in whole milliseconds as run_ids have them.
        at: The instant of the run before it. An edit may take back that run while the list is read.
        run_id: The run before it; None at the start.
    """

    ahead: datetime
    at: datetime
    run_id: UUID | None


def _start(now: datetime) -> _Place:
    return _Place(now.replace(microsecond=now.microsecond // 1000 * 1000) + _MILLISECOND, _LATEST, None)


def _place_after(connection: Conn, ahead: datetime, last: UUID) -> str:
    [run] = read_runs(connection, [last])
    return f"{format_timestamp(ahead)}/{format_timestamp(run.scheduled_at)}/{last}"


def _read_place(text: str) -> _Place:
    try:
        ahead, at, run_id = text.split("/")
        place = _Place(parse_timestamp(ahead), parse_timestamp(at), UUID(run_id))
    except ValueError:
        place = _Place(_EARLIEST, _EARLIEST, None)
    if not (_EARLIEST < place.ahead <= _LATEST and _EARLIEST <= place.at <= _LATEST):
        refuse("after", f"{shown(text)} is no place of this list", "copy it from the page before, or leave it out")
    return place


def _require_narrow(filters: RunFilter) -> None:
    for path, allowed in (("status", STATUSES), ("lane", tuple(Lane)), ("cause", tuple(Cause))):
        value = getattr(filters, path)
        if value is not None and value not in allowed:
            refuse(path, f"{value!r} is not valid", f"write one of {', '.join(allowed)}")
    states = _states_of(filters)
    if filters.ordering_key is not None and states is not None and FINAL.issuperset(states):
        refuse("ordering_key", "a run that has ended is in no order", "leave it out, or name a status of open runs")
    if (filters.ended_since or filters.ended_until) and _is_open(filters):
        refuse("ended_since", "an open run has no end", "leave it out, or name a status of runs that have ended")
    for path in ("labels", "run_labels"):
        if getattr(filters, path) and filters.key is None and filters.since is None:
            refuse(path, "a filter by labels alone would read all runs", "name the job, or the earliest time")


@dataclass(frozen=True, slots=True)
class _Found:
    """Result of a search: how many match, and the last run looked at if there may be more."""

    run_ids: Sequence[UUID]
    matching: int
    goes_on_after: UUID | None


def _find(connection: Conn, tenant: str, filters: RunFilter, place: _Place, *, limit: int, look: int) -> _Found:
    """Look for matching runs after a place, among `look` rows of the index that serves the filter."""
    before_at, before_id = _LATEST if place.run_id is None else place.at, place.run_id or _LAST
    is_ahead = before_id >= first_run_id(place.ahead) if filters.key is None else before_at >= place.ahead
    since = max(filters.since or _EARLIEST, _EARLIEST)  # no run_id has an earlier instant, or a later one
    until = min(filters.until or _LATEST, _LATEST)
    if filters.status == SCHEDULED:
        spans = [_Span(since, until, before_at, before_id)]
    elif place.run_id is not None and is_ahead:
        spans = [_Span(max(since, place.ahead), until, before_at, before_id)]
    else:
        spans = [
            _Span(since, min(until, place.ahead - _MICROSECOND), before_at, before_id),
            _Span(max(since, place.ahead), until, _LATEST, _LAST),
        ]
    run_ids: list[UUID] = []
    matching = 0
    for span in spans:
        if span.since > span.until:
            continue
        found = _find_in(connection, tenant, filters, span, limit=limit - len(run_ids), look=look)
        run_ids += found.run_ids
        matching += found.matching
        look -= found.looked_at
        if look <= 0:
            return _Found(run_ids, matching, found.last_seen)
    return _Found(run_ids, matching, None)


class _Span(NamedTuple):
    """A span of time, and the run before it: its instant, for a list of one job, and its id."""

    since: datetime
    until: datetime
    before_at: datetime
    before_id: UUID


class _FoundRow(NamedTuple):
    """The row of a search, with the last run looked at."""

    run_ids: Sequence[UUID]
    matching: int
    looked_at: int
    last_seen: UUID | None


def _find_in(connection: Conn, tenant: str, filters: RunFilter, span: _Span, *, limit: int, look: int) -> _FoundRow:
    """Look for matching runs of a span."""
    states = _states_of(filters)
    columns: dict[str, object] = {
        "tenant": tenant, "labels": Jsonb(dict(filters.labels)) if filters.labels else None,
        "run_labels": Jsonb(dict(filters.run_labels)) if filters.run_labels else None, "limit": limit,
        "queue": filters.queue, "lane": filters.lane, "cause": filters.cause,
        "concurrency_key": filters.concurrency_key, "look": look, "ahead": None,
        "order_id": None if filters.ordering_key is None else order_id(tenant, filters.ordering_key),
        "states": states, "before_id": span.before_id, "ended_since": filters.ended_since,
        "ended_until": filters.ended_until,
    }  # fmt: skip
    if filters.group == DUE or filters.status in {SCHEDULED, RunState.QUEUED}:
        columns["ahead"] = filters.status == SCHEDULED
    is_open = _is_open(filters)
    if filters.key is not None:
        columns |= {"job_id": job_id(tenant, filters.key), "since": span.since, "until": span.until}
        columns["before_at"] = span.before_at
        statement = _FIND_OPEN_RUNS_OF_JOB if is_open else _FIND_RUNS_OF_JOB
    else:
        columns["first_id"] = first_run_id(span.since)
        if span.until != _LATEST:
            columns["before_id"] = min(span.before_id, first_run_id(span.until + _MILLISECOND))
        # The rows of failed runs have no key.
        is_failed = states is not None and DEAD_LETTERED.issuperset(states) and filters.concurrency_key is None
        statement = _FIND_OPEN_RUNS if is_open else _FIND_FAILED_RUNS if is_failed else _FIND_RUNS
    row = connection.execute(statement, columns, binary=True).fetchone()
    return _FoundRow(*cast("tuple[list[UUID], int, int, UUID | None]", row))


def _states_of(filters: RunFilter) -> list[str] | None:
    """Return the states that a filter names; None for all."""
    if filters.group is not None:
        return list(GROUPS[filters.group])
    if filters.status is None:
        return None
    return [RunState.QUEUED if filters.status == SCHEDULED else filters.status]


def _is_open(filters: RunFilter) -> bool:
    """Return True if only open runs match."""
    states = _states_of(filters)
    return filters.ordering_key is not None or (states is not None and OPEN.issuperset(states))


def read_runs(connection: Conn, run_ids: Sequence[UUID]) -> list[RunSummary]:
    """Return the runs of these ids that are stored, in their order."""
    with connection.cursor(row_factory=class_row(RunRow), binary=True) as cursor:
        found = {row.run_id: row for row in cursor.execute(_READ_RUNS, {"run_ids": list(run_ids)})}
    return [summary_of(found[run_id]) for run_id in run_ids if run_id in found]


def read_runs_and_waits(connection: Conn, run_ids: Sequence[UUID]) -> tuple[RunSummary, ...]:
    """Return the same, each open run with the reason for which it waits."""
    runs = read_runs(connection, run_ids)
    waits = read_waits(connection, [run.run_id for run in runs if run.finished_at is None])
    return tuple(replace(run, why=waits.get(run.run_id)) for run in runs)


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
        concurrency_key=row.concurrency_key,
        why=None,
    )
