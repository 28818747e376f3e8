"""Read lists of runs. `run list` imports no client and nothing of intake.

An open run has the state of `job_runs`. A queued run that is not due yet is shown as `scheduled`.

Runs whose time has come are first, latest first. Runs whose time is ahead follow, in the same order. In a list of
one job that time is the nominal instant. In other lists it is that of the run_id: the instant of a run by timer or
trigger, the time of the request of a backfill or retry. A cursor has the instant that separates the two, so each run is
on one page. From the oldest run on, that time ascends to the last one that is ahead.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import NamedTuple, Unpack, cast
from uuid import UUID

from psycopg.rows import class_row
from psycopg.types.json import Jsonb

from tidewheel.api_keys import Scope
from tidewheel.control.reads.job_position import read_job_position
from tidewheel.control.reads.waits import read_waits
from tidewheel.errors import refuse
from tidewheel.ids import first_run_id, instant_of, job_id, order_id, read_uuid
from tidewheel.jobs.validation import shown
from tidewheel.jobs.values import format_timestamp, parse_timestamp
from tidewheel.nouns.operation import Noun, Rows, operation
from tidewheel.nouns.runs.model import (
    STATUSES,
    BinnedRuns,
    CountedRuns,
    Group,
    PageFilter,
    RunFilter,
    RunPage,
    RunSummary,
)
from tidewheel.nouns.tenants.reads import require_tenant
from tidewheel.postgres.database_clock import read_now
from tidewheel.postgres.pg_binary import uuids
from tidewheel.postgres.session import Conn, list_ids
from tidewheel.postgres.statements import Statements
from tidewheel.runs import DEAD_LETTERED, FINAL, IN_FLIGHT, OPEN, OWNED, SCHEDULED, Move, RunState, sources

_SQL = Statements("tidewheel.control")
_FIND_RUNS = _SQL["find_runs"], _SQL["find_oldest_runs"]
_FIND_RUNS_OF_JOB = _SQL["find_runs_of_job"], _SQL["find_oldest_runs_of_job"]
_FIND_OPEN_RUNS = _SQL["find_open_runs"], _SQL["find_oldest_open_runs"]
_FIND_OPEN_RUNS_OF_JOB = _SQL["find_open_runs_of_job"], _SQL["find_oldest_open_runs_of_job"]
_FIND_FAILED_RUNS = _SQL["find_failed_runs"], _SQL["find_oldest_failed_runs"]

COUNTED = 10_000  # matches beyond this are not counted: no client pages through more
LOOKED_AT = 20_000  # rows of a page, matching or not: some tens of milliseconds
_BINNED, _LEAST_OF_BIN = 20_000, 3  # runs of all jobs of a grid, some tens of milliseconds; of a bin of a sample
_LOOKED_AT_FOR_STATES = 5_000  # open, failed and ended runs each
LOOKED_AT_WITH_LABELS = 1_000  # each needs its job, and its inputs in every partition
_GROUPS: Mapping[Group, Sequence[str]] = {
    "due": sources(Move.CLAIM), "held": [RunState.BUFFERED], "running_or_cancelling": OWNED,
    "failed_or_timed_out": sorted(DEAD_LETTERED),
}  # fmt: skip

_EARLIEST = datetime(1970, 1, 1, tzinfo=UTC)
_LATEST = datetime(9999, 12, 31, tzinfo=UTC)
_FIRST, _LAST = UUID(int=0), UUID(int=(1 << 128) - 1)
_LABELS = ("labels", "run_labels")
_MILLISECOND, _MICROSECOND = timedelta(milliseconds=1), timedelta(microseconds=1)


def list_runs(
    connection: Conn,
    tenant: str,
    filters: PageFilter,
    *,
    after: str | None = None,
    limit: int = 50,
    oldest_first: bool = False,
    counts: bool = True,
) -> RunPage:
    """Return a page of a tenant's runs: those whose time has come, latest first, and then those ahead.

    A page looks at a limited number of runs. With a filter that few match, it may be
    short, or empty, and have a cursor. A cursor suits the order that it comes from.

    Args:
        counts: False for a page whose total is not read: then it is that of the runs that were looked at.
    """
    require_tenant(connection, tenant)
    _require_narrow(filters)
    if (key := filters.get("key")) is not None:
        read_job_position(connection, tenant, key)
    look = LOOKED_AT_WITH_LABELS if _has_labels(filters) else LOOKED_AT
    # Without a filter each row matches: no row is read beyond those that are counted, and those of the page.
    is_narrowed = any(value for name, value in filters.items() if name not in {"key", "since", "until"})
    paging = look if is_narrowed else limit + 1
    counting = paging if is_narrowed or not counts else max(COUNTED, limit) + 1
    start = _start(read_now(connection)) if after is None else _read_place(after)
    start = start._replace(oldest_first=oldest_first)
    find = partial(_find, connection, tenant, filters, limit=limit + 1)
    counted = found = find(start._replace(run_id=None) if counts else start, look=counting)
    if counts and start.run_id is not None:
        found = find(start, look=paging)
    more = len(found.run_ids) > limit
    last = found.run_ids[limit - 1] if more else found.goes_on_after
    return RunPage(
        runs=read_runs_and_waits(connection, found.run_ids[:limit]),
        next_cursor=None if last is None else _place_after(connection, start.ahead, last),
        total=min(counted.matching, COUNTED),
        at_least=counted.matching > COUNTED or counted.goes_on_after is not None,
    )


def count_states(connection: Conn, tenant: str, filters: PageFilter) -> Mapping[str, CountedRuns]:
    """Return the number of runs in each state under the other filters, without states that have none.

    It looks at the newest open, failed and ended runs: a state of which there may be more has a lower bound.
    """
    narrowed: PageFilter = {**filters, "status": None, "group": None}
    span = _Span(*_range(filters))
    look = LOOKED_AT_WITH_LABELS if _has_labels(filters) else _LOOKED_AT_FOR_STATES
    columns = {**_columns(tenant, narrowed, span), "look": look}
    is_by_job, is_ended = filters.get("key") is not None, filters.get("ended_since") or filters.get("ended_until")
    statement = _SQL["count_states_of_job"] if is_by_job else _SQL["count_states"]
    rows = cast("list[tuple[int, str, int, int]]", connection.execute(statement, columns, binary=True).fetchall())
    counts = {(source, state): matching for source, state, matching, _ in rows}
    has_copies = not is_by_job and filters.get("concurrency_key") is None  # the rows of failed runs have no key
    found: dict[str, CountedRuns] = {}
    for state in STATUSES:
        source = 0 if state == SCHEDULED or state in OPEN else 1 if has_copies and state in DEAD_LETTERED else 2
        if (source == 0 and is_ended) or (source != 0 and filters.get("ordering_key") is not None):
            continue
        runs = counts.get((source, state), 0)
        at_least = sum(seen for of, _, _, seen in rows if of == source) >= look
        if runs or at_least:
            found[state] = CountedRuns(runs, at_least)
    return found


def count_queued(connection: Conn, tenant: str, key: str) -> CountedRuns:
    """Return how many runs of a job are queued."""
    return count_states(connection, tenant, {"key": key}).get(RunState.QUEUED, CountedRuns(0, at_least=False))


def longest_attempts(connection: Conn, tenant: str, since: datetime, *, limit: int) -> Sequence[RunSummary]:
    """Return the runs whose open attempts began up to an instant, the longest first.

    No run begins before the instant of its id, so no later id is looked at; nor are more than 20,000 open runs.
    """
    columns: dict[str, object] = {
        "tenant": tenant, "since": since, "before_id": first_run_id(since + _MILLISECOND), "states": IN_FLIGHT,
        "look": LOOKED_AT, "limit": limit,
    }  # fmt: skip
    return read_runs(connection, list_ids(connection, _SQL["find_longest_attempts"], columns))


def find_short_id(connection: Conn, tenant: str, begin: str, end: str) -> tuple[Sequence[RunSummary], bool]:
    """Return the runs of a tenant whose ids have this begin and end, and True if some were not looked at.

    Args:
        begin: The first digits, without hyphens; eight are a minute, by the upper 32 of the 48 bits of milliseconds.
    """
    since, until = (instant_of(min(UUID(begin[:32].ljust(32, digit)), first_run_id(_LATEST))) for digit in "0f")
    start = _start(read_now(connection))
    run_ids: dict[UUID, None] = {}
    is_cut = False
    every: PageFilter = {"since": since, "until": until}
    failed: PageFilter = {**every, "group": "failed_or_timed_out"}  # which outlast the retention of others
    for filters in (every, failed):
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
    oldest_first: bool = False


def _start(now: datetime) -> _Place:
    return _Place(now.replace(microsecond=now.microsecond // 1000 * 1000) + _MILLISECOND, _LATEST, None)


def _place_after(connection: Conn, ahead: datetime, last: UUID) -> str:
    [run] = read_runs(connection, [last])
    return f"{format_timestamp(ahead)}/{format_timestamp(run.scheduled_at)}/{last}"


def _read_place(text: str) -> _Place:
    try:
        ahead, at, run_id = text.split("/")
        place = _Place(parse_timestamp(ahead), parse_timestamp(at), read_uuid(run_id))
    except ValueError:
        place = _Place(_EARLIEST, _EARLIEST, None)
    if not (_EARLIEST < place.ahead <= _LATEST and _EARLIEST <= place.at <= _LATEST):
        refuse("after", f"{shown(text)} is not a cursor of this list", "copy it from a page, or leave it out")
    return place


def _require_narrow(filters: PageFilter) -> None:
    states = _states_of(filters)
    if filters.get("ordering_key") is not None and states is not None and FINAL.issuperset(states):
        refuse(
            "ordering_key", "runs that have ended cannot be filtered by it", "leave it out, or choose an open status"
        )
    if (filters.get("ended_since") or filters.get("ended_until")) and _is_open(filters):
        refuse("ended_since", "open runs have no end", "leave it out, or choose a final status")
    for path in _LABELS:
        if filters.get(path) and filters.get("key") is None and filters.get("since") is None:
            refuse(path, "labels alone would read all runs", "add the job or the earliest time")


@dataclass(frozen=True, slots=True)
class _Found:
    """Result of a search: how many match, and the last run looked at if there may be more."""

    run_ids: Sequence[UUID]
    matching: int
    goes_on_after: UUID | None


def _find(connection: Conn, tenant: str, filters: PageFilter, place: _Place, *, limit: int, look: int) -> _Found:
    """Look for matching runs after a place, among `look` rows of the index that serves the filter."""
    run_ids: list[UUID] = []
    matching = 0
    for span in _spans_after(place, *_range(filters), filters):
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
    """A span of time, and the run that ends it: its instant, for a list of one job, and its id."""

    since: datetime
    until: datetime
    before_at: datetime = _LATEST
    before_id: UUID = _LAST
    first_id: UUID = _FIRST
    oldest_first: bool = False


def _spans_after(place: _Place, since: datetime, until: datetime, filters: PageFilter) -> Sequence[_Span]:
    """Return the spans of a list from a place on, in its order."""
    is_of_job = filters.get("key") is not None
    if place.oldest_first:
        if place.run_id is None:
            return [_Span(since, until, oldest_first=True)]
        first_id = UUID(int=min(place.run_id.int + 1, _LAST.int))
        return [_Span(max(since, place.at) if is_of_job else since, until, first_id=first_id, oldest_first=True)]
    before_at, before_id = _LATEST if place.run_id is None else place.at, place.run_id or _LAST
    if filters.get("status") == SCHEDULED:
        return [_Span(since, until, before_at, before_id)]
    is_ahead = before_at >= place.ahead if is_of_job else before_id >= first_run_id(place.ahead)
    ahead = max(since, place.ahead)
    if place.run_id is not None and is_ahead:
        return [_Span(ahead, until, before_at, before_id)]
    return [_Span(since, min(until, place.ahead - _MICROSECOND), before_at, before_id), _Span(ahead, until)]


class _FoundRow(NamedTuple):
    run_ids: Sequence[UUID]
    matching: int
    looked_at: int
    last_seen: UUID | None


def _find_in(connection: Conn, tenant: str, filters: PageFilter, span: _Span, *, limit: int, look: int) -> _FoundRow:
    states, is_open = _states_of(filters), _is_open(filters)
    if filters.get("key") is not None:
        statements = _FIND_OPEN_RUNS_OF_JOB if is_open else _FIND_RUNS_OF_JOB
    else:
        # The rows of failed runs have no key.
        is_failed = states is not None and DEAD_LETTERED.issuperset(states) and filters.get("concurrency_key") is None
        statements = _FIND_OPEN_RUNS if is_open else _FIND_FAILED_RUNS if is_failed else _FIND_RUNS
    columns = {**_columns(tenant, filters, span), "limit": limit, "look": look}
    row = connection.execute(statements[span.oldest_first], columns, binary=True).fetchone()
    return _FoundRow(*cast("tuple[list[UUID], int, int, UUID | None]", row))


def _columns(tenant: str, filters: PageFilter, span: _Span) -> dict[str, object]:
    key, order, status = filters.get("key"), filters.get("ordering_key"), filters.get("status")
    columns: dict[str, object] = {
        **dict.fromkeys(PageFilter.__annotations__), **filters, "since": span.since, "until": span.until,
        "tenant": tenant, "ahead": None, "states": _states_of(filters), "before_id": span.before_id,
        "first_id": span.first_id, "going_on": filters.get("group") in {"due", "held"},
        "order_id": None if order is None else order_id(tenant, order),
    }  # fmt: skip
    columns |= {name: Jsonb(found) if (found := filters.get(name)) else None for name in _LABELS}
    if filters.get("group") == "due" or status in {SCHEDULED, RunState.QUEUED}:
        columns["ahead"] = status == SCHEDULED
    if key is not None:
        return columns | {"job_id": job_id(tenant, key), "before_at": span.before_at}
    columns["first_id"] = max(span.first_id, first_run_id(span.since))
    if span.until != _LATEST:
        columns["before_id"] = min(span.before_id, first_run_id(span.until + _MILLISECOND))
    return columns


def _range(filters: PageFilter) -> tuple[datetime, datetime]:
    """Return the time of a filter: no run_id has an earlier instant, or a later one."""
    return max(filters.get("since") or _EARLIEST, _EARLIEST), min(filters.get("until") or _LATEST, _LATEST)


def _has_labels(filters: PageFilter) -> bool:
    return any(filters.get(name) for name in _LABELS)


def _states_of(filters: PageFilter) -> list[str] | None:
    """Return the states that a filter names; None for all."""
    if (group := filters.get("group")) is not None:
        return list(_GROUPS[group])
    if (status := filters.get("status")) is None:
        return None
    return [RunState.QUEUED if status == SCHEDULED else status]


def _is_open(filters: PageFilter) -> bool:
    states = _states_of(filters)
    return filters.get("ordering_key") is not None or (states is not None and OPEN.issuperset(states))


def read_runs(connection: Conn, run_ids: Sequence[UUID]) -> list[RunSummary]:
    """Return the runs of these ids that are stored, in their order."""
    with connection.cursor(row_factory=class_row(RunSummary), binary=True) as cursor:
        found = {run.run_id: run for run in cursor.execute(_SQL["read_runs"], {"run_ids": list(run_ids)})}
    return [found[run_id] for run_id in run_ids if run_id in found]


def read_runs_and_waits(connection: Conn, run_ids: Sequence[UUID]) -> tuple[RunSummary, ...]:
    """Return the same, each open run with the reason for which it waits."""
    runs = read_runs(connection, run_ids)
    waits = read_waits(connection, [run.run_id for run in runs if run.finished_at is None])
    return tuple(replace(run, why=waits.get(run.run_id)) for run in runs)


def count_runs_of_jobs(
    connection: Conn, job_ids: Sequence[UUID], edges: Sequence[datetime]
) -> Mapping[UUID, BinnedRuns]:
    """Return the runs of each job by bin. Ascending edges of nominal instants begin and end the bins.

    The jobs share `_BINNED` runs. Of a job with more than its share, the newest runs of each bin are a sample.
    """
    bins = len(edges) - 1
    look = max(_BINNED // max(len(job_ids), 1), bins)
    found = _binned(connection, job_ids, edges, [edges[0], edges[-1]], look + 1)
    busy = [each for each in job_ids if sum(runs.total() for runs in found[each]) > look]
    if busy:
        found |= _binned(connection, busy, edges, edges, max(_BINNED // (len(busy) * bins), _LEAST_OF_BIN))
    return {each: BinnedRuns(found[each], each in busy) for each in job_ids}


def _binned(
    connection: Conn, job_ids: Sequence[UUID], edges: Sequence[datetime], spans: Sequence[datetime], look: int
) -> dict[UUID, list[Counter[str]]]:
    """Return the newest `look` runs of each job in each span between ascending instants, by bin."""
    columns = {
        "job_ids": uuids(job_ids), "edges": list(edges), "since": list(spans[:-1]), "until": list(spans[1:]),
        "ended_since": edges[0] - timedelta(days=1), "look": look,
    }  # fmt: skip
    found: dict[UUID, list[Counter[str]]] = {each: [Counter() for _ in edges[1:]] for each in job_ids}
    rows = connection.execute(_SQL["count_runs_of_jobs"], columns, binary=True).fetchall()
    for job, place, state, runs in cast("list[tuple[UUID, int, str, int]]", rows):
        found[job][place][state] = runs
    return found


class RunList(Noun):
    """Lists of runs."""

    @operation("GET /api/v1/runs", "list_runs", scope=Scope.READ)
    def list(self, *, after: str | None = None, limit: Rows = 50, **filters: Unpack[RunFilter]) -> RunPage:
        """List runs, latest first; runs scheduled for the future come last.

        The list is sorted by the column scheduled; backfills and retries are sorted by the time of their request.
        """
        return self._read(list_runs, cast("PageFilter", filters), after=after, limit=limit)
