"""What every kind of schedule answers.

From when until when a schedule's occurrences count.

Instants as whole numbers: what searches and arithmetic use inside, exact where floating seconds are not.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Protocol

from tidewheel.errors import ScheduleRefused


class Schedule(Protocol):
    """When something is to happen. Immutable and hashable; every instant in and out is aware, those out in UTC."""

    @property
    def hashed(self) -> bool:
        """Whether it depends on the job's id, by an ``H``."""
        ...

    def after(self, instant: datetime) -> datetime | None:
        """The first occurrence strictly later, or None when there is none."""
        ...

    def before(self, instant: datetime) -> datetime | None:
        """The last occurrence strictly earlier, or None when there is none."""
        ...

    def between(self, start: datetime, end: datetime) -> Iterator[datetime]:
        """The occurrences later than `start` and not later than `end`, ascending."""
        ...

    def count(self, start: datetime, end: datetime, limit: int) -> tuple[int, bool]:
        """How many `between` would give: the number and True, or `limit` and False when there are more."""
        ...

    def __hash__(self) -> int: ...


def iterate(schedule: Schedule, start: datetime, end: datetime) -> Iterator[datetime]:
    """`Schedule.between` for every kind that answers `Schedule.after`."""
    found = schedule.after(start)
    while found is not None and found <= end:
        yield found
        found = schedule.after(found)


@dataclass(frozen=True, slots=True)
class Bounds:
    """Both ends belong to it; None is no bound."""

    start_at: datetime | None = None
    end_at: datetime | None = None

    def holds(self, instant: datetime) -> bool:
        """Whether the instant lies within."""
        return (self.start_at is None or instant >= self.start_at) and (self.end_at is None or instant <= self.end_at)


UNBOUNDED = Bounds()


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def whole_second(instant: datetime) -> int:
    """Seconds since 1970-01-01 UTC, rounded down.

    >>> whole_second(datetime(1970, 1, 1, 0, 1, 0, 5, tzinfo=UTC))
    60
    """
    since = instant - _EPOCH
    return since.days * 86_400 + since.seconds


def next_second(instant: datetime) -> int:
    """Seconds since 1970-01-01 UTC, rounded up.

    >>> next_second(datetime(1970, 1, 1, 0, 1, 0, 5, tzinfo=UTC))
    61
    """
    since = instant - _EPOCH
    return since.days * 86_400 + since.seconds + (since.microseconds > 0)


def microseconds(instant: datetime) -> int:
    """Microseconds since 1970-01-01 UTC."""
    since = instant - _EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


def at_second(second: int) -> datetime:
    """The instant of a whole second, in UTC."""
    return _EPOCH + timedelta(seconds=second)


def at_microsecond(microsecond: int) -> datetime | None:
    """The instant in UTC; None beyond what a datetime can name."""
    try:
        return _EPOCH + timedelta(microseconds=microsecond)
    except OverflowError:
        return None


def read_instant(text: object, path: str) -> datetime:
    """The instant an RFC 3339 text names, in UTC.

    >>> read_instant("2026-03-29T03:00:00+02:00", "at").isoformat()
    '2026-03-29T01:00:00+00:00'

    Raises:
        ScheduleRefused: No such text, or one without an offset.
    """
    example = "write it as RFC 3339, such as 2026-03-29T03:00:00Z"
    if isinstance(text, datetime):
        found = text
    else:
        if not isinstance(text, str) or len(text) < len("2026-03-29T03:00Z"):
            problem = f"{str(text)[:64]!r} is no instant"
            raise ScheduleRefused(problem, example, path)
        try:
            found = datetime.fromisoformat(text)
        except ValueError:
            problem = f"{text[:64]!r} is no instant"
            raise ScheduleRefused(problem, example, path) from None
    if found.tzinfo is None:
        problem = f"{str(text)[:64]!r} has no offset, so it is many instants"
        raise ScheduleRefused(problem, example, path)
    try:
        return found.astimezone(UTC)
    except OverflowError:
        problem = f"{str(text)[:64]!r} is beyond the calendar"
        raise ScheduleRefused(problem, example, path) from None
