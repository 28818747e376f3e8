"""The future of one job: a month by day on its own clock, and the list of its next occurrences."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from functools import partial
from typing import Annotated, ClassVar
from uuid import UUID

from pydantic import BeforeValidator, Field
from starlette.requests import Request

from tidewheel.control.api.callers import Caller
from tidewheel.control.api.queries import TenantQuery, whole
from tidewheel.control.client.connection import Connection
from tidewheel.control.console.job import key_of_page, moved_to, schedule_text
from tidewheel.control.console.jobs import hold_words
from tidewheel.control.console.urls import Urls
from tidewheel.control.console.view import Failed, View, page_now, part, read_filters
from tidewheel.control.explain.facts import read_overrides_around
from tidewheel.control.explain.month import CalendarDay, JobCalendar, job_calendar
from tidewheel.control.explain.upcoming import Upcoming, upcoming
from tidewheel.ids import job_id
from tidewheel.nouns.jobs.occurrences import Month, first_day
from tidewheel.nouns.jobs.reads import show_job
from tidewheel.postgres.session import Conn
from tidewheel.schedules.describe import to_zone

_WEEK = 7
LIMITS = (10, 50, 100)


class NextQuery(TenantQuery):
    """Query of the page."""

    month: Month | None = None
    limit: Annotated[int, Field(ge=1, le=100), BeforeValidator(whole)] = 10


@dataclass(frozen=True, slots=True)
class JobNextPage:
    """The page of what comes."""

    template: ClassVar[str] = "job-next.html"
    place: ClassVar[str] = "jobs"

    def read(self, connection: Connection, caller: Caller, request: Request, urls: Urls) -> View:
        """Read the month and the list."""
        query, errors = read_filters(request, NextQuery)
        key = key_of_page(connection, caller, request)
        away = moved_to(request, urls, key, job_id(caller.tenant, key), "job_next")
        if away is not None:
            return View({}, moved_to=away)
        now, tenant = page_now(connection), caller.tenant
        with connection.snapshot() as reading:
            job = show_job(reading, tenant, key)

        def read_month() -> tuple[JobCalendar, Mapping[date, Sequence[datetime]]]:
            with connection.snapshot() as reading:
                found = job_calendar(reading, tenant, key, first_day(query.month) if query.month else None)
                return found, _targets(reading, job.summary.job_id, found)

        def read_list() -> Upcoming:
            late = connection.installation.misfire_after
            with connection.snapshot() as reading:
                return upcoming(reading, tenant, key, query.limit, misfire_after=late)

        read, coming = part(read_month), part(read_list)
        known = None if isinstance(read, Failed) else read[0]
        listed = () if isinstance(coming, Failed) else coming.occurrences
        return View(
            {
                "now": now, "job": job, "held": hold_words(job.summary), "tab": "next", "month": known or read,
                "coming": coming, "errors": errors, "query": query, "limits": LIMITS,
                "schedule": schedule_text(job.summary.schedule), "weeks": weeks(known.days) if known else [],
                "earlier": other_month(known.month, -1) if known else None,
                "later": other_month(known.month, 1) if known else None,
                "today": (now.astimezone(listed[0].local.tzinfo) if listed else now).date(),
                "on_clock": None if isinstance(coming, Failed) else partial(to_zone, zone_name=coming.zone),
                "targets": {} if isinstance(read, Failed) else read[1],
            },
            422 if errors else 200,
        )  # fmt: skip


def _targets(reading: Conn, job: UUID, shown: JobCalendar) -> Mapping[date, Sequence[datetime]]:
    """Return the new times of the occurrences moved from each day."""
    found: dict[date, list[datetime]] = {}
    if not any(day.moved for day in shown.days):
        return found
    begin = datetime.combine(shown.month, time(), UTC) - timedelta(days=2)  # a zone's day begins a day earlier at most
    for each in read_overrides_around(reading, job, begin, begin):
        if each.moved_to is not None:
            day = to_zone(each.scheduled_at, shown.zone).date()
            found.setdefault(day, []).append(to_zone(each.moved_to, shown.zone))
    return found


def weeks(days: Sequence[CalendarDay]) -> list[list[CalendarDay | None]]:
    """Return the days of a month as weeks from Monday to Sunday; None outside of the month."""
    cells: list[CalendarDay | None] = [*[None] * days[0].date.weekday(), *days]
    cells += [None] * (-len(cells) % _WEEK)
    return [cells[at : at + _WEEK] for at in range(0, len(cells), _WEEK)]


def other_month(month: date, step: int) -> str:
    """Return the month before (-1) or after (1), as YYYY-MM.

    >>> other_month(date(2026, 1, 1), -1), other_month(date(2026, 12, 1), 1)
    ('2025-12', '2027-01')
    """
    found = month - timedelta(days=1) if step < 0 else month + timedelta(days=31)
    return f"{found:%Y-%m}"
