"""Schedules that need no arithmetic: one instant, or none."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class Once:
    """One occurrence, at `at` (UTC)."""

    at: datetime
    hashed = False

    def after(self, instant: datetime) -> datetime | None:
        """The instant itself while it is ahead, then None."""
        return self.at if self.at > instant else None

    def before(self, instant: datetime) -> datetime | None:
        """The instant itself once it has passed, until then None."""
        return self.at if self.at < instant else None

    def between(self, start: datetime, end: datetime) -> Iterator[datetime]:
        """The instant when it lies in ``(start, end]``."""
        if start < self.at <= end:
            yield self.at

    def count(self, start: datetime, end: datetime, limit: int) -> tuple[int, bool]:
        """One or none, exactly (`limit` 0 or less admits none)."""
        found = int(start < self.at <= end)
        return min(found, max(limit, 0)), found <= limit


@dataclass(frozen=True, slots=True)
class Manual:
    """No occurrences: runs come from triggers alone."""

    hashed = False

    def after(self, instant: datetime) -> datetime | None:
        """None."""
        return None

    def before(self, instant: datetime) -> datetime | None:
        """None."""
        return None

    def between(self, start: datetime, end: datetime) -> Iterator[datetime]:
        """Nothing."""
        yield from ()

    def count(self, start: datetime, end: datetime, limit: int) -> tuple[int, bool]:
        """None, exactly."""
        return 0, True
