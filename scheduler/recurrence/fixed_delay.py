"""A fixed pause between runs: what comes next depends on when the last one ended, so nothing is computed ahead."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from tidewheel.scheduler.recurrence.bounds import UNBOUNDED, Bounds


@dataclass(frozen=True, slots=True)
class FixedDelay:
    """The first occurrence at once, each later one `every_us` after the end of the last timer-made run.

    Its occurrences are those recorded: asked as a schedule it knows none, so it has no catch-up and no backfill.

    Args:
        every_us: Microseconds.
        bounds: Both ends belong to it.
    """

    every_us: int
    bounds: Bounds = UNBOUNDED
    hashed = False

    def due(self, accepted: datetime, ended: datetime | None) -> datetime | None:
        """The next occurrence; None past the end.

        Args:
            accepted: When the schedule was first accepted.
            ended: When the last timer-made run became terminal; None before the first one.
        """
        instant = accepted if ended is None else ended + timedelta(microseconds=self.every_us)
        if self.bounds.start_at is not None:
            instant = max(instant, self.bounds.start_at)
        return instant if self.bounds.holds(instant) else None

    def after(self, instant: datetime) -> datetime | None:
        """None: see `due`."""
        return None

    def before(self, instant: datetime) -> datetime | None:
        """None: see `due`."""
        return None

    def between(self, start: datetime, end: datetime) -> Iterator[datetime]:
        """Nothing: see `due`."""
        yield from ()

    def count(self, start: datetime, end: datetime, limit: int) -> tuple[int, bool]:
        """None, exactly: see `due`."""
        return 0, True
