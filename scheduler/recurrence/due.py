"""What is due of one timer: pure, so that scheduler, intake and preview decide alike.

An occurrence is missed when it is still unfired `misfire_after` past its time. Younger ones all fire, late. Of missed
ones `fire_once` fires the latest and passes over the rest, as one span.
"""

from datetime import datetime, timedelta

from tidewheel.occurrences import Decision, Skip
from tidewheel.scheduler.recurrence.kinds import Schedule
from tidewheel.scheduler.recurrence.once import Once

MOST_AT_ONCE = 100  # occurrences of one job in one transaction, so that one job's past does not hold up the others
COUNTED = 100_000  # a longer span is recorded as "at least": counting it would take seconds

_TICK = timedelta(microseconds=1)


def decide(
    schedule: Schedule,
    scheduled_at: datetime,
    *,
    now: datetime,
    horizon: datetime,
    misfire_after: timedelta,
    most: int = MOST_AT_ONCE,
) -> Decision:
    """Decide about a timer that stands at `scheduled_at`.

    Args:
        schedule: The job's schedule.
        scheduled_at: The next unfired instant.
        now: The database's clock.
        horizon: Instants up to here become runs (now plus the lookahead).
        misfire_after: How late an occurrence may be before it is missed.
        most: How many occurrences at once; the timer stays due when there are more.
    """
    cursor: datetime | None = scheduled_at
    fires: list[datetime] = []
    skips: tuple[Skip, ...] = ()
    if scheduled_at <= now - misfire_after and not isinstance(schedule, Once):
        latest = schedule.before(now - misfire_after + _TICK) or scheduled_at
        latest = max(latest, scheduled_at)
        skips = passed_over(schedule, scheduled_at, latest - _TICK, reason="misfire")
        fires.append(latest)
        cursor = schedule.after(latest)
    while cursor is not None and cursor <= horizon and len(fires) < most:
        fires.append(cursor)
        cursor = schedule.after(cursor)
    return Decision(tuple(fires), skips, cursor)


def passed_over(schedule: Schedule, first_at: datetime, until: datetime, *, reason: str) -> tuple[Skip, ...]:
    """The occurrences from `first_at` (itself one) to `until`, inclusive, as one skip; empty where there is none."""
    if first_at > until:
        return ()
    last_at = schedule.before(until + _TICK) or first_at
    occurrences, exact = schedule.count(first_at - _TICK, until, COUNTED)
    return (Skip(reason, first_at, max(last_at, first_at), occurrences, exact),)
