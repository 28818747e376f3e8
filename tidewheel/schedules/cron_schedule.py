"""One or several cron expressions in a zone, within bounds."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from itertools import islice

from tidewheel.schedules.cron_parser import parse_cron, uses_hash
from tidewheel.schedules.schedule import UNBOUNDED, Bounds, at_second, iterate, next_second, whole_second
from tidewheel.schedules.zoned_cron import DstGap, DstOverlap, ZonedCron
from tidewheel.schedules.zones import FOREVER


@dataclass(frozen=True, slots=True)
class CronSchedule:
    """The union of its expressions' occurrences: an instant of two of them is one occurrence.

    Args:
        entries: Expressions in their zones, shared among all schedules that have them.
        bounds: Both ends belong to it.
    """

    entries: tuple[ZonedCron, ...]
    bounds: Bounds = UNBOUNDED
    hashed: bool = False

    def after(self, instant: datetime) -> datetime | None:
        """Return the first occurrence strictly later; None past the end, or past the year `LAST_YEAR`."""
        second = whole_second(instant) + 1
        start_at = self.bounds.start_at
        if start_at is not None:
            second = max(second, next_second(start_at))
        found = min(entry.following(second) for entry in self.entries)
        if found == FOREVER:
            return None
        occurrence = at_second(found)
        end_at = self.bounds.end_at
        return occurrence if end_at is None or occurrence <= end_at else None

    def before(self, instant: datetime) -> datetime | None:
        """Return the last occurrence strictly earlier; None before the first."""
        second = next_second(instant) - 1
        end_at = self.bounds.end_at
        if end_at is not None:
            second = min(second, whole_second(end_at))
        found = max(entry.preceding(second) for entry in self.entries)
        if found == -FOREVER:
            return None
        occurrence = at_second(found)
        start_at = self.bounds.start_at
        return occurrence if start_at is None or occurrence >= start_at else None

    def between(self, start: datetime, end: datetime) -> Iterator[datetime]:
        """Yield the occurrences in ``(start, end]``."""
        return iterate(self, start, end)

    def count(self, start: datetime, end: datetime, limit: int) -> tuple[int, bool]:
        """Count the occurrences in ``(start, end]``, up to `limit`; False if there are more.

        One expression is counted month by month, several by visiting at most `limit` occurrences.
        """
        if len(self.entries) == 1:
            first, last = whole_second(start) + 1, whole_second(end)
            if self.bounds.start_at is not None:
                first = max(first, next_second(self.bounds.start_at))
            if self.bounds.end_at is not None:
                last = min(last, whole_second(self.bounds.end_at))
            found = self.entries[0].count(first, last) if first <= last else 0
        else:
            found = sum(1 for _ in islice(self.between(start, end), max(limit, 0) + 1))
        return (found, True) if found <= limit else (max(limit, 0), False)


def zoned_cron(
    expression: str, timezone: str, gap: DstGap, overlap: DstOverlap, hash_key: bytes | None = None
) -> ZonedCron:
    """Return the expression in its zone: one object for the same arguments.

    An inline zone of the expression is preferred to `timezone`.
    """
    return _zoned_cron(expression, timezone, gap, overlap, hash_key if uses_hash(expression) else None)


@lru_cache(maxsize=8192)  # tens of thousands of jobs share a few hundred expressions; one search serves all of them
def _zoned_cron(expression: str, timezone: str, gap: DstGap, overlap: DstOverlap, hash_key: bytes | None) -> ZonedCron:
    fields = parse_cron(expression, hash_key=hash_key)
    return ZonedCron(fields, fields.timezone or timezone, gap, overlap)
