"""Schedules, and the simple kinds: once, manual, interval and fixed delay.

Searches compute with whole numbers, since floating-point seconds are not exact.

An interval's occurrences are ``anchor + n * every``, never computed from the last one, so nothing drifts. The next
occurrence of a fixed delay depends on the end of the last run, so nothing is computed ahead.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Protocol

from tidewheel.errors import ScheduleRefused

TICK = timedelta(microseconds=1)
"""The resolution of instants, as in PostgreSQL."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


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
        problem = f"{str(text)[:64]!r} is out of range"
        raise ScheduleRefused(problem, example, path) from None


@dataclass(frozen=True, slots=True)
class Once:
    """One occurrence, at `at` (UTC)."""

    at: datetime
    hashed = False

    def after(self, instant: datetime) -> datetime | None:
        """Return the instant while it is ahead, then None."""
        return self.at if self.at > instant else None

    def before(self, instant: datetime) -> datetime | None:
        """Return the instant once it has passed, until then None."""
        return self.at if self.at < instant else None

    def between(self, start: datetime, end: datetime) -> Iterator[datetime]:
        """Yield the instant if it lies in ``(start, end]``."""
        if start < self.at <= end:
            yield self.at

    def count(self, start: datetime, end: datetime, limit: int) -> tuple[int, bool]:
        """Count one or none, exactly; with a `limit` of 0 or less none."""
        found = int(start < self.at <= end)
        return min(found, max(limit, 0)), found <= limit


class _WithoutOccurrences:
    """A schedule whose occurrences cannot be computed."""

    __slots__ = ()

    def after(self, instant: datetime) -> datetime | None:
        """Return None."""
        return None

    before = after

    def between(self, start: datetime, end: datetime) -> Iterator[datetime]:
        """Yield nothing."""
        yield from ()

    def count(self, start: datetime, end: datetime, limit: int) -> tuple[int, bool]:
        """Count none, exactly."""
        return 0, True


@dataclass(frozen=True, slots=True)
class Manual(_WithoutOccurrences):
    """A schedule without occurrences of its own: runs come from triggers, or from parents if `follows`."""

    follows: bool = False
    hashed = False


@dataclass(frozen=True, slots=True)
class Interval:
    """Occurrences at ``anchor + n * every``, computed by arithmetic.

    Args:
        anchor_fires: True if ``n`` begins with 0 instead of 1: the user named the anchor, so it is an occurrence too.
    """

    interval_us: int
    anchor: datetime
    anchor_fires: bool = False
    bounds: Bounds = UNBOUNDED
    hashed = False

    def after(self, instant: datetime) -> datetime | None:
        """Return the first occurrence strictly later; None past the end, or beyond the range of a datetime."""
        anchor = microseconds(self.anchor)
        number = max((microseconds(instant) - anchor) // self.interval_us + 1, self._first())
        last = self._last()
        return at_microsecond(anchor + number * self.interval_us) if last is None or number <= last else None

    def before(self, instant: datetime) -> datetime | None:
        """Return the last occurrence strictly earlier; None before the first."""
        number, last = self._until(microseconds(instant) - 1), self._last()
        number = number if last is None else min(number, last)
        return self._at(number) if number >= self._first() else None

    def between(self, start: datetime, end: datetime) -> Iterator[datetime]:
        """Yield the occurrences in ``(start, end]``."""
        return iterate(self, start, end)

    def count(self, start: datetime, end: datetime, limit: int) -> tuple[int, bool]:
        """Count the occurrences in ``(start, end]``, up to `limit`; False if there are more."""
        last = self._last()
        to = self._until(microseconds(end))
        to = to if last is None else min(to, last)
        found = max(0, to - max(self._until(microseconds(start)) + 1, self._first()) + 1)
        return (found, True) if found <= limit else (max(limit, 0), False)

    def _until(self, microsecond: int) -> int:
        """Return the number of the last occurrence at or before."""
        return (microsecond - microseconds(self.anchor)) // self.interval_us

    def _first(self) -> int:
        lowest = 0 if self.anchor_fires else 1
        start_at = self.bounds.start_at
        return lowest if start_at is None else max(lowest, self._until(microseconds(start_at) - 1) + 1)

    def _last(self) -> int | None:
        return None if self.bounds.end_at is None else self._until(microseconds(self.bounds.end_at))

    def _at(self, number: int) -> datetime | None:
        return at_microsecond(microseconds(self.anchor) + number * self.interval_us)


@dataclass(frozen=True, slots=True)
class FixedDelay(_WithoutOccurrences):
    """One occurrence at once, and each later one `interval_us` after the end of the last run by the timer.

    Its occurrences are the recorded ones. As a schedule it has none, so it has no catch-up and no backfill. A run may
    set the time to the next occurrence, from `min_us` to `max_us`; None is `interval_us`.
    """

    interval_us: int
    bounds: Bounds = UNBOUNDED
    min_us: int | None = None
    max_us: int | None = None
    hashed = False

    @property
    def delays(self) -> tuple[timedelta, timedelta]:
        """The shortest and the longest time to the next occurrence."""
        least, most = self.min_us or self.interval_us, self.max_us or self.interval_us
        return least * TICK, most * TICK

    def due(self, accepted: datetime, ended: datetime | None) -> datetime | None:
        """Return the next occurrence; None past the end. Before the first run `ended` is None."""
        instant = accepted if ended is None else ended + timedelta(microseconds=self.interval_us)
        if self.bounds.start_at is not None:
            instant = max(instant, self.bounds.start_at)
        return instant if self.bounds.holds(instant) else None
