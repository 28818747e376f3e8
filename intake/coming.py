"""What may be said about the coming occurrences of a locked job: pure, on facts read under its lock.

An occurrence is still to come while its instant is ahead, or the time it was moved to: then no run of it has begun.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from tidewheel.errors import FieldError, InvalidInput
from tidewheel.intake.locks import JobRow
from tidewheel.jobs.timestamps import format_timestamp
from tidewheel.occurrences import Override
from tidewheel.scheduler.recurrence.fixed_delay import FixedDelay
from tidewheel.scheduler.recurrence.once import Manual
from tidewheel.scheduler.recurrence.standing import Standing
from tidewheel.scheduler.recurrence.without import is_occurrence

MOST_OVERRIDES = 1_000  # of one job that are still to come: each is looked at whenever the job fires
FARTHEST_MOVE = timedelta(days=400)  # from the occurrence's own instant; as far as a trigger may be delayed

_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Coming:
    """A job's occurrences that are still to come.

    Args:
        job: The job, locked.
        where: What its version in force says.
        overrides: What was said about those that are still to come, by instant.
        now: The database's clock.
    """

    job: JobRow
    where: Standing
    overrides: Mapping[datetime, Override]
    now: datetime

    @property
    def computed(self) -> bool:
        """Whether it has instants that can be known ahead."""
        return not isinstance(self.where.schedule, FixedDelay | Manual)

    @property
    def next_run(self) -> datetime | None:
        """When the job is to run next, if nothing holds it."""
        following = self.where.live.after(self.now)
        moved = [to for to in self.where.moved.values() if to > self.now]
        return min([*moved, following] if following is not None else moved, default=None)

    def skipped(self, at: datetime) -> Override:
        """What is said when an occurrence is left out.

        Raises:
            InvalidInput: It cannot be.
        """
        self._ensure_to_come(at)
        return Override(at, None)

    def moved(self, at: datetime, to: datetime) -> Override:
        """What is said when an occurrence is moved.

        Raises:
            InvalidInput: It cannot be, or not to there.
        """
        self._ensure_to_come(at)
        if to == at:
            known = self.overrides.get(at)
            remedy = "send job.unskip to let it fire then" if known else "it fires then as it is"
            problem = f"{format_timestamp(to)} is the occurrence's own instant"
            raise _refused(problem, remedy, path="to")
        if to <= self.now:
            raise _refused(self._passed(to), "write a later instant", path="to")
        if abs(to - at) > FARTHEST_MOVE:
            problem = f"{format_timestamp(to)} is more than {FARTHEST_MOVE.days} days from the occurrence"
            raise _refused(problem, "skip it, and trigger the job then", path="to")
        return Override(at, to)

    def restored(self, at: datetime) -> Override | None:
        """What is still said when an override is taken back.

        One whose own instant has passed meanwhile is moved to now: it fires at once.

        Raises:
            InvalidInput: There is none.
        """
        known = self.overrides.get(at)
        if known is None:
            problem = f"{format_timestamp(at)} is neither skipped nor moved, or has passed"
            raise _refused(problem, self._those_there_are())
        self._ensure_not_fired(known)
        return None if at > self.now else Override(at, self.now)

    def _ensure_to_come(self, at: datetime) -> None:
        if not self.computed:
            kind = "manual" if isinstance(self.where.schedule, Manual) else "fixed_delay"
            problem = f"the schedule is {kind}: it has no occurrences that are known ahead"
            raise _refused(problem, "pause the job" if kind == "fixed_delay" else "cancel a run instead")
        known = self.overrides.get(at)
        if known is not None and known.moved_to is not None:
            self._ensure_not_fired(known)
        elif at <= self.now:
            following = self.where.effective.after(self.now)
            remedy = "none is to come" if following is None else f"the next is {format_timestamp(following)}"
            raise _refused(self._passed(at), remedy)
        if at > self.now and not is_occurrence(self.where.effective, at):
            raise _refused(self._no_occurrence(at), self._nearest(at))
        if known is None and len(self.overrides) >= MOST_OVERRIDES:
            problem = f"{len(self.overrides)} coming occurrences of this job are skipped or moved already"
            raise _refused(problem, "pause the job until then, or exclude a calendar")

    def _ensure_not_fired(self, known: Override) -> None:
        if known.moved_to is not None and known.moved_to <= self.now:
            moved = f"{format_timestamp(known.scheduled_at)} was moved to {format_timestamp(known.moved_to)}"
            problem = f"{moved}, which has passed"
            raise _refused(problem, "cancel its run, or name one that is still to come")

    def _passed(self, instant: datetime) -> str:
        return f"{format_timestamp(instant)} has passed: it is {format_timestamp(self.now)} by the database's clock"

    def _no_occurrence(self, at: datetime) -> str:
        problem = f"{format_timestamp(at)} is no occurrence"
        return f"{problem}: a calendar excludes its day" if is_occurrence(self.where.schedule, at) else problem

    def _nearest(self, at: datetime) -> str:
        earlier, later = self.where.effective.before(at), self.where.effective.after(at)
        if earlier is not None and later is not None:
            return f"the nearest are {format_timestamp(earlier)} and {format_timestamp(later)}"
        if later is not None:
            return f"the first is {format_timestamp(later)}"
        return "it has none" if earlier is None else f"the last is {format_timestamp(earlier)}"

    def _those_there_are(self) -> str:
        there = [each for each in self.overrides.values() if each.moved_to is None or each.moved_to > self.now]
        if not there:
            return "no coming occurrence of this job is"
        more = f" and {len(there) - _SHOWN} more" if len(there) > _SHOWN else ""
        return f"those that are: {', '.join(map(_shown, there[:_SHOWN]))}{more}"


def _shown(override: Override) -> str:
    at = format_timestamp(override.scheduled_at)
    return f"{at} (skipped)" if override.moved_to is None else f"{at} (moved to {format_timestamp(override.moved_to)})"


def _refused(problem: str, remedy: str, *, path: str = "at") -> InvalidInput:
    return InvalidInput([FieldError(path, problem, remedy)])
