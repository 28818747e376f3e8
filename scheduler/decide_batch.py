"""What becomes of the timers of one batch: pure, each distinct question answered once."""

from collections.abc import Collection
from datetime import datetime, timedelta
from uuid import UUID

from tidewheel.schedules.decide import decide, hold_for_run, on_resume, with_jitter
from tidewheel.schedules.decision import Decision, HoldReason
from tidewheel.schedules.fast_path import decide_on_time
from tidewheel.schedules.timer_state import TimerState, timer_state
from tidewheel.transitions.decision_inputs import DecisionInputs
from tidewheel.transitions.timers import LockedTimer

_TICK = timedelta(microseconds=1)

_Question = tuple[str, str, datetime, datetime | None]


class ComputingFailed(Exception):
    """A job's next time cannot be computed; the cause says why."""


class Decider:
    """Decides each distinct (schedule, policy, instant) once: jobs that share them share the answer.

    Args:
        circumstances: What is known beside the timers' rows.
        waiting: The fixed_delay timers whose last run is open.
        now: The database's clock.
        horizon: Instants up to here become runs.
        misfire_after: How late an occurrence may be before it is missed.
    """

    def __init__(
        self,
        circumstances: DecisionInputs,
        waiting: Collection[UUID],
        *,
        now: datetime,
        horizon: datetime,
        misfire_after: timedelta,
    ) -> None:
        self._circumstances, self._waiting = circumstances, waiting
        self._now, self._horizon, self._misfire_after = now, horizon, misfire_after
        self._decided: dict[_Question, tuple[TimerState | None, Decision]] = {}

    def __call__(self, timer: LockedTimer) -> Decision:
        """What is to become of a timer.

        Raises:
            ComputingFailed: It cannot be computed.
        """
        try:
            if timer.hold_reason is not None or timer.overridden:
                return self._alone(timer)
            question = (timer.schedule, timer.policy, timer.scheduled_at, timer.catch_up_end)
            where, decision = self._decided.get(question) or self._decide(timer, question)
            return decision if where is None else with_jitter(decision, where, timer.job_id)
        except Exception as error:
            # Whatever it is, it concerns one job, and all the others must fire.
            raise ComputingFailed from error

    def _decide(self, timer: LockedTimer, question: _Question) -> tuple[TimerState | None, Decision]:
        short = decide_on_time(timer, now=self._now, horizon=self._horizon, misfire_after=self._misfire_after)
        if short is not None:
            self._decided[question] = answer = None, short
            return answer
        where = self._standing(timer)
        decision = decide(where, now=self._now, horizon=self._horizon, misfire_after=self._misfire_after)
        if where.plain and not where.schedule.hashed:
            self._decided[question] = where, decision
        return where, decision

    def _alone(self, timer: LockedTimer) -> Decision:
        """The decision about a timer that something is said about."""
        where = self._standing(timer)
        if timer.hold_reason == HoldReason.PAUSE:
            # The pause ended at its instant, not when it was noticed: what came after it is downtime.
            ended = on_resume(where, now=(timer.due_at or self._now) - _TICK)
            return hold_for_run(ended) if timer.job_id in self._waiting else ended
        decision = decide(where, now=self._now, horizon=self._horizon, misfire_after=self._misfire_after)
        return with_jitter(decision, where, timer.job_id)

    def _standing(self, timer: LockedTimer) -> TimerState:
        return timer_state(timer, self._circumstances.day_sets, self._circumstances.of(timer))
