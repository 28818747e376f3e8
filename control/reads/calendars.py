"""Read calendars: a tenant's, or one with its days and the jobs that name it."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime

from psycopg.rows import class_row

from tidewheel.errors import UnknownCalendar
from tidewheel.nouns.tenants.reads import require_tenant
from tidewheel.postgres.session import Conn, read_row, read_rows
from tidewheel.postgres.statements import Statements

_SQL = Statements("tidewheel.control")


@dataclass(frozen=True, slots=True)
class CalendarSummary:
    """A calendar as lists show it, with the numbers of its single days and of the jobs that name it."""

    name: str
    version: int
    days: int
    weekdays: Sequence[str]
    jobs: int
    source: str | None
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class CalendarDetail:
    """A calendar with its days.

    Args:
        version: Raised by every change.
        days: Single days, ascending.
        weekdays: Days of every week, such as `SAT`.
        jobs: How many jobs name it; `keys` are those of the first hundred.
    """

    name: str
    version: int
    days: Sequence[date]
    weekdays: Sequence[str]
    jobs: int
    keys: Sequence[str]
    source: str | None
    updated_at: datetime


def list_calendars(connection: Conn, tenant: str) -> list[CalendarSummary]:
    """Return the calendars of a tenant, by name; raise InvalidInput if there is no such tenant."""
    require_tenant(connection, tenant)
    return read_rows(connection, class_row(CalendarSummary), _SQL["list_calendars"], {"tenant": tenant})


def show_calendar(connection: Conn, tenant: str, name: str) -> CalendarDetail:
    """Return one calendar, or raise UnknownCalendar."""
    found = read_row(connection, class_row(CalendarDetail), _SQL["show_calendar"], {"tenant": tenant, "name": name})
    if found is None:
        raise UnknownCalendar(tenant, name, "choose one of the list of calendars")
    return found
