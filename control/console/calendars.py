"""Calendars: the list, a year of one with its jobs; put one with a look at its effect, delete one."""

import calendar
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import date
from hashlib import sha256
from http import HTTPStatus
from typing import ClassVar

from starlette.exceptions import HTTPException
from starlette.requests import Request

from tidewheel.api_keys import Scope
from tidewheel.control.api.authorization import Caller
from tidewheel.control.api.request_input import TenantQuery, Whole, read_query
from tidewheel.control.client.connection import Connection
from tidewheel.control.console.actions import Dialog, Done, Field, as_shown, ensure_as_shown, request_id_of, text_of
from tidewheel.control.console.door import Form
from tidewheel.control.console.urls import Urls
from tidewheel.control.console.view import View, in_snapshot, page_now, part_of
from tidewheel.control.console.words import agreed, counted, number
from tidewheel.control.explain.explanation import OccurrenceOutcome
from tidewheel.control.explain.upcoming import upcoming
from tidewheel.control.reads.calendars import CalendarDetail, list_calendars, show_calendar
from tidewheel.distribution import install_command, is_installed
from tidewheel.errors import InvalidInput, Refused, TidewheelError, UnknownCalendar, refuse
from tidewheel.ids import job_id
from tidewheel.jobs.invalid import InvalidValue
from tidewheel.jobs.requests import CalendarPut
from tidewheel.jobs.validation import validate
from tidewheel.jobs.values import WEEKDAYS
from tidewheel.schedules.decision import DaySet

_FIRST, _LAST = 1970, 2199  # the years of schedules
_JOBS, _OCCURRENCES, _DAYS = 10, 50, 8  # that are looked at, and named
_FIRES = {OccurrenceOutcome.SCHEDULED, OccurrenceOutcome.PAUSED, OccurrenceOutcome.WAITING}
_MOST_BYTES = 1 << 20
_ICS = "Events of an iCalendar text (.ics); recurring events are expanded ten years ahead."


class CalendarQuery(TenantQuery):
    """The parts of a calendar's address."""

    year: Whole | None = None


class CalendarsPage:
    """The list of calendars."""

    template: ClassVar[str] = "calendars.html"

    def read(self, connection: Connection, caller: Caller, request: Request, urls: Urls) -> View:
        """List the calendars of the tenant."""
        read_query(request, TenantQuery)
        found = part_of(connection, list_calendars, caller.tenant)
        return View({"now": page_now(connection), "calendars": found})


class CalendarPage:
    """The page of a calendar."""

    template: ClassVar[str] = "calendar.html"

    def read(self, connection: Connection, caller: Caller, request: Request, urls: Urls) -> View:
        """Read the calendar; draw a year of it."""
        query, now = read_query(request, CalendarQuery), page_now(connection)
        year = min(max(query.year or now.year, _FIRST), _LAST)
        found = calendar_of_page(connection, caller, request)
        return View(
            {
                "now": now, "calendar": found, "closed": _day_set(found), "today": now.date(), "year": year,
                "months": [calendar.Calendar().monthdatescalendar(year, month) for month in range(1, 13)],
                "jobs": [(key, urls.job(key, job_id(caller.tenant, key))) for key in found.keys],
                "of_year": sum(day.year == year for day in found.days),
                "before": year - 1 if year > _FIRST else None, "after": year + 1 if year < _LAST else None,
            }
        )  # fmt: skip


def calendar_of_page(connection: Connection, caller: Caller, request: Request) -> CalendarDetail:
    """Return the calendar that an address names, or answer 404."""
    try:
        return in_snapshot(connection, show_calendar, caller.tenant, str(request.path_params["name"]))
    except UnknownCalendar as error:
        raise HTTPException(HTTPStatus.NOT_FOUND, str(error)) from error


def _day_set(found: CalendarDetail) -> DaySet:
    return DaySet(frozenset(found.days), frozenset(map(WEEKDAYS.index, found.weekdays)))


def effect_of(connection: Connection, tenant: str, found: CalendarDetail, then: DaySet, today: date) -> Sequence[str]:
    """Return what new days change: days that come or go, and the next occurrences on them.

    Days that have passed are left out. Of the jobs, the first ten are looked at.
    """
    now = _day_set(found)
    lines = list(_of_days(now, then, today))
    if not lines:
        return ()
    for key in found.keys[:_JOBS]:
        lines += _of_job(connection, tenant, key, now, then)
    if found.jobs > _JOBS:
        lines.append(f"{counted(found.jobs - _JOBS, 'further job')} not checked.")
    return lines


