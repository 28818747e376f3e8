"""From when until when a schedule's occurrences count."""

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class Bounds:
    """Both ends belong to it; None is no bound."""

    start_at: datetime | None = None
    end_at: datetime | None = None

    def holds(self, instant: datetime) -> bool:
        """Whether the instant lies within."""
        return (self.start_at is None or instant >= self.start_at) and (self.end_at is None or instant <= self.end_at)


UNBOUNDED = Bounds()
