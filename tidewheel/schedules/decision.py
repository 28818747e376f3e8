"""What is decided about a timer: which instants fire, which are passed over, when to look again.

Decided by pure functions in `tidewheel.schedules.decide`, written by `tidewheel.transitions.timers`.
"""

from dataclasses import dataclass
from datetime import date, datetime, timedelta
from enum import StrEnum
from typing import NamedTuple


class SkipReason(StrEnum):
    """Why an occurrence did not fire; the CHECK constraint of `skips` is compared with it."""

    OVERLAP = "overlap"
    MISFIRE = "misfire"
    PAUSED = "paused"
    EXCLUDED = "excluded"
    BOUND = "bound"
    MANUAL = "manual"
    LIMIT = "limit"


class Held(StrEnum):
    """Why a timer's `due_at` is not its next instant.

    A pause ends by a request or at `paused_until`; what was set aside waits for an edit; a fixed_delay waits for the
    end of its run.
    """

    PAUSE = "pause"
    QUARANTINED = "quarantine"
    RUN = "run"


class BackfillState(StrEnum):
    """Where a backfill stands; the CHECK constraint of `backfills` is compared with it."""

    RUNNING = "running"
    PAUSED = "paused"
    FINISHED = "finished"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Skip:
    """A span of occurrences that did not fire.

    Args:
        reason: Why.
        first_at: The first of them.
        last_at: The last.
        occurrences: How many.
        exact: False where there were more than were worth counting.
    """

    reason: SkipReason
    first_at: datetime
    last_at: datetime
    occurrences: int
    exact: bool = True


class Fire(NamedTuple):
    """An occurrence that becomes a run.

    Args:
        at: Its nominal instant: the run's identity.
        publish_at: When its message may leave: later than `at` by jitter, or where it was moved to.
        late: How late it is made up for; None where it was not missed.
        buffered: Whether it is one of several that are late at once, which then run one after another.
    """

    at: datetime
    publish_at: datetime
    late: timedelta | None = None
    buffered: bool = False


class Decision(NamedTuple):
    """What is to become of one timer.

    Args:
        fires: The occurrences that become runs now, oldest first.
        skips: What is passed over.
        next_at: The first instant that nothing is recorded of yet; None where the job has nothing left to fire.
        due_at: When to look again; None: at `next_at`.
        catch_up_end: Up to here what is due was decided to fire, and is not decided again.
        held: Why `due_at` is no instant of the schedule.
        moved: Nominal instants of moved occurrences that are done with.
        overridden: Whether overrides are left that the next decision must look at.
    """

    fires: tuple[Fire, ...] = ()
    skips: tuple[Skip, ...] = ()
    next_at: datetime | None = None
    due_at: datetime | None = None
    catch_up_end: datetime | None = None
    held: Held | None = None
    moved: tuple[datetime, ...] = ()
    overridden: bool = False


@dataclass(frozen=True, slots=True)
class DaySet:
    """The days of a calendar.

    Args:
        days: Single days.
        weekdays: Days of every week, 0 is Sunday as in cron.
        since: When days that had come were last changed; what lies before it is shifted no more.
    """

    days: frozenset[date] = frozenset()
    weekdays: frozenset[int] = frozenset()
    since: datetime | None = None

    def __contains__(self, day: date) -> bool:
        return day in self.days or day.isoweekday() % 7 in self.weekdays


@dataclass(frozen=True, slots=True)
class Override:
    """What a person has said about one coming occurrence.

    Args:
        scheduled_at: Its nominal instant.
        moved_to: When it fires instead; None where it is skipped.
        done: Whether it has fired there.
    """

    scheduled_at: datetime
    moved_to: datetime | None
    done: bool = False