def _of_days(now: DaySet, then: DaySet, today: date) -> Iterator[str]:
    for verb, days in (("Adds", then.days - now.days), ("Removes", now.days - then.days)):
        coming = sorted(day for day in days if day >= today)
        if coming:
            yield f"{verb} {counted(len(coming), 'day')}: {_named(coming)}."
    for verb, weekdays in (("Adds", then.weekdays - now.weekdays), ("Removes", now.weekdays - then.weekdays)):
        if weekdays:
            yield f"{verb} every {', '.join(WEEKDAYS[day] for day in sorted(weekdays))}."


def _of_job(connection: Connection, tenant: str, key: str, now: DaySet, then: DaySet) -> Iterator[str]:
    try:
        coming = in_snapshot(connection, upcoming, tenant, key, _OCCURRENCES).occurrences
    except TidewheelError as error:
        yield f"{key}: {error}"
        return
    fires = [each.local.date() for each in coming if each.outcome in _FIRES]
    changed = [day for day in fires if (day in now) != (day in then)]
    if changed:
        of = f"of its next {counted(len(fires), 'occurrence')}"
        fall = agreed(len(changed), "falls", "fall")
        yield f"{key}: {number(len(changed))} {of} {fall} on such days: {_named(sorted(set(changed)))}."


def _named(days: Sequence[date]) -> str:
    names = [f"{day:%a} {day.day} {day:%b %Y}" for day in days[:_DAYS]]
    return ", ".join(names) + (f" and {number(len(days) - _DAYS)} more" if len(days) > _DAYS else "")


def _fields(found: CalendarDetail | None) -> Sequence[Field]:
    days, weekdays = ("\n".join(map(str, found.days)), ", ".join(found.weekdays)) if found else ("", "")
    source = (found.source or "") if found else ""
    return (
        Field("days", "Days", "long", days, "Such as 2026-12-25, one per line."),
        Field("weekdays", "Weekdays", value=weekdays, help="Such as SAT, SUN."),
        Field("ics", "iCalendar (optional)", "long", help=_ICS, upload=".ics,text/calendar"),
        Field("source", "Source (optional)", value=source, help="Shown beside the days."),
    )  # fmt: skip


def _document(connection: Connection, form: Form, name: str) -> Mapping[str, object]:
    """Return the request that a form describes; raise Refused if a field does not fit."""
    days = _words(form, "days")
    if (ics := text_of(form, "ics")) is not None:
        if not is_installed("calendars"):
            refuse("ics", "this server reads no iCalendar", f"write days, or run on it: {install_command('calendars')}")
        from tidewheel.control.ical import days_of  # its packages are an extra

        with _at_fields("ics"):
            found = days_of(ics.encode(), "ics", today=page_now(connection).date())
        days += [str(day) for day in sorted(found.days)]
    if not days and not _words(form, "weekdays"):
        refuse("days", "a calendar needs a day", "write a day, a weekday, or an iCalendar text")
    return {
        "type": "calendar.put", "name": name, "days": sorted(set(days)), "weekdays": _words(form, "weekdays"),
        "source": text_of(form, "source"),
    }  # fmt: skip


@contextmanager
def _at_fields(field: str = "") -> Generator[None]:
    """Raise what is refused within at a field of the form, by default at that of its path."""
    try:
        yield
    except (InvalidValue, Refused) as error:
        errors = [replace(each, path=field or each.path.partition(".")[0]) for each in error.errors]
        raise InvalidInput(errors) from error


def _words(form: Form, name: str) -> list[str]:
    return form.get(name, "").replace(",", " ").split()


