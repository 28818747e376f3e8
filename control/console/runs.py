"""The list of runs: which are like this one."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import ClassVar, Literal
from uuid import UUID

from starlette.requests import Request

from tidewheel.control.api.callers import Caller
from tidewheel.control.api.queries import Cursors
from tidewheel.control.api.runs import RunsQuery
from tidewheel.control.client.connection import Connection
from tidewheel.control.console.axis import Window
from tidewheel.control.console.job_rows import Show
from tidewheel.control.console.listing import filters_of, list_view
from tidewheel.control.console.many_runs import matching_button, matching_filters
from tidewheel.control.console.urls import Urls
from tidewheel.control.console.view import View, page_now, read_filters
from tidewheel.control.reads.runs import RunFilter, RunPage, list_runs
from tidewheel.ids import job_id
from tidewheel.jobs.values import Instant, format_timestamp
from tidewheel.runs import DEAD_LETTERED

_SPANS = {"1h": timedelta(hours=1), "24h": timedelta(days=1), "7d": timedelta(days=7), "30d": timedelta(days=30)}

_RETRYABLE = {"status", "job", "lane", "queue", "since", "until", "last"}
_ALIKE = {"due": None, "running_or_cancelling": "running", "failed_or_timed_out": "failed"}
"""By the group of a list the state whose list has the same action on all that match; None for that of all states."""


class PageOfRunsQuery(RunsQuery):
    """Filter of the page of runs.

    Attributes:
        group: Only runs in the states that a figure of the overview counts together.
        last: Only runs of this time before now.
        ended_since: Only runs that ended at this instant or later.
        ended_until: Only runs that ended before this instant.
    """

    group: Literal["due", "running_or_cancelling", "failed_or_timed_out"] | None = None
    last: Literal["1h", "24h", "7d", "30d"] | None = None
    ended_since: Instant | None = None
    ended_until: Instant | None = None


@dataclass(frozen=True, slots=True)
class RunsPage:
    """The list of runs."""

    template: ClassVar[str] = "runs.html"
    place: ClassVar[str] = "runs"

    def read(self, connection: Connection, caller: Caller, request: Request, urls: Urls) -> View:
        """Read a page of runs by the filters of the address."""
        query, errors = read_filters(request, PageOfRunsQuery)
        now = page_now(connection)
        since = query.since if query.last is None else now - _SPANS[query.last]
        narrowed = RunFilter(
            None if query.group else query.status, query.job, query.label or None, query.run_label or None, query.lane,
            query.queue, query.cause, query.concurrency_key, query.ordering_key, since, query.until,
            query.ended_since, query.ended_until, query.group,
        )  # fmt: skip

        def listed() -> tuple[RunPage, str | None]:
            cursors = Cursors.of_list("runs", query, caller.tenant)
            place = cursors.read(Instant, Instant, UUID)
            after = None if place is None else "/".join((*map(format_timestamp, place[:2]), str(place[2])))
            with connection.snapshot() as reading:
                page = list_runs(reading, caller.tenant, narrowed, after=after, limit=query.limit)
            return page, cursors.write(*(page.next_cursor.split("/") if page.next_cursor else [None]))

        alike = query.model_copy(update={"status": _ALIKE[query.group]}) if query.group else query
        more = {
            "matching": matching_filters(alike, is_narrowed=any((query.last, query.ended_since, query.ended_until))),
            "matching_button": matching_button(alike),
            "retryable": _retryable(query, since),
            "occurrences": _skipped_of(query.job, caller.tenant, urls) if query.status == "skipped" else None,
        }
        return list_view("runs", query, listed, errors=errors, now=now, urls=urls, of_page=lambda page: more)


def _retryable(query: PageOfRunsQuery, since: datetime | None) -> dict[str, object] | None:
    """Return the filter of a retry of all failed runs that match; None if a retry has no such filter."""
    given = filters_of(query)
    if query.status not in DEAD_LETTERED or not given.keys() <= _RETRYABLE:
        return None
    given.pop("last", None)
    return given | ({} if since is None else {"since": format_timestamp(since)})


def _skipped_of(key: str | None, tenant: str, urls: Urls) -> str:
    """Return the address of the skipped occurrences of a job, or of the jobs to choose one of."""
    return urls.job(key, job_id(tenant, key), window=Window.MONTH, show=Show.SKIPPED) if key else urls("jobs")
