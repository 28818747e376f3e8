"""A job on its time axis: `/api/v1/jobs/{key}/timeline`, `/calendar` and `/resume-preview`."""

import re
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Annotated, Self

from fastapi import APIRouter
from pydantic import AfterValidator, BeforeValidator, Field, model_validator
from starlette.requests import Request
from starlette.responses import Response

from tidewheel.api_keys import Scope
from tidewheel.control.api import examples
from tidewheel.control.api.answers import answer
from tidewheel.control.api.callers import Reader
from tidewheel.control.api.openapi import add_route
from tidewheel.control.api.queries import TenantQuery, read_key, read_query, whole
from tidewheel.control.api.workers import Workers
from tidewheel.control.client.connection import Connection
from tidewheel.control.explain.job_timeline import JobTimeline, equal_edges, job_timeline
from tidewheel.control.explain.month import JobCalendar, job_calendar
from tidewheel.control.reads.jobs import show_job
from tidewheel.control.reads.resuming import Resumption, preview_resume
from tidewheel.jobs.invalid import InvalidValue
from tidewheel.jobs.validation import shown
from tidewheel.jobs.values import Instant

_ONE = "/api/v1/jobs/{key}"
_FIRST_YEAR, _LAST_YEAR = 1971, 2198
_MONTH = re.compile(r"[0-9]{4}-(0[1-9]|1[0-2])", re.ASCII)
MOST_DAYS = 800
"""The longest time of a timeline: counts by day are kept for two years."""


def _month(text: str) -> str:
    if not _MONTH.fullmatch(text) or not _FIRST_YEAR <= int(text[:4]) <= _LAST_YEAR:
        remedy = f"write it as YYYY-MM, from {_FIRST_YEAR} to {_LAST_YEAR}"
        raise InvalidValue(problem=f"{shown(text)} is no month", remedy=remedy)
    return text


Month = Annotated[str, AfterValidator(_month)]


class TimelineQuery(TenantQuery):
    """Query of a timeline.

    Attributes:
        from_at: Its begin.
        to_at: Its end, which does not belong to it.
        bins: The number of bins in which more than 400 runs are counted.
    """

    from_at: Instant = Field(alias="from")
    to_at: Instant = Field(alias="to")
    bins: Annotated[int, Field(ge=1, le=400), BeforeValidator(whole)] = 120

    @model_validator(mode="after")
    def _range_ahead(self) -> Self:
        if self.to_at <= self.from_at:
            raise InvalidValue(problem="it does not lie after from", remedy="write a later instant", path="to")
        if self.to_at - self.from_at > timedelta(days=MOST_DAYS):
            raise InvalidValue(problem="the time is too long", remedy=f"write {MOST_DAYS} days at most", path="to")
        return self


class CalendarQuery(TenantQuery):
    """Query of the days of a month.

    Attributes:
        month: The month as YYYY-MM, on the clock of the job; by default the present one.
    """

    month: Month | None = None


def first_day(month: str) -> date:
    """Return the first day of a month."""
    return date(int(month[:4]), int(month[5:]), 1)


@dataclass(frozen=True, slots=True)
class JobTimesApi:
    """Calls about the past and the future of a job."""

    reads: Workers

    def add_to(self, router: APIRouter) -> None:
        """Add the routes."""
        add_route(router, "GET", f"{_ONE}/timeline", self.get_job_timeline, scope=Scope.READ, query=TimelineQuery,
                  answer=JobTimeline, example=examples.TIMELINE)  # fmt: skip
        add_route(router, "GET", f"{_ONE}/calendar", self.get_job_calendar, scope=Scope.READ, query=CalendarQuery,
                  answer=JobCalendar, example=examples.CALENDAR_MONTH)  # fmt: skip
        add_route(router, "GET", f"{_ONE}/resume-preview", self.preview_resume, scope=Scope.READ, query=TenantQuery,
                  answer=Resumption, example=examples.RESUMPTION)  # fmt: skip

    async def get_job_timeline(self, request: Request, caller: Reader) -> Response:
        """Return the runs of a job in a time, one by one or counted by bins, with skips, pauses and versions."""
        query, key = read_query(request, TimelineQuery), read_key(request)
        edges = equal_edges(query.from_at, query.to_at, query.bins)

        def read(connection: Connection) -> JobTimeline:
            late = connection.installation.misfire_after
            with connection.snapshot() as reading:
                return job_timeline(reading, caller.tenant, key, edges, misfire_after=late)

        return await answer(self.reads, caller, read)

    async def get_job_calendar(self, request: Request, caller: Reader) -> Response:
        """Return the occurrences of a job in a month by day, with clock changes, calendars, skips and moves."""
        query, key = read_query(request, CalendarQuery), read_key(request)

        def read(connection: Connection) -> JobCalendar:
            with connection.snapshot() as reading:
                return job_calendar(reading, caller.tenant, key, first_day(query.month) if query.month else None)

        return await answer(self.reads, caller, read)

    async def preview_resume(self, request: Request, caller: Reader) -> Response:
        """Return what the end of a job's pause does with the occurrences that came due meanwhile."""
        read_query(request, TenantQuery)
        key = read_key(request)

        def read(connection: Connection) -> Resumption:
            with connection.snapshot() as reading:
                job = show_job(reading, caller.tenant, key).summary
                return preview_resume(reading, caller.tenant, [job.job_id])

        return await answer(self.reads, caller, read)
