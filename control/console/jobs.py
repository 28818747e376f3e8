"""The list of jobs: which are there, which are unwell, what fires next."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from starlette.requests import Request

from tidewheel.control.api.callers import Caller
from tidewheel.control.api.jobs import STATES, JobsQuery
from tidewheel.control.api.queries import Cursors
from tidewheel.control.client.connection import Connection
from tidewheel.control.console.listing import list_view
from tidewheel.control.console.urls import Urls
from tidewheel.control.console.view import View, page_now, read_filters
from tidewheel.control.reads.jobs import JobPage, JobSummary, list_jobs
from tidewheel.control.schedule_words import schedule_words
from tidewheel.jobs.values import Key
from tidewheel.schedules.decision import HoldReason


@dataclass(frozen=True, slots=True)
class JobsPage:
    """The list of jobs."""

    template: ClassVar[str] = "jobs.html"
    place: ClassVar[str] = "jobs"

    def read(self, connection: Connection, caller: Caller, request: Request, urls: Urls) -> View:
        """Read a page of jobs by the filters of the address."""
        query, errors = read_filters(request, JobsQuery)
        now = page_now(connection)

        def listed() -> tuple[JobPage, str | None]:
            cursors = Cursors.of_list("jobs", query, caller.tenant)
            [after] = cursors.read(Key) or [""]
            with connection.snapshot() as reading:
                page = list_jobs(
                    reading, caller.tenant, prefix=query.prefix, labels=query.label, kind=query.kind, lane=query.lane,
                    queue=query.queue, after=after, limit=query.limit, **STATES.get(query.status, {}),
                )  # fmt: skip
            return page, cursors.write(page.next_cursor)

        def rows(page: JobPage) -> Mapping[str, object]:
            return {"rows": [(job, schedule_words(job.schedule), hold_words(job)) for job in page.jobs]}

        return list_view("jobs", query, listed, errors=errors, now=now, urls=urls, of_page=rows)


def hold_words(job: JobSummary) -> str | None:
    """Return why a job's timer does not fire; None if nothing holds it."""
    if job.hold_reason == HoldReason.QUARANTINED:
        return "quarantined"
    if job.paused:
        return "paused"
    if job.finished_at is not None:
        return "finished"
    return {"freeze": "frozen", "run": "after its run"}.get(job.hold_reason or "")
