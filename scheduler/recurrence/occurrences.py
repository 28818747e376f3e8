"""The next occurrences of a cron expression, for whoever has no job at hand."""

from datetime import datetime

from tidewheel.errors import ScheduleRefused
from tidewheel.scheduler.recurrence.cron_schedule import CronSchedule, localised
from tidewheel.scheduler.recurrence.kinds import Schedule
from tidewheel.scheduler.recurrence.localise import DstGap, DstOverlap, choice
from tidewheel.scheduler.recurrence.zones import zone


def next_occurrences(
    expression: str,
    timezone: str,
    after: datetime,
    n: int,
    *,
    dst_gap: str = DstGap.SHIFT_FORWARD,
    dst_overlap: str = DstOverlap.FIRST,
    hash_key: bytes | None = None,
) -> list[datetime]:
    """The next `n` instants at which the expression says so: aware, in UTC, strictly later than `after`, ascending.

    Fewer come back only when there are no more; none, when the expression can never fire.

    Args:
        expression: Five fields, or six with seconds first; a ``CRON_TZ=`` in it outranks `timezone`.
        timezone: An IANA name.
        after: Aware; not an occurrence of the answer itself.
        n: How many; 0 or less gives none.
        dst_gap: ``shift_forward`` or ``skip``.
        dst_overlap: ``first``, ``second`` or ``both``.
        hash_key: What ``H`` is spread by.

    >>> from datetime import UTC
    >>> [str(at) for at in next_occurrences("30 2 * * *", "Europe/Berlin", datetime(2026, 3, 28, 12, tzinfo=UTC), 2)]
    ['2026-03-29 01:00:00+00:00', '2026-03-30 00:30:00+00:00']

    Raises:
        ScheduleRefused: Expression, zone, choice or instant cannot be read (a ValueError).
    """
    if after.tzinfo is None:
        problem = f"{after.isoformat()} has no offset, so it is many instants"
        raise ScheduleRefused(problem, "give an aware datetime")
    zone(timezone)
    entry = localised(
        expression,
        timezone,
        choice(dst_gap, DstGap, "dst_gap"),
        choice(dst_overlap, DstOverlap, "dst_overlap"),
        hash_key,
    )
    return following(CronSchedule((entry,)), after, n)


def following(schedule: Schedule, after: datetime, n: int) -> list[datetime]:
    """The next `n` occurrences of any schedule, strictly later than `after`."""
    found: list[datetime] = []
    occurrence = schedule.after(after)
    while occurrence is not None and len(found) < n:
        found.append(occurrence)
        occurrence = schedule.after(occurrence)
    return found
