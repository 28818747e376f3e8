"""`client.calendars`: put, read and delete calendars."""

from collections.abc import Iterable, Sequence
from datetime import date

from tidewheel.control.client.connection import Connection
from tidewheel.control.reads.calendars import CalendarDetail, CalendarSummary, list_calendars, show_calendar


class Calendars:
    """Reads and requests about named sets of days."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def put(
        self,
        name: str,
        *,
        days: Iterable[date | str] = (),
        weekdays: Iterable[str | int] = (),
        source: str | None = None,
    ) -> bool:
        """Create or replace a calendar; jobs that name it follow at once.

        Args:
            weekdays: Days of every week, such as `SAT`.

        Returns:
            True if the calendar has changed.
        """
        document: dict[str, object] = {
            "type": "calendar.put",
            "name": name,
            "days": [str(day) for day in days],
            "weekdays": list(weekdays),
            "source": source,
        }
        return not self._connection.request(document).unchanged

    def delete(self, name: str) -> None:
        """Delete a calendar that no job names."""
        self._connection.request({"type": "calendar.delete", "name": name})

    def list(self) -> Sequence[CalendarSummary]:
        """Return the tenant's calendars, by name."""
        with self._connection.snapshot() as connection:
            return list_calendars(connection, self._connection.tenant)

    def get(self, name: str) -> CalendarDetail:
        """Return a calendar with its days."""
        with self._connection.snapshot() as connection:
            return show_calendar(connection, self._connection.tenant, name)
