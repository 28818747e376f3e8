"""The database's clock as seen from here: what decides what is due, and so what lateness is measured by."""

from datetime import datetime, timedelta

from tidewheel.clock import SystemClock, monotonic_seconds
from tidewheel.postgres.session import connect
from tidewheel.postgres.statements import Statements

_READ_NOW = Statements("tidewheel.control.demo")["read_now"]


class DatabaseClock:
    """This machine's clock, corrected by its distance from the database's; nought when both are one machine.

    Args:
        ahead: How far the database's clock is ahead of this machine's.
    """

    def __init__(self, ahead: timedelta = timedelta(0)) -> None:
        self._ahead = ahead
        self._clock = SystemClock()

    def now(self) -> datetime:
        """The present instant by the database's clock, in UTC."""
        return self._clock.now() + self._ahead


def database_clock(database_url: str) -> DatabaseClock:
    """Read the database's clock once, half-way through the question's round trip.

    Raises:
        Unavailable: The database does not answer.
    """
    with connect(database_url, "tidewheel-demo", autocommit=True) as connection:
        asked = monotonic_seconds()
        row = connection.execute(_READ_NOW, binary=True).fetchone()
        took = timedelta(seconds=monotonic_seconds() - asked)
        here = SystemClock().now() - took / 2
    assert row is not None  # noqa: S101 - a SELECT without FROM
    assert isinstance(row[0], datetime)  # noqa: S101 - the function's type
    return DatabaseClock(row[0] - here)