class NewCalendar:
    """Create a calendar."""

    scope = Scope.WRITE
    most_bytes: ClassVar[int] = _MOST_BYTES

    def ask(self, connection: Connection, caller: Caller, request: Request, urls: Urls) -> Dialog:
        """Return the fields of a calendar."""
        name = Field("name", "Name", required=True, help="1 to 64 of a-z, 0-9, '.', '_' and '-'. Jobs name it.")
        return Dialog(
            "New calendar", "Create the calendar", urls("calendars"),
            will=("Jobs that name it do not fire on its days, or fire only on them.",), fields=(name, *_fields(None)),
        )  # fmt: skip

    def act(self, connection: Connection, caller: Caller, form: Form, request: Request, urls: Urls) -> Done:
        """Create it."""
        name = text_of(form, "name") or ""
        if name in {each.name for each in in_snapshot(connection, list_calendars, caller.tenant)}:
            refuse("name", f"there is a calendar {name!r} already", "choose another name, or change that one")
        document = _document(connection, form, name)
        with _at_fields():
            connection.request(document, request_id_of(form))
        return Done(urls("calendar", name=name), f"Calendar {name} is created.")


class PutCalendar:
    """Replace the days of a calendar."""

    scope = Scope.WRITE
    most_bytes: ClassVar[int] = _MOST_BYTES

    def ask(self, connection: Connection, caller: Caller, request: Request, urls: Urls) -> Dialog:
        """Return its days."""
        found = calendar_of_page(connection, caller, request)
        follow = agreed(found.jobs, "uses this calendar and follows", "use this calendar and follow")
        use = (
            f"{counted(found.jobs, 'job')} {follow} the change at once." if found.jobs else "No job uses this calendar."
        )
        return Dialog(
            f"Change calendar {found.name}", "Save the days", urls("calendar", name=found.name),
            will=(use,), stays=("Runs already created do not change.",),
            fields=(as_shown(str(found.version)), *_fields(found)),
        )  # fmt: skip

    def act(self, connection: Connection, caller: Caller, form: Form, request: Request, urls: Urls) -> Done | Dialog:
        """Return what changes for the jobs that name it; replace the days once that was seen."""
        found = calendar_of_page(connection, caller, request)
        ensure_as_shown(connection, form, str(found.version), f"Another change has made version {found.version} of it.")
        name, document = found.name, _document(connection, form, found.name)
        with _at_fields():
            given = validate(CalendarPut, document)
        then = DaySet(frozenset(given.days), frozenset(given.weekdays))
        named = f"{found.version} {sorted(then.days)} {sorted(then.weekdays)}"
        seen = sha256(named.encode()).hexdigest()[:16]  # names the effect that the dialog shows
        if found.jobs and form.get("seen") != seen:
            effect = effect_of(connection, caller.tenant, found, then, page_now(connection).date())
            if effect:
                dialog = self.ask(connection, caller, request, urls).refused(form, ())
                fields = (*dialog.fields, Field("seen", "", "hidden", seen))
                return replace(dialog, will=effect, fields=fields, button="Save these days")
        with _at_fields():
            unchanged = connection.request(document, request_id_of(form)).unchanged
        words = f"Calendar {name} had these days already." if unchanged else f"Calendar {name} has the new days."
        return Done(urls("calendar", name=name), words)


class DeleteCalendar:
    """Delete a calendar that no job names."""

    scope = Scope.WRITE

    def ask(self, connection: Connection, caller: Caller, request: Request, urls: Urls) -> Dialog:
        """Return what is deleted."""
        found = calendar_of_page(connection, caller, request)
        if found.jobs:
            use = agreed(
                found.jobs, "job uses it. Remove the calendar from that job", "jobs use it. Remove it from these jobs"
            )
            return Dialog(
                f"Delete calendar {found.name}?", "", urls("calendar", name=found.name),
                will=(f"This calendar cannot be deleted while {number(found.jobs)} {use} first.",),
                sample=found.keys[:5],
            )  # fmt: skip
        days = f"Its {counted(len(found.days), 'day')} and weekdays" if found.days else "Its weekdays"
        return Dialog(
            f"Delete calendar {found.name}?", f"Delete {found.name}", urls("calendar", name=found.name),
            will=(f"{days} are deleted.", "No job uses it."), danger=True,
        )  # fmt: skip

    def act(self, connection: Connection, caller: Caller, form: Form, request: Request, urls: Urls) -> Done:
        """Delete it."""
        name = str(request.path_params["name"])
        connection.request({"type": "calendar.delete", "name": name}, request_id_of(form))
        return Done(urls("calendars"), f"Calendar {name} is deleted.")
