"""Reads of a job on its time axis: coming occurrences, past ones, explanations."""

import re
from datetime import date, timedelta
from typing import Annotated

from pydantic import AfterValidator, Field

from tidewheel.api_keys import Scope
from tidewheel.control.explain.explain import explain
from tidewheel.control.explain.explanation import Explanation
from tidewheel.control.explain.job_timeline import JobTimeline, equal_edges, job_timeline
from tidewheel.control.explain.month import JobCalendar, job_calendar
from tidewheel.control.explain.upcoming import Upcoming, upcoming
from tidewheel.control.reads.resuming import Resumption, preview_resume
from tidewheel.errors import refuse
from tidewheel.jobs.invalid import InvalidValue
from tidewheel.jobs.validation import shown
from tidewheel.jobs.values import Instant
from tidewheel.nouns.jobs.operations import JOB
from tidewheel.nouns.jobs.reads import show_job
from tidewheel.nouns.operation import InDoors, Noun, operation

MAX_NEXT = 100
"""The most next occurrences of one call: some tens of milliseconds on a thread of the API, which no time ends."""
MOST_DAYS = 800
"""The longest time of a timeline: counts by day are kept for two years."""
_FIRST_YEAR, _LAST_YEAR = 1971, 2198
_MONTH = re.compile(r"[0-9]{4}-(0[1-9]|1[0-2])", re.ASCII)


def _month(text: str) -> str:
    if not _MONTH.fullmatch(text) or not _FIRST_YEAR <= int(text[:4]) <= _LAST_YEAR:
        remedy = f"write it as YYYY-MM, from {_FIRST_YEAR} to {_LAST_YEAR}"
        raise InvalidValue(problem=f"{shown(text)} is not a month", remedy=remedy)
    return text


Month = Annotated[str, AfterValidator(_month)]


def first_day(month: str) -> date:
    """Return the first day of a month."""
    return date(int(month[:4]), int(month[5:]), 1)


class Occurrences(Noun):
    """Occurrences of one job."""

    @operation(f"GET {JOB}/next", "list_next_occurrences", scope=Scope.READ)
    def next(
        self,
        key: str,
        n: Annotated[
            int, Field(ge=1, le=MAX_NEXT, description="The maximum number of results."), InDoors("limit")
        ] = 10,
    ) -> Upcoming:
        """Show a job's next occurrences, also skipped and moved ones."""
        late = self._call.installation.misfire_after
        return self._read(upcoming, key, n, misfire_after=late)

    @operation(f"GET {JOB}:explain", "explain_job", scope=Scope.READ)
    def explain(self, key: str, at: Annotated[Instant, Field(description="The instant.")]) -> Explanation:
        """Explain what happened, or will happen, to a job at an instant."""
        late = self._call.installation.misfire_after
        return self._read(explain, key, at, misfire_after=late)


class JobTimes(Noun):
    """The time axis of a job, which REST alone has beside the console."""

    @operation(f"GET {JOB}/timeline", "get_job_timeline", scope=Scope.READ)
    def timeline(
        self,
        key: str,
        from_at: Annotated[Instant, Field(description="Its start."), InDoors("from")],
        to_at: Annotated[Instant, Field(description="Its end, exclusive."), InDoors("to")],
        *,
        bins: Annotated[
            int, Field(ge=1, le=400, description="The number of bins to use for more than 400 runs.")
        ] = 120,
    ) -> JobTimeline:
        """Return a job's runs in a time range, one by one or counted by bin, with skips, pauses and versions."""
        if to_at <= from_at:
            refuse("to", "is not after from", "write a later time")
        if to_at - from_at > timedelta(days=MOST_DAYS):
            refuse("to", "the range is too long", f"write at most {MOST_DAYS} days")
        edges, late = equal_edges(from_at, to_at, bins), self._call.installation.misfire_after
        return self._read(job_timeline, key, edges, misfire_after=late)

    @operation(f"GET {JOB}/calendar", "get_job_calendar", scope=Scope.READ)
    def calendar(
        self,
        key: str,
        *,
        month: Annotated[
            Month | None,
            Field(description="The month as YYYY-MM, in the job's time zone; by default the current month."),
        ] = None,
    ) -> JobCalendar:
        """Return a job's occurrences in a month by day, with clock changes, calendars, skips and moves."""
        return self._read(job_calendar, key, first_day(month) if month else None)

    @operation(f"GET {JOB}/resume-preview", "preview_resume", scope=Scope.READ)
    def preview_resume(self, key: str) -> Resumption:
        """Return which occurrences of a job's pause a resume would fire, and which it would skip."""
        with self._call.snapshot() as connection:
            job = show_job(connection, self._call.tenant, key).summary
            return preview_resume(connection, self._call.tenant, [job.job_id])
