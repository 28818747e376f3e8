"""Occurrences over ranges: a past range by job versions, the n-th from an instant, and the next few.

A version is in force at T when ``after < T <= until``, so the spans of several versions share no instant. An iteration
can stop at any instant and continue there. `nth_occurrence` turns `max_runs` into an `end_at` once.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Protocol
from uuid import UUID

from tidewheel.errors import ScheduleRefused
from tidewheel.schedules.cron_schedule import CronSchedule
from tidewheel.schedules.decision import Policies, policies_from_text
from tidewheel.schedules.parse import schedule_from_text
from tidewheel.schedules.schedule import TICK, Schedule
from tidewheel.schedules.timer_state import DaySets, effective_schedule

MAX_NUMBER = 100_000_000
"""A one-second job for three years."""

MAX_SCANNED = 100_000
"""Occurrences of several expressions are counted one by one: this many take half a second, at submission only."""

_SECOND = timedelta(seconds=1)
_END = datetime.max.replace(tzinfo=UTC)


class Version(Protocol):
    """The part of a job version's row that its occurrences depend on."""

    @property
    def version(self) -> int: ...  # noqa: D102 - the column of that name, as below
    @property
    def schedule_json(self) -> str: ...  # noqa: D102
    @property
    def policy_json(self) -> str: ...  # noqa: D102
    @property
    def after(self) -> datetime | None: ...  # noqa: D102
    @property
    def until(self) -> datetime | None: ...  # noqa: D102


@dataclass(frozen=True, slots=True)
class VersionSpan:
    """The part of a range in which one version is in force: after its start, up to its end."""

    version: int
    nominal: Schedule
    schedule: Schedule
    start: datetime
    end: datetime


@dataclass(frozen=True, slots=True)
class Range:
    """A past range of one job.

    Args:
        spans: By time, ascending.

    >>> from datetime import UTC
    >>> from tidewheel.schedules.parse import parse_schedule
    >>> daily = parse_schedule({"kind": "cron", "expressions": ["0 8 * * *"]})
    >>> of = Range((VersionSpan(1, daily, daily, datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 31, tzinfo=UTC)),))
    >>> of.count(100), of.count(7)
    ((30, True), (7, False))
    >>> [str(at.date()) for at, _ in of.iterate(datetime(2026, 1, 3, tzinfo=UTC), newest_first=True)]
    ['2026-01-02', '2026-01-01']
    """

    spans: tuple[VersionSpan, ...]

    def count(self, limit: int) -> tuple[int, bool]:
        """Count the occurrences, up to `limit`; False if there are more, or more than can be counted."""
        found = 0
        for span in self.spans:
            more, exact = span.schedule.count(span.start, span.end, limit - found)
            found += more
            if not exact:
                return found, False
        return found, True

    def iterate(self, cursor: datetime | None, *, newest_first: bool) -> Iterator[tuple[datetime, int]]:
        """Yield the occurrences with their versions, from a cursor on or from the beginning."""
        for span in reversed(self.spans) if newest_first else self.spans:
            found = _descending(span, cursor) if newest_first else _ascending(span, cursor)
            for at in found:
                yield at, span.version


def range_of(
    job_id: UUID, tenant: str, versions: Sequence[Version], day_sets: DaySets, *, first: datetime, last: datetime
) -> Range:
    """Build the range from `first` to `last`, both inclusive.

    Args:
        versions: The versions in force, by time, ascending.
        day_sets: At least the calendars that `calendars_of` names, as far as they exist.

    Raises:
        ScheduleRefused: A version cannot be read, or names a calendar that was deleted.
    """
    spans: list[VersionSpan] = []
    for each in versions:
        start = first - TICK if each.after is None else max(each.after, first - TICK)
        end = last if each.until is None else min(each.until, last)
        if start < end:
            nominal = schedule_from_text(each.schedule_json, job_id)
            policies = policies_from_text(each.policy_json)
            _ensure_there(each.version, tenant, policies, day_sets)
            effective = effective_schedule(nominal, policies, tenant, day_sets)
            spans.append(VersionSpan(each.version, nominal, effective, start, end))
    return Range(tuple(spans))


def calendars_of(tenant: str, versions: Sequence[Version]) -> set[tuple[str, str]]:
    """Return the calendars that these versions name, as pairs of tenant and name."""
    return {(tenant, name) for each in versions for name in policies_from_text(each.policy_json).calendars}


def _ensure_there(version: int, tenant: str, policies: Policies, day_sets: DaySets) -> None:
    for name in policies.calendars:
        if (tenant, name) not in day_sets:
            problem = f"version {version} names the calendar {name!r}, which was deleted"
            raise ScheduleRefused(problem, "create that calendar again, or choose a range without that version", "from")


def _ascending(span: VersionSpan, cursor: datetime | None) -> Iterator[datetime]:
    start = span.start if cursor is None else max(span.start, cursor - TICK)
    return span.schedule.between(start, span.end)


def _descending(span: VersionSpan, cursor: datetime | None) -> Iterator[datetime]:
    end = span.end if cursor is None else min(span.end, cursor)
    found = span.schedule.before(end + TICK) if end > span.start else None
    while found is not None and found > span.start:
        yield found
        found = span.schedule.before(found)


def nth_occurrence(schedule: Schedule, after: datetime, n: int) -> datetime | None:
    """Return the n-th occurrence strictly later than `after` (n from 1), or None if there are fewer.

    >>> from tidewheel.schedules.parse import parse_schedule
    >>> daily = parse_schedule({"kind": "cron", "expressions": ["0 3 * * *"]})
    >>> str(nth_occurrence(daily, datetime(2026, 1, 1, tzinfo=UTC), 366))
    '2027-01-01 03:00:00+00:00'

    Raises:
        ScheduleRefused: `n` is less than 1, or so many that counting would take too long.
    """
    several = isinstance(schedule, CronSchedule) and len(schedule.entries) > 1
    maximum = MAX_SCANNED if several else MAX_NUMBER
    if not 1 <= n <= maximum:
        problem = f"max_runs {n} is outside 1 to {maximum}"
        raise ScheduleRefused(problem, "write an end_at instead", "max_runs")
    if several:
        return next(islice(schedule.between(after, _END), n - 1, None), None)
    return _nth_by_count(schedule, after, n)


def _nth_by_count(schedule: Schedule, after: datetime, n: int) -> datetime | None:
    """Find the n-th occurrence by count: double a span of time until it holds so many, then bisect it."""
    low, width = after, _SECOND
    while schedule.count(after, _later(low, width), n)[0] < n:
        following = schedule.after(_later(low, width))
        if following is None:
            return None
        low, width = following - _SECOND, width * 2
    high = _later(low, width)
    while high - low > _SECOND:  # no schedule has two occurrences within a second
        middle = low + (high - low) // 2
        if schedule.count(after, middle, n)[0] < n:
            low = middle
        else:
            high = middle
    return schedule.after(low)


def _later(instant: datetime, by: timedelta) -> datetime:
    return instant + by if by < _END - instant else _END


def occurrences_after(schedule: Schedule, after: datetime, n: int) -> list[datetime]:
    """Return the next `n` occurrences of any schedule, strictly later than `after`."""
    found: list[datetime] = []
    occurrence = schedule.after(after)
    while occurrence is not None and len(found) < n:
        found.append(occurrence)
        occurrence = schedule.after(occurrence)
    return found
