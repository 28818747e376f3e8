"""Lists of runs: alike, and slowest."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import ClassVar, Literal, cast
from uuid import UUID

from starlette.requests import Request

from tidewheel.control.api.authorization import Caller
from tidewheel.control.api.request_input import Cursors, PageQuery, TenantQuery, Text
from tidewheel.control.client.connection import Connection
from tidewheel.control.console.axis import Window
from tidewheel.control.console.job_rows import Show, error_lines
from tidewheel.control.console.many_runs import MOST, matching_button, matching_filters
from tidewheel.control.console.urls import Urls
from tidewheel.control.console.view import (
    SPANS,
    Failed,
    View,
    begin_of,
    filters_of,
    in_snapshot,
    list_view,
    neighbours,
    or_else,
    page_now,
    part,
    part_of,
    read_filters,
)
from tidewheel.control.console.words import timed
from tidewheel.control.reads.outcomes import read_job_times
from tidewheel.control.reads.workload import slowest_runs
from tidewheel.doors.address import after_of, form_of, next_cursor, query_with
from tidewheel.ids import job_id
from tidewheel.jobs.values import Instant, format_timestamp
from tidewheel.nouns.batches.operations import with_causes
from tidewheel.nouns.operation import operations
from tidewheel.nouns.runs.model import Group, PageFilter, RunPage, RunSummary, Status
from tidewheel.nouns.runs.operations import Runs
from tidewheel.nouns.runs.reads import RunList, count_states, list_runs, longest_attempts
from tidewheel.runs import DEAD_LETTERED

_RETRYABLE = {"last", *(each.spoken for each in operations(Runs)["retry_failed"].parameters if each.filters)}
_ALIKE: Mapping[Group, Status | None] = {
    "due": None, "held": "buffered", "running_or_cancelling": "running", "failed_or_timed_out": "failed"
}  # fmt: skip
"""By the group of a list the state whose list has the same action on all that match; None for that of all states."""

_LIST = operations(RunList)["list"]
_FORM = form_of(_LIST.parameters, without=("status", "key"))

_FURTHER, _ROWS = 4, 20  # pages of runs that are read until so many rows are there
_SHOWN = 50
_RUNNING = 10


class PageOfRunsQuery(PageQuery):
    """Query of the page of runs without the filter: the states of a figure, a span, the order."""

    group: Group | None = None
    last: Literal["1h", "24h", "7d", "30d"] | None = None
    ended_since: Instant | None = None
    ended_until: Instant | None = None
    sort: Literal["-scheduled", "scheduled"] = "-scheduled"
    opened: Text | None = None  # a run among the neighbours that the list does not fold


_QUERY, _NAMES = query_with(PageOfRunsQuery, _LIST, _LIST.parameters)


class RunsPage:
    """The list of runs."""

    template: ClassVar[str] = "runs.html"

    def read(self, connection: Connection, caller: Caller, request: Request, urls: Urls) -> View:
        """Read a page of runs by the filters of the address."""
        now = page_now(connection)
        query, errors = read_filters(request, _QUERY, now)
        narrowed = _filter_of(query, now)
        fails = query.group == "failed_or_timed_out" or narrowed.get("status") in DEAD_LETTERED
        folded = partial(fold_runs, now=now, opened=query.opened, apart=fails)

        def listed() -> tuple[RunPage, str | None]:
            cursors = Cursors.of_list("runs", query, caller.tenant)
            read = partial(list_runs, after=after_of(cursors, _LIST), oldest_first=query.sort == "scheduled")
            page: RunPage = in_snapshot(connection, read, caller.tenant, narrowed, limit=query.limit)
            for _ in range(1 if fails else _FURTHER):  # neighbours that fold leave room
                many, rows = len(page.runs), len(folded(page.runs, {}))
                enough = many % query.limit or many + query.limit > MOST or rows >= min(_ROWS, query.limit)
                if page.next_cursor is None or not many or enough:
                    break
                read = partial(list_runs, after=page.next_cursor, oldest_first=query.sort == "scheduled", counts=False)
                more: RunPage = in_snapshot(connection, read, caller.tenant, narrowed, limit=query.limit)
                page = replace(page, runs=(*page.runs, *more.runs), next_cursor=more.next_cursor)
            return page, next_cursor(cursors, page.next_cursor)

        alike: PageFilter = {**narrowed, "group": None, "status": _ALIKE[query.group]} if query.group else narrowed
        skipped, key = urls("jobs"), narrowed.get("key")
        if key:
            skipped = urls.job(key, job_id(caller.tenant, key), window=Window.MONTH, show=Show.SKIPPED)
        more = {
            "matching": matching_filters(alike),
            "matching_button": matching_button(alike),
            "retryable": _retryable(query, narrowed),
            "occurrences": skipped if narrowed.get("status") == "skipped" else None,
        }

        def values(page: RunPage) -> dict[str, object]:
            counts = part_of(connection, count_states, caller.tenant, narrowed)
            late = connection.installation.misfire_after
            messages = error_lines(connection, page.runs)
            folds = folded(or_else(part_of(connection, with_causes, page.runs), page.runs), messages)
            return {**more, "messages": messages, "counts": counts, "late": late, "folds": folds}

        return list_view(
            "runs", query, listed, errors=errors, now=now, urls=urls, of_page=values, fields=_FORM,
            shown=("sort", "opened"),
        )  # fmt: skip


def fold_runs(
    runs: Sequence[RunSummary], messages: Mapping[UUID, str], now: datetime, opened: str | None = None,
    *, apart: bool, of: UUID | None = None,
) -> list[Sequence[RunSummary]]:  # fmt: skip
    """Return equal neighbours together, or all equal ones; the run `of` stays alone."""

    def alike(run: RunSummary) -> object:
        why = timed(run.why.words, UTC, now) if run.why else (run.reason, messages.get(run.run_id))
        return run.run_id == of, run.job_id, run.status, run.cause, run.error_type, why

    return neighbours(runs, alike, lambda run: str(run.run_id) == opened, apart=apart)


def _filter_of(query: PageOfRunsQuery, now: datetime) -> PageFilter:
    """Return the filter of an address; a group has its own states."""
    found = cast("PageFilter", {name: getattr(query, spoken) for name, spoken in _NAMES.items() if name != "limit"})
    ended: PageFilter = {"group": query.group, "ended_since": query.ended_since, "ended_until": query.ended_until}
    since = begin_of(query.last, found.get("since"), now)
    return {**found, **ended, "since": since, "status": None if query.group else found.get("status")}


def _retryable(query: PageOfRunsQuery, filters: PageFilter) -> dict[str, object] | None:
    """Return the filter of a retry of all failed runs that match; None if a retry has no such filter."""
    given, since = filters_of(query, "sort", "opened"), filters.get("since")
    if filters.get("status") not in DEAD_LETTERED or not given.keys() <= _RETRYABLE:
        return None
    given.pop("last", None)
    return given | ({} if since is None else {"since": format_timestamp(since)})


class SlowQuery(TenantQuery):
    """The time of the page of slow runs: it has those that ended within it before now."""

    last: Literal["1h", "24h", "7d"] = "24h"


class SlowPage:
    """The slowest runs."""

    template: ClassVar[str] = "slow.html"

    def read(self, connection: Connection, caller: Caller, request: Request, urls: Urls) -> View:
        """Read the slowest runs of the time that the address names."""
        query, errors = read_filters(request, SlowQuery)
        now = page_now(connection)

        def read() -> Sequence[RunSummary]:
            with connection.snapshot() as reading:
                found = slowest_runs(reading, caller.tenant, now - SPANS[query.last], now + SPANS["1h"], _SHOWN)
                took = timedelta(seconds=found[0].took if found else 0)
                running = longest_attempts(reading, caller.tenant, now - took, limit=_RUNNING)
                return with_causes(reading, [*running, *(each.run for each in found)])

        found = Failed("") if errors else part(read)
        messages = error_lines(connection, or_else(found, ()))
        jobs = part_of(connection, read_job_times, or_else(found, ()), now - SPANS[query.last], now)
        values = {"now": now, "found": found, "messages": messages, "jobs": jobs, "query": query, "errors": errors}
        return View(values, 422 if errors else 200)
