"""Where time comes from.

What is *due* is decided by the database's clock alone (`tidewheel_now()` in SQL). This module serves everything that is
not a due time: durations inside a process (monotonic) and the instants that pure functions are given.
"""

import time
from datetime import UTC, datetime, timedelta
from typing import Protocol


class Clock(Protocol):
    """One method, so that a test can bring its own."""

    def now(self) -> datetime:
        """The present instant, aware, in UTC."""
        ...


class SystemClock:
    """This machine's clock; never compared with a due time."""

    def now(self) -> datetime:
        """The present instant, aware, in UTC."""
        return datetime.fromtimestamp(time.time(), UTC)


class SettableClock:
    """A clock that stands still until it is moved; shipped for users' tests."""

    def __init__(self, start: datetime) -> None:
        self._now = start.astimezone(UTC)

    def now(self) -> datetime:
        """The instant last set."""
        return self._now

    def advance(self, by: timedelta) -> datetime:
        """Move by a duration and return the new instant."""
        self._now += by
        return self._now


def monotonic_seconds() -> float:
    """Seconds that never go back; only differences mean something."""
    return time.monotonic()
