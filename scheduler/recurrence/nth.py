"""The n-th occurrence from an instant: what `max_runs` becomes, once, as an `end_at`."""

from datetime import UTC, datetime, timedelta
from itertools import islice

from tidewheel.errors import ScheduleRefused
from tidewheel.scheduler.recurrence.cron_schedule import CronSchedule
from tidewheel.scheduler.recurrence.kinds import Schedule

MAX_NUMBER = 100_000_000
"""A one-second job for three years."""

MAX_WALKED = 100_000
"""Several expressions are counted by visiting each occurrence: this many take half a second, at submission only."""

_SECOND = timedelta(seconds=1)
_END = datetime.max.replace(tzinfo=UTC)


def nth_occurrence(schedule: Schedule, after: datetime, n: int) -> datetime | None:
    """The n-th occurrence strictly later than `after` (n from 1), or None when there are fewer.

    >>> from tidewheel.scheduler.recurrence.schedules import parse_schedule
    >>> daily = parse_schedule({"kind": "cron", "expressions": ["0 3 * * *"]})
    >>> str(nth_occurrence(daily, datetime(2026, 1, 1, tzinfo=UTC), 366))
    '2027-01-01 03:00:00+00:00'

    Raises:
        ScheduleRefused: `n` is less than 1, or so many that counting would take too long.
    """
    several = isinstance(schedule, CronSchedule) and len(schedule.entries) > 1
    most = MAX_WALKED if several else MAX_NUMBER
    if not 1 <= n <= most:
        problem = f"max_runs {n} is outside 1 to {most}"
        raise ScheduleRefused(problem, "write an end_at instead", "max_runs")
    if several:
        return next(islice(schedule.between(after, _END), n - 1, None), None)
    return _counted(schedule, after, n)


def _counted(schedule: Schedule, after: datetime, n: int) -> datetime | None:
    """By doubling a stretch of time until it holds so many, then halving it."""
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
