"""The decision about one timer: which instants fire, which are skipped, and when it is due next.

`tidewheel.schedules.decide` makes decisions, `tidewheel.transitions.timers` writes them.
"""

from dataclasses import dataclass
from datetime import date, datetime, timedelta
from enum import StrEnum
from typing import NamedTuple


class SkipReason(StrEnum):
    """The reason for which an occurrence did not fire; a test compares it with the CHECK of `skips`."""

    OVERLAP = "overlap"
    MISFIRE = "misfire"
    PAUSED = "paused"
    EXCLUDED = "excluded"
    BOUND = "bound"
    MANUAL = "manual"
    CATCH_UP_LIMIT = "catch_up_limit"
    FROZEN = "frozen"


class HoldReason(StrEnum):
    """The reason for which a timer's `due_at` is not its next instant.

    A pause ends by a request or at `paused_until`. A quarantined job waits for an edit. A fixed_delay job waits for the
    end of its run. A timer that came due under a freeze waits for its thaw.
    """

    PAUSE = "pause"
    QUARANTINED = "quarantine"
    RUN = "run"
    FREEZE = "freeze"


class BackfillState(StrEnum):
    """The state of a backfill; a test compares it with the CHECK constraint of `backfills`."""

    RUNNING = "running"
    PAUSED = "paused"
    FINISHED = "finished"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Skip:
    """A span of occurrences that did not fire; not exact if counting stopped before its end."""

    reason: SkipReason
    first_at: datetime
    last_at: datetime
    occurrences: int
    exact: bool = True


class Fire(NamedTuple):
    """An occurrence that becomes a run.

    Args:
        at: Its nominal instant, which is the run's identity.
        publish_at: The earliest instant for its message: later than `at` by jitter, or the instant it was moved to.
        late: The lateness of a missed occurrence that is caught up; None if it was not missed.
        buffered: True if several are late at once. Their runs then start one after another.
    """

    at: datetime
    publish_at: datetime
    late: timedelta | None = None
    buffered: bool = False


class Decision(NamedTuple):
    """The decision about one timer.

    Args:
        fires: The occurrences that become runs now, oldest first.
        next_at: The first instant that is not recorded yet; None when the job has nothing left to fire.
        due_at: The instant at which the timer is due next; None: `next_at`.
        catch_up_end: The end of the catch-up. Occurrences up to here fire without another decision.
        hold_reason: The reason for which `due_at` is not an instant of the schedule.
        moved: Nominal instants of moved occurrences that need no further decision.
        overridden: True if overrides remain for the next decision.
    """

    fires: tuple[Fire, ...] = ()
    skips: tuple[Skip, ...] = ()
    next_at: datetime | None = None
    due_at: datetime | None = None
    catch_up_end: datetime | None = None
    hold_reason: HoldReason | None = None
    moved: tuple[datetime, ...] = ()
    overridden: bool = False


@dataclass(frozen=True, slots=True)
class DaySet:
    """The days of a calendar.

    Args:
        weekdays: Days of every week; 0 is Sunday, as in cron.
        since: The last change of days that had come. Occurrences before it are no longer shifted.
    """

    days: frozenset[date] = frozenset()
    weekdays: frozenset[int] = frozenset()
    since: datetime | None = None

    @property
    def weight(self) -> int:
        """Its bytes in memory, about."""
        return 1000 + 85 * len(self.days)

    def __contains__(self, day: date) -> bool:
        return day in self.days or day.isoweekday() % 7 in self.weekdays


@dataclass(frozen=True, slots=True)
class Override:
    """A user's change of one occurrence.

    Args:
        moved_to: The instant at which it fires instead; None if it is skipped.
        done: True if it has fired there.
    """

    scheduled_at: datetime
    moved_to: datetime | None
    done: bool = False
