"""The simple kinds of schedules: once, manual, interval and fixed delay.

An interval's occurrences are ``anchor + n * every``, never computed from the last one, so nothing drifts. The next
occurrence of a fixed delay depends on the end of the last run, so nothing is computed ahead.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from tidewheel.schedules.schedule import UNBOUNDED, Bounds, at_microsecond, iterate, microseconds


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


@dataclass(frozen=True, slots=True)
class Manual:
    """A schedule without occurrences of its own: runs come from triggers, or from parents if `follows`."""

    follows: bool = False
    hashed = False

    def after(self, instant: datetime) -> datetime | None:
        """Return None."""
        return None

    def before(self, instant: datetime) -> datetime | None:
        """Return None."""
        return None

    def between(self, start: datetime, end: datetime) -> Iterator[datetime]:
        """Yield nothing."""
        yield from ()

    def count(self, start: datetime, end: datetime, limit: int) -> tuple[int, bool]:
        """Count none, exactly."""
        return 0, True


@dataclass(frozen=True, slots=True)
class Interval:
    """Occurrences at ``anchor + n * every``, computed by arithmetic.

    Args:
        anchor_fires: True if ``n`` begins with 0 instead of 1: the user named the anchor, so it is an occurrence too.
        bounds: Both ends belong to it.
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
class FixedDelay:
    """One occurrence at once, and each later one `interval_us` after the end of the last run by the timer.

    Its occurrences are the recorded ones. As a schedule it has none, so it has no catch-up and no backfill.

    Args:
        bounds: Both ends belong to it.
    """

    interval_us: int
    bounds: Bounds = UNBOUNDED
    hashed = False

    def due(self, accepted: datetime, ended: datetime | None) -> datetime | None:
        """Return the next occurrence; None past the end. Before the first run `ended` is None."""
        instant = accepted if ended is None else ended + timedelta(microseconds=self.interval_us)
        if self.bounds.start_at is not None:
            instant = max(instant, self.bounds.start_at)
        return instant if self.bounds.holds(instant) else None

    def after(self, instant: datetime) -> datetime | None:
        """Return None; see `due`."""
        return None

    def before(self, instant: datetime) -> datetime | None:
        """Return None; see `due`."""
        return None

    def between(self, start: datetime, end: datetime) -> Iterator[datetime]:
        """Yield nothing; see `due`."""
        yield from ()

    def count(self, start: datetime, end: datetime, limit: int) -> tuple[int, bool]:
        """Count none; see `due`."""
        return 0, True
