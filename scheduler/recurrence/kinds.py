"""What every kind of schedule answers."""

from collections.abc import Iterator
from datetime import datetime
from typing import Protocol


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


def walk(schedule: Schedule, start: datetime, end: datetime) -> Iterator[datetime]:
    """`Schedule.between` for every kind that answers `Schedule.after`."""
    found = schedule.after(start)
    while found is not None and found <= end:
        yield found
        found = schedule.after(found)
