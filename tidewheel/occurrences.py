"""What is decided about a timer: which instants fire, which are passed over, which comes next.

Decided by pure functions in `tidewheel.scheduler.recurrence.due`, written by `tidewheel.transitions.timers`.
"""

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class Skip:
    """A span of occurrences that did not fire.

    Args:
        reason: `misfire`, `paused`, …: the reasons of the `skips` table.
        first_at: The first of them.
        last_at: The last.
        occurrences: How many.
        exact: False where there were more than were worth counting.
    """

    reason: str
    first_at: datetime
    last_at: datetime
    occurrences: int
    exact: bool = True


@dataclass(frozen=True, slots=True)
class Decision:
    """What is to become of one timer.

    Args:
        fires: The instants that become runs now, oldest first.
        skips: What is passed over.
        next_at: The next unfired instant; None where there is none left.
    """

    fires: tuple[datetime, ...] = ()
    skips: tuple[Skip, ...] = ()
    next_at: datetime | None = None
