"""The protocol of all kinds of schedules, their bounds, and exact arithmetic on instants.

Searches compute with whole numbers, since floating-point seconds are not exact.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Protocol

from tidewheel.errors import ScheduleRefused

TICK = timedelta(microseconds=1)
"""The resolution of instants, as in PostgreSQL."""


class Schedule(Protocol):
    """A set of instants. Immutable and hashable. Every instant is aware, and results are in UTC."""

    @property
    def hashed(self) -> bool:
        """True if it depends on the job's id, by an ``H``."""
        ...

    def after(self, instant: datetime) -> datetime | None:
        """Return the first occurrence strictly later, or None."""
        ...

    def before(self, instant: datetime) -> datetime | None:
        """Return the last occurrence strictly earlier, or None."""
        ...

    def between(self, start: datetime, end: datetime) -> Iterator[datetime]:
        """Yield the occurrences later than `start` and not later than `end`, ascending."""
        ...

    def count(self, start: datetime, end: datetime, limit: int) -> tuple[int, bool]:
        """Count the occurrences of `between`: their number and True, or `limit` and False if there are more."""
        ...

    def __hash__(self) -> int: ...


def iterate(schedule: Schedule, start: datetime, end: datetime) -> Iterator[datetime]:
    """Yield the occurrences in ``(start, end]`` by repeated calls of `Schedule.after`."""
    found = schedule.after(start)
    while found is not None and found <= end:
        yield found
        found = schedule.after(found)


@dataclass(frozen=True, slots=True)
class Bounds:
    """The first and last instant that count, both inclusive; None is no bound."""

    start_at: datetime | None = None
    end_at: datetime | None = None

    def holds(self, instant: datetime) -> bool:
        """Return True if the instant lies within."""
        return (self.start_at is None or instant >= self.start_at) and (self.end_at is None or instant <= self.end_at)


UNBOUNDED = Bounds()


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def whole_second(instant: datetime) -> int:
    """Return the seconds since 1970-01-01 UTC, rounded down.

    >>> whole_second(datetime(1970, 1, 1, 0, 1, 0, 5, tzinfo=UTC))
    60
    """
    since = instant - _EPOCH
    return since.days * 86_400 + since.seconds


def next_second(instant: datetime) -> int:
    """Return the seconds since 1970-01-01 UTC, rounded up.

    >>> next_second(datetime(1970, 1, 1, 0, 1, 0, 5, tzinfo=UTC))
    61
    """
    since = instant - _EPOCH
    return since.days * 86_400 + since.seconds + (since.microseconds > 0)


def microseconds(instant: datetime) -> int:
    """Return the microseconds since 1970-01-01 UTC."""
    since = instant - _EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def at_second(second: int) -> datetime:
    """Return the instant of a whole second, in UTC."""
    return _EPOCH + timedelta(seconds=second)


def at_microsecond(microsecond: int) -> datetime | None:
    """Return the instant in UTC, or None beyond the range of a datetime."""
    try:
        return _EPOCH + timedelta(microseconds=microsecond)
    except OverflowError:
        return None


def read_instant(text: object, path: str) -> datetime:
    """Parse an RFC 3339 text, or take an aware datetime; the result is in UTC.

    >>> read_instant("2026-03-29T03:00:00+02:00", "at").isoformat()
    '2026-03-29T01:00:00+00:00'
    """
    example = "write it as RFC 3339, such as 2026-03-29T03:00:00Z"
    if isinstance(text, datetime):
        found = text
    else:
        if not isinstance(text, str) or len(text) < len("2026-03-29T03:00Z"):
            problem = f"{str(text)[:64]!r} is not an instant"
            raise ScheduleRefused(problem, example, path)
        try:
            found = datetime.fromisoformat(text)
        except ValueError:
            problem = f"{text[:64]!r} is not an instant"
            raise ScheduleRefused(problem, example, path) from None
    if found.tzinfo is None:
        problem = f"{str(text)[:64]!r} has no UTC offset"
        raise ScheduleRefused(problem, example, path)
    try:
        return found.astimezone(UTC)
    except OverflowError:
        problem = f"{str(text)[:64]!r} is beyond the calendar"
        raise ScheduleRefused(problem, example, path) from None
