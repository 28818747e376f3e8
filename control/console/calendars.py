"""Calendars: the list, and a year of one in small months with the jobs that name it."""

import calendar
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from http import HTTPStatus
from typing import ClassVar
from uuid import UUID

from starlette.exceptions import HTTPException
from starlette.requests import Request

from tidewheel.control.api.callers import Caller
from tidewheel.control.api.queries import TenantQuery, Whole, read_query
from tidewheel.control.client.connection import Connection
from tidewheel.control.console.urls import Urls
from tidewheel.control.console.view import View, page_now, part
from tidewheel.control.reads.calendars import CalendarDetail, CalendarSummary, list_calendars, show_calendar
from tidewheel.errors import UnknownCalendar
from tidewheel.ids import job_id

_WEEKDAYS = ("MON", "TUE", "WED", "THU", "FRI", "SAT", "SUN")
_FIRST, _LAST = 1970, 2199  # the years of schedules


class CalendarQuery(TenantQuery):
    """The parts of a calendar's address."""

    year: Whole | None = None


@dataclass(frozen=True, slots=True)
class Day:
    """A day of a small month; closed if the calendar has it, by itself or as a weekday."""

    number: int
    closed: bool
    weekly: bool
    is_today: bool


@dataclass(frozen=True, slots=True)
class Month:
    """A small month: its weeks have None beside its days."""

    name: str
    weeks: Sequence[Sequence[Day | None]]


@dataclass(frozen=True, slots=True)
class CalendarsPage:
    """The list of calendars."""

    template: ClassVar[str] = "calendars.html"
    place: ClassVar[str] = "jobs"

    def read(self, connection: Connection, caller: Caller, request: Request, urls: Urls) -> View:
        """List the calendars of the tenant."""
        del urls
        read_query(request, TenantQuery)

        def listed() -> list[CalendarSummary]:
            with connection.snapshot() as reading:
                return list_calendars(reading, caller.tenant)

        return View({"now": page_now(connection), "calendars": part(listed)})


@dataclass(frozen=True, slots=True)
class CalendarPage:
    """The page of a calendar."""

    template: ClassVar[str] = "calendar.html"
    place: ClassVar[str] = "jobs"

    def read(self, connection: Connection, caller: Caller, request: Request, urls: Urls) -> View:
        """Read the calendar; draw a year of it."""
        query, now = read_query(request, CalendarQuery), page_now(connection)
        year = min(max(query.year or now.year, _FIRST), _LAST)
        found = calendar_of_page(connection, caller, request)
        ids: list[tuple[str, UUID]] = [(key, job_id(caller.tenant, key)) for key in found.keys]
        return View(
            {
                "now": now, "calendar": found, "months": months(found, year, now.date()), "year": year,
                "jobs": [(key, urls.job(key, each)) for key, each in ids],
                "of_year": sum(day.year == year for day in found.days),
                "before": year - 1 if year > _FIRST else None, "after": year + 1 if year < _LAST else None,
            }
        )  # fmt: skip


def calendar_of_page(connection: Connection, caller: Caller, request: Request) -> CalendarDetail:
    """Return the calendar that an address names, or answer 404."""
    try:
        with connection.snapshot() as reading:
            return show_calendar(reading, caller.tenant, str(request.path_params["name"]))
    except UnknownCalendar as error:
        raise HTTPException(HTTPStatus.NOT_FOUND, str(error)) from error


def months(found: CalendarDetail, year: int, today: date) -> list[Month]:
    """Return the months of a year with their closed days."""
    days, weekly = frozenset(found.days), {_WEEKDAYS.index(each) for each in found.weekdays}

    def shown(each: date, month: int) -> Day | None:
        if each.month != month:
            return None
        is_weekly = each.weekday() in weekly
        return Day(each.day, is_weekly or each in days, is_weekly and each not in days, each == today)

    made: list[Month] = []
    for month in range(1, 13):
        weeks = [[shown(each, month) for each in week] for week in calendar.Calendar().monthdatescalendar(year, month)]
        made.append(Month(f"{date(year, month, 1):%B}", weeks))
    return made
