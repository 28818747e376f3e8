"""Actions on calendars: put one by days or an iCalendar text, with a look at its effect; delete one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import ClassVar

from starlette.requests import Request

from tidewheel.api_keys import Scope
from tidewheel.control.api.callers import Caller
from tidewheel.control.client.connection import Connection
from tidewheel.control.console.actions import Dialog, Done, Field, request_id_of, text_of
from tidewheel.control.console.calendar_effect import DaySet, effect_of
from tidewheel.control.console.calendars import calendar_of_page
from tidewheel.control.console.confirming import as_shown, ensure_as_shown
from tidewheel.control.console.forms import Form
from tidewheel.control.console.urls import Urls
from tidewheel.control.console.view import page_now
from tidewheel.control.console.words import agreed, counted, number
from tidewheel.control.reads.calendars import CalendarDetail, list_calendars
from tidewheel.errors import FieldError, InvalidInput, Refused, refuse
from tidewheel.extras import install_command, is_installed
from tidewheel.jobs.invalid import InvalidValue
from tidewheel.jobs.requests import CalendarPut
from tidewheel.jobs.validation import validate

_MOST_BYTES = 1 << 20
_ICS = "Events of an iCalendar text (.ics); recurring events are expanded ten years ahead."


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
    """Return the request that a form describes.

    Raises:
        Refused: A field does not fit.
    """
    days = _words(form, "days")
    if (ics := text_of(form, "ics")) is not None:
        if not is_installed("calendars"):
            refuse("ics", "this server reads no iCalendar", f"write days, or run on it: {install_command('calendars')}")
        from tidewheel.control.ical import days_of  # its packages are an extra

        try:
            found = days_of(ics.encode(), "ics", today=page_now(connection).date())
        except Refused as error:
            raise InvalidInput([FieldError("ics", each.problem, each.remedy) for each in error.errors]) from error
        days += [str(day) for day in sorted(found.days)]
    if not days and not _words(form, "weekdays"):
        refuse("days", "a calendar needs a day", "write a day, a weekday, or an iCalendar text")
    return {
        "type": "calendar.put", "name": name, "days": sorted(set(days)), "weekdays": _words(form, "weekdays"),
        "source": text_of(form, "source"),
    }  # fmt: skip


def _put(connection: Connection, form: Form, document: Mapping[str, object]) -> bool:
    """Put a calendar; return False if it was so already.

    Raises:
        Refused: A field does not fit.
    """
    try:
        return not connection.request(document, request_id_of(form)).unchanged
    except Refused as error:
        raise InvalidInput([_at_field(each) for each in error.errors]) from error


def _days_of(document: Mapping[str, object]) -> DaySet:
    """Return the days that a request puts.

    Raises:
        InvalidInput: A field does not fit.
    """
    try:
        given = validate(CalendarPut, document)
    except InvalidValue as error:
        raise InvalidInput([_at_field(each) for each in error.errors]) from error
    return DaySet(frozenset(given.days), frozenset(given.weekdays))


def _digest(found: CalendarDetail, then: DaySet) -> str:
    """Return what names an effect: a calendar and new days of it."""
    words = f"{found.version} {sorted(then.days)} {sorted(then.weekdays)}"
    return sha256(words.encode()).hexdigest()[:16]


def _at_field(error: FieldError) -> FieldError:
    """Return an error at the field of the form: that of a day is one of the days."""
    return FieldError(error.path.partition(".")[0], error.problem, error.remedy)


def _words(form: Form, name: str) -> list[str]:
    return form.get(name, "").replace(",", " ").split()


@dataclass(frozen=True, slots=True)
class NewCalendar:
    """Create a calendar."""

    scope = Scope.WRITE
    most_bytes: ClassVar[int] = _MOST_BYTES

    def ask(self, connection: Connection, caller: Caller, request: Request, urls: Urls) -> Dialog:
        """Return the fields of a calendar."""
        name = Field("name", "Name", required=True, help="1 to 64 of a-z, 0-9, '.', '_' and '-'. Jobs name it.")
        return Dialog(
            "New calendar", "Create the calendar", urls("calendars"), place="jobs", keep="Back",
            will=("Jobs that name it do not fire on its days, or fire only on them.",), fields=(name, *_fields(None)),
        )  # fmt: skip

    def act(self, connection: Connection, caller: Caller, form: Form, request: Request, urls: Urls) -> Done:
        """Create it."""
        name = text_of(form, "name") or ""
        with connection.snapshot() as reading:
            names = {each.name for each in list_calendars(reading, caller.tenant)}
        if name in names:
            refuse("name", f"there is a calendar {name!r} already", "choose another name, or change that one")
        _put(connection, form, _document(connection, form, name))
        return Done(urls("calendar", name=name), f"Calendar {name} is created.")


@dataclass(frozen=True, slots=True)
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
            f"Change calendar {found.name}", "Save the days", urls("calendar", name=found.name), place="jobs",
            will=(use,), stays=("Runs already created do not change.",),
            fields=(as_shown(str(found.version)), *_fields(found)),
        )  # fmt: skip

    def act(self, connection: Connection, caller: Caller, form: Form, request: Request, urls: Urls) -> Done | Dialog:
        """Return what changes for the jobs that name it; replace the days once that was seen."""
        found = calendar_of_page(connection, caller, request)
        ensure_as_shown(connection, form, str(found.version), f"Another change has made version {found.version} of it.")
        name, document = found.name, _document(connection, form, found.name)
        then = _days_of(document)
        seen = _digest(found, then)
        if found.jobs and form.get("seen") != seen:
            effect = effect_of(connection, caller.tenant, found, then, page_now(connection).date())
            if effect:
                dialog = self.ask(connection, caller, request, urls).refused(form, ())
                fields = (*dialog.fields, Field("seen", "", "hidden", seen))
                return replace(dialog, will=effect, fields=fields, button="Save these days")
        changed = _put(connection, form, document)
        words = f"Calendar {name} has the new days." if changed else f"Calendar {name} had these days already."
        return Done(urls("calendar", name=name), words)


@dataclass(frozen=True, slots=True)
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
                f"Delete calendar {found.name}?", "", urls("calendar", name=found.name), place="jobs",
                will=(f"This calendar cannot be deleted while {number(found.jobs)} {use} first.",),
                sample=found.keys[:5], keep="Back",
            )  # fmt: skip
        days = f"Its {counted(len(found.days), 'day')} and weekdays" if found.days else "Its weekdays"
        return Dialog(
            f"Delete calendar {found.name}?", f"Delete {found.name}", urls("calendar", name=found.name), place="jobs",
            will=(f"{days} are deleted.", "No job uses it."), danger=True,
        )  # fmt: skip

    def act(self, connection: Connection, caller: Caller, form: Form, request: Request, urls: Urls) -> Done:
        """Delete it."""
        name = str(request.path_params["name"])
        connection.request({"type": "calendar.delete", "name": name}, request_id_of(form))
        return Done(urls("calendars"), f"Calendar {name} is deleted.")
