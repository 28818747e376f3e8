"""Lists of runs: alike, slowest, and the occurrences of one job with its skips."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar, Literal, cast
from uuid import UUID

from starlette.requests import Request

from tidewheel.control.api.authorization import Caller
from tidewheel.control.api.request_input import Cursors, PageQuery, TenantQuery
from tidewheel.control.client.connection import Connection
from tidewheel.control.console.axis import Window
from tidewheel.control.console.many_runs import matching_button, matching_filters
from tidewheel.control.console.urls import Urls
from tidewheel.control.console.view import (
    Failed,
    View,
    filters_of,
    in_snapshot,
    list_view,
    page_now,
    part,
    read_filters,
)
from tidewheel.control.console.words import between, family_of, reason_words
from tidewheel.control.explain.explain import Unfired
from tidewheel.control.explain.job_timeline import JobTimeline, TimelineRun
from tidewheel.control.reads.workload import slowest_runs
from tidewheel.doors.address import after_of, next_cursor, query_of
from tidewheel.ids import job_id
from tidewheel.jobs.values import Instant, format_timestamp
from tidewheel.nouns.freezes.model import FreezeChange
from tidewheel.nouns.operation import operations
from tidewheel.nouns.runs.model import Group, PageFilter, RunPage, RunSummary, Status
from tidewheel.nouns.runs.reads import RunList, list_runs, longest_attempts
from tidewheel.runs import DEAD_LETTERED, Cause

LATE = timedelta(seconds=1)
"""A run that begins so long after its instant is late."""

_AT_THEIR_TIME = {Cause.TIMER, Cause.TRIGGER}

_SLOW_SPANS = {"1h": timedelta(hours=1), "24h": timedelta(days=1), "7d": timedelta(days=7)}
_SPANS = {**_SLOW_SPANS, "30d": timedelta(days=30)}
_RETRYABLE = {"status", "job", "lane", "queue", "since", "until", "last"}
_ALIKE: Mapping[Group, Status | None] = {
    "due": None, "running_or_cancelling": "running", "failed_or_timed_out": "failed"
}  # fmt: skip
"""By the group of a list the state whose list has the same action on all that match; None for that of all states."""

_LIST = operations(RunList)["list"]
_MADE, _NAMES = query_of(_LIST, _LIST.parameters)

_SHOWN = 50
_RUNNING = 10


class Show(StrEnum):
    """The filters of the list."""

    ALL = "all"
    FAILED = "failed"
    SKIPPED = "skipped"
    SLOW = "slow"
    RETRIED = "retried"


@dataclass(frozen=True, slots=True)
class Row:
    """A run, or a span of occurrences that did not fire.

    Args:
        at: Its instant; of a span the first.
        state: The state of the run, or `skipped`.
        run_id: The run; None of a span.
        late: The time from its instant to the start of its first attempt, if it was written for that instant.
        took: The time of its last attempt.
        words: The error type, or the reason.
    """

    at: datetime
    state: str
    run_id: UUID | None = None
    attempt: int = 0
    late: timedelta | None = None
    took: timedelta | None = None
    words: str = ""
    span: Unfired | None = None


def row_of(run: TimelineRun | RunSummary) -> Row:
    """Return the row of a run."""
    shown = run.status if isinstance(run, RunSummary) else run.state
    # A retry has the instant of the run before it, a child that of its root, a backfill one of the past.
    is_own = run.attempt == 1 and run.cause in _AT_THEIR_TIME
    late = between(run.scheduled_at, run.started_at) if is_own else None
    words = run.error_type or reason_words(run.reason or "")
    return Row(run.scheduled_at, shown, run.run_id, run.attempt, late, between(run.started_at, run.finished_at), words)


def job_rows(runs: Iterable[TimelineRun | RunSummary], timeline: JobTimeline) -> list[Row]:
    """Return runs and skipped spans, the newest first; a skipped run is in its span."""
    spans = [Row(each.at, "skipped", words=each.words, span=each) for each in timeline.skips]
    covered = {each.at for each in timeline.skips if each.at == each.last_at}
    shown = [row_of(run) for run in runs]
    rows = [each for each in shown if each.state != "skipped" or each.at not in covered]
    return sorted([*rows, *spans], key=lambda row: row.at, reverse=True)


def frozen(rows: Iterable[Row], thaws: Sequence[FreezeChange]) -> set[UUID | None]:
    """Return the late runs that began after one of these thaws, before which they were due."""
    late = ((row, row.at + row.late) for row in rows if row.late is not None and row.late > LATE)
    return {row.run_id for row, began in late if any(row.at < thaw.at <= began for thaw in thaws)}


def filtered(rows: Sequence[Row], show: Show, took_p95: timedelta | None) -> list[Row]:
    """Return the rows of a filter."""
    return [row for row in rows if _FITS[show](row, took_p95)]


def counts(rows: Sequence[Row], took_p95: timedelta | None) -> Mapping[Show, int]:
    """Return the number of runs and occurrences of each filter."""
    return {
        show: sum(row.span.occurrences if row.span else 1 for row in filtered(rows, show, took_p95)) for show in Show
    }


_FITS: Mapping[Show, Callable[[Row, timedelta | None], bool]] = {
    Show.ALL: lambda row, p95: True,
    Show.FAILED: lambda row, p95: family_of(row.state) == "bad",
    Show.SKIPPED: lambda row, p95: row.state == "skipped",
    Show.SLOW: lambda row, p95: p95 is not None and row.took is not None and row.took > p95,
    Show.RETRIED: lambda row, p95: row.attempt > 1,
}


if TYPE_CHECKING:
    _Query = PageQuery
else:
    _Query = _MADE


class PageOfRunsQuery(_Query):
    """Filter of the page of runs, with the states of a figure of the overview, and a span before now."""

    group: Group | None = None
    last: Literal["1h", "24h", "7d", "30d"] | None = None
    ended_since: Instant | None = None
    ended_until: Instant | None = None


class RunsPage:
    """The list of runs."""

    template: ClassVar[str] = "runs.html"
    place: ClassVar[str] = "runs"

    def read(self, connection: Connection, caller: Caller, request: Request, urls: Urls) -> View:
        """Read a page of runs by the filters of the address."""
        query, errors = read_filters(request, PageOfRunsQuery)
        now = page_now(connection)
        narrowed = _filter_of(query, now)

        def listed() -> tuple[RunPage, str | None]:
            cursors = Cursors.of_list("runs", query, caller.tenant)
            after = after_of(cursors, _LIST)
            page = in_snapshot(connection, list_runs, caller.tenant, narrowed, after=after, limit=query.limit)
            return page, next_cursor(cursors, page.next_cursor)

        alike: PageFilter = {**narrowed, "group": None, "status": _ALIKE[query.group]} if query.group else narrowed
        key = narrowed.get("key")
        more = {
            "matching": matching_filters(alike),
            "matching_button": matching_button(alike),
            "retryable": _retryable(query, narrowed),
            "occurrences": _skipped_of(key, caller.tenant, urls) if narrowed.get("status") == "skipped" else None,
        }
        return list_view("runs", query, listed, errors=errors, now=now, urls=urls, of_page=lambda page: more)


def _filter_of(query: PageOfRunsQuery, now: datetime) -> PageFilter:
    """Return the filter of an address; a group has its own states."""
    found = cast("PageFilter", {name: getattr(query, spoken) for name, spoken in _NAMES.items() if name != "limit"})
    ended: PageFilter = {"group": query.group, "ended_since": query.ended_since, "ended_until": query.ended_until}
    since = found.get("since") if query.last is None else now - _SPANS[query.last]
    return {**found, **ended, "since": since, "status": None if query.group else found.get("status")}


def _retryable(query: PageOfRunsQuery, filters: PageFilter) -> dict[str, object] | None:
    """Return the filter of a retry of all failed runs that match; None if a retry has no such filter."""
    given, since = filters_of(query), filters.get("since")
    if filters.get("status") not in DEAD_LETTERED or not given.keys() <= _RETRYABLE:
        return None
    given.pop("last", None)
    return given | ({} if since is None else {"since": format_timestamp(since)})


def _skipped_of(key: str | None, tenant: str, urls: Urls) -> str:
    """Return the address of the skipped occurrences of a job, or of the jobs to choose one of."""
    return urls.job(key, job_id(tenant, key), window=Window.MONTH, show=Show.SKIPPED) if key else urls("jobs")


class SlowQuery(TenantQuery):
    """The time of the page of slow runs: it has those that ended within it before now."""

    last: Literal["1h", "24h", "7d"] = "24h"


class SlowPage:
    """The slowest runs."""

    template: ClassVar[str] = "slow.html"
    place: ClassVar[str] = "runs"

    def read(self, connection: Connection, caller: Caller, request: Request, urls: Urls) -> View:
        """Read the slowest runs of the time that the address names."""
        query, errors = read_filters(request, SlowQuery)
        now = page_now(connection)

        def read() -> Sequence[RunSummary]:
            with connection.snapshot() as reading:
                found = slowest_runs(
                    reading, caller.tenant, now - _SLOW_SPANS[query.last], now + _SLOW_SPANS["1h"], _SHOWN
                )
                took = timedelta(seconds=found[0].took if found else 0)
                running = longest_attempts(reading, caller.tenant, now - took, limit=_RUNNING)
                return [*running, *(each.run for each in found)]

        found = Failed("") if errors else part(read)
        values = {"now": now, "found": found, "query": query, "spans": list(_SLOW_SPANS), "errors": errors}
        return View(values, 422 if errors else 200)
