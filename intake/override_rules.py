"""The rules of overrides: which occurrences a client may skip, move or restore.

An occurrence is upcoming while its instant, or the time it was moved to, is in the future: no run of it has started.
The rules are pure, on facts that `override_rows.py` reads under the job's lock.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from tidewheel.errors import FieldError, InvalidInput
from tidewheel.intake.locks import JobRow
from tidewheel.jobs.values import format_timestamp
from tidewheel.schedules.calendars import is_occurrence
from tidewheel.schedules.decision import Override
from tidewheel.schedules.schedule import FixedDelay, Manual
from tidewheel.schedules.timer_state import TimerState

MAX_OVERRIDES = 1_000  # upcoming ones of one job: the scheduler reads each of them when the job fires
MAX_MOVE = timedelta(days=400)  # from the occurrence's own instant; equal to the longest delay of a trigger

_MAX_SHOWN = 3


@dataclass(frozen=True, slots=True)
class UpcomingOccurrences:
    """The upcoming occurrences of a job."""

    job: JobRow
    state: TimerState
    overrides: Mapping[datetime, Override]
    now: datetime

    @property
    def computed(self) -> bool:
        """True if the schedule has instants that can be computed ahead."""
        return not isinstance(self.state.schedule, FixedDelay | Manual)

    @property
    def next_run(self) -> datetime | None:
        """The time of the next run, unless the timer is on hold."""
        following = self.state.live.after(self.now)
        moved = [to for to in self.state.moved.values() if to > self.now]
        return min([*moved, following] if following is not None else moved, default=None)

    def skipped(self, at: datetime) -> Override:
        """Return the override that skips an occurrence."""
        self._ensure_upcoming(at)
        return Override(at, None)

    def moved(self, at: datetime, to: datetime) -> Override:
        """Return the override that moves an occurrence."""
        self._ensure_upcoming(at)
        if to == at:
            known = self.overrides.get(at)
            remedy = "undo the skip or the move (unskip) to let it fire then" if known else "it fires then as it is"
            problem = f"{format_timestamp(to)} is the occurrence's own instant"
            raise _refused(problem, remedy, path="to")
        if to <= self.now:
            raise _refused(self._passed(to), "write a later instant", path="to")
        if abs(to - at) > MAX_MOVE:
            problem = f"{format_timestamp(to)} is more than {MAX_MOVE.days} days from the occurrence"
            raise _refused(problem, "skip it, and trigger the job then", path="to")
        return Override(at, to)

    def restored(self, at: datetime) -> Override | None:
        """Return the override that remains when one is withdrawn; None if none does.

        An occurrence whose own instant has passed meanwhile is moved to now: it fires at once.
        """
        known = self.overrides.get(at)
        if known is None:
            problem = f"{format_timestamp(at)} is neither skipped nor moved, or has passed"
            raise _refused(problem, self._overridden())
        self._ensure_not_fired(known)
        return None if at > self.now else Override(at, self.now)

    def _ensure_upcoming(self, at: datetime) -> None:
        if not self.computed:
            kind = "manual" if isinstance(self.state.schedule, Manual) else "fixed_delay"
            problem = f"the schedule is {kind}: its occurrences are not known ahead"
            raise _refused(problem, "pause the job" if kind == "fixed_delay" else "cancel a run instead")
        known = self.overrides.get(at)
        if known is not None and known.moved_to is not None:
            self._ensure_not_fired(known)
        elif at <= self.now:
            following = self.state.effective.after(self.now)
            remedy = "no occurrence is upcoming" if following is None else f"the next is {format_timestamp(following)}"
            raise _refused(self._passed(at), remedy)
        if at > self.now and not is_occurrence(self.state.effective, at):
            raise _refused(self._no_occurrence(at), self._nearest(at))
        if known is None and len(self.overrides) >= MAX_OVERRIDES:
            problem = f"{len(self.overrides)} upcoming occurrences of this job are skipped or moved already"
            raise _refused(problem, "pause the job until then, or exclude a calendar")

    def _ensure_not_fired(self, known: Override) -> None:
        if known.moved_to is not None and known.moved_to <= self.now:
            moved = f"{format_timestamp(known.scheduled_at)} was moved to {format_timestamp(known.moved_to)}"
            problem = f"{moved}, which has passed"
            raise _refused(problem, "cancel its run, or name an upcoming occurrence")

    def _passed(self, instant: datetime) -> str:
        return f"{format_timestamp(instant)} has passed: it is {format_timestamp(self.now)} by the database's clock"

    def _no_occurrence(self, at: datetime) -> str:
        problem = f"{format_timestamp(at)} is not an occurrence"
        return f"{problem}: a calendar excludes its day" if is_occurrence(self.state.schedule, at) else problem

    def _nearest(self, at: datetime) -> str:
        earlier, later = self.state.effective.before(at), self.state.effective.after(at)
        if earlier is not None and earlier <= self.now:
            earlier = None
        if earlier is not None and later is not None:
            return f"the nearest are {format_timestamp(earlier)} and {format_timestamp(later)}"
        if later is not None:
            return f"the next is {format_timestamp(later)}"
        return "no occurrence is upcoming" if earlier is None else f"the last is {format_timestamp(earlier)}"

    def _overridden(self) -> str:
        overridden = [each for each in self.overrides.values() if each.moved_to is None or each.moved_to > self.now]
        if not overridden:
            return "no upcoming occurrence of this job is"
        more = f" and {len(overridden) - _MAX_SHOWN} more" if len(overridden) > _MAX_SHOWN else ""
        return f"those that are: {', '.join(map(_override_text, overridden[:_MAX_SHOWN]))}{more}"


def _override_text(override: Override) -> str:
    at = format_timestamp(override.scheduled_at)
    return f"{at} (skipped)" if override.moved_to is None else f"{at} (moved to {format_timestamp(override.moved_to)})"


def _refused(problem: str, remedy: str, *, path: str = "at") -> InvalidInput:
    return InvalidInput([FieldError(path, problem, remedy)])
