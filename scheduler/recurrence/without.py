"""A schedule without some of its occurrences: those that a person has skipped or moved."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from tidewheel.scheduler.recurrence.kinds import Schedule, walk

_TICK = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Without:
    """What is left of a schedule.

    Args:
        schedule: The schedule.
        left_out: Instants that do not count, a handful.
    """

    schedule: Schedule
    left_out: frozenset[datetime]

    @property
    def hashed(self) -> bool:
        """As the schedule."""
        return self.schedule.hashed

    def after(self, instant: datetime) -> datetime | None:
        """The first occurrence strictly later that is not left out."""
        found = self.schedule.after(instant)
        while found is not None and found in self.left_out:
            found = self.schedule.after(found)
        return found

    def before(self, instant: datetime) -> datetime | None:
        """The last occurrence strictly earlier that is not left out."""
        found = self.schedule.before(instant)
        while found is not None and found in self.left_out:
            found = self.schedule.before(found)
        return found

    def between(self, start: datetime, end: datetime) -> Iterator[datetime]:
        """The occurrences in ``(start, end]`` that are not left out."""
        return walk(self, start, end)

    def count(self, start: datetime, end: datetime, limit: int) -> tuple[int, bool]:
        """How many lie in ``(start, end]``, up to `limit`; False when there are more."""
        gone = sum(start < at <= end and is_occurrence(self.schedule, at) for at in self.left_out)
        found, exact = self.schedule.count(start, end, limit + gone)
        return (found - gone, True) if exact else (max(limit, 0), False)


def is_occurrence(schedule: Schedule, at: datetime) -> bool:
    """Whether an instant is one of the schedule's."""
    return schedule.after(at - _TICK) == at
