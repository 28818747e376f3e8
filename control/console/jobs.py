"""The list of jobs: which are there, whose last run failed, what fires next."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar
from uuid import UUID

from starlette.requests import Request

from tidewheel.control.api.callers import Caller
from tidewheel.control.api.jobs import JobsQuery
from tidewheel.control.api.queries import Cursors
from tidewheel.control.ask import nearest_key
from tidewheel.control.client.connection import Connection
from tidewheel.control.console.job_strip import Strip, strip
from tidewheel.control.console.listing import list_view
from tidewheel.control.console.many_jobs import freezable_filters
from tidewheel.control.console.urls import Urls
from tidewheel.control.console.view import Failed, View, page_now, part, read_filters
from tidewheel.control.reads.waits import Wait, read_waits
from tidewheel.control.schedule_words import schedule_words
from tidewheel.ids import instant_of
from tidewheel.jobs.values import Key
from tidewheel.nouns.jobs.model import JobPage, JobSummary
from tidewheel.nouns.jobs.reads import list_jobs
from tidewheel.nouns.runs.model import RecentRun
from tidewheel.nouns.runs.reads import read_recent_runs
from tidewheel.runs import RunState
from tidewheel.schedules.decision import HoldReason
from tidewheel.schedules.describe import to_zone


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
                page = list_jobs(reading, caller.tenant, after=after, limit=query.limit, **query.filter)
            return page, cursors.write(page.next_cursor)

        def rows(page: JobPage) -> Mapping[str, object]:
            def read_strips() -> Mapping[UUID, Sequence[RecentRun]]:
                with connection.snapshot() as reading:
                    return read_recent_runs(reading, [job.job_id for job in page.jobs])

            def read_retries() -> Mapping[UUID, Wait]:
                latest = [job.last_run for job in page.jobs if job.last_run]
                retrying = [run.run_id for run in latest if run.state == RunState.RETRYING]
                if not retrying:
                    return {}
                with connection.snapshot() as reading:
                    return read_waits(reading, retrying)

            recent = part(read_strips)
            runs: Mapping[UUID, Sequence[RecentRun]] = {} if isinstance(recent, Failed) else recent
            found = [_row(job, runs.get(job.job_id, ())) for job in page.jobs]
            return {
                "rows": found, "recent": recent, "retries": part(read_retries), "nearest": nearest(page),
                "freezable": freezable_filters(query),
            }  # fmt: skip

        def nearest(page: JobPage) -> str | None:
            if page.jobs or not query.prefix or page.next_cursor is not None:
                return None
            with connection.snapshot() as reading:
                return nearest_key(reading, caller.tenant, query.prefix)

        return list_view("jobs", query, listed, errors=errors, now=now, urls=urls, of_page=rows)


@dataclass(frozen=True, slots=True)
class Row:
    """A job of the list.

    Args:
        held: The reason for which its timer does not fire.
        clock: Its next time on its own clock, if that is not UTC.
        last_at: When its last run began; before that, the time in the run's id: of a retry, that of the request.
    """

    job: JobSummary
    schedule: str
    held: str | None
    clock: str | None
    strip: Strip
    last_at: datetime | None


def _row(job: JobSummary, runs: Sequence[RecentRun]) -> Row:
    clock = None
    if job.next_at is not None and job.timezone not in {None, "UTC"}:
        clock = (
            f"{to_zone(job.next_at, str(job.timezone)):%H:%M} {str(job.timezone).rpartition('/')[2].replace('_', ' ')}"
        )
    held = hold_words(job)
    comes = job.next_at is not None and held is None
    last = job.last_run
    last_at = None if last is None else last.started_at or instant_of(last.run_id)
    return Row(job, schedule_words(job.schedule), held, clock, strip(runs, comes=comes), last_at)


def hold_words(job: JobSummary) -> str | None:
    """Return why a job's timer does not fire; None if nothing holds it."""
    if job.hold_reason == HoldReason.QUARANTINED:
        return "quarantined"
    if job.paused:
        return "paused"
    if job.finished_at is not None:
        return "finished"
    return {"freeze": "frozen", "run": "after its run"}.get(job.hold_reason or "")
