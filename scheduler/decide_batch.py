"""Decide about the timers of one batch, once for all timers with the same inputs. Pure."""

from collections.abc import Collection, Mapping
from datetime import datetime, timedelta
from uuid import UUID

from tidewheel.schedules.decide import decide, hold_for_run, on_resume, with_jitter
from tidewheel.schedules.decision import Decision, HoldReason
from tidewheel.schedules.fast_path import decide_on_time
from tidewheel.schedules.schedule import TICK
from tidewheel.schedules.timer_state import TimerState, timer_state
from tidewheel.transitions.decision_inputs import DecisionInputs
from tidewheel.transitions.timers import LockedTimer

_DecisionKey = tuple[str, str, datetime, datetime | None]


class DecisionFailed(Exception):
    """The next occurrence of a job cannot be computed; `__cause__` is the error."""


class BatchDecider:
    """Decides each distinct (schedule, policy, instant) once: timers that share them share the decision.

    Args:
        waiting: The fixed_delay jobs whose last run is open.
    """

    def __init__(
        self,
        inputs: DecisionInputs,
        waiting: Collection[UUID],
        pause_ends: Mapping[UUID, datetime],
        *,
        now: datetime,
        horizon: datetime,
        misfire_after: timedelta,
    ) -> None:
        self._inputs, self._waiting, self._pause_ends = inputs, waiting, pause_ends
        self._now, self._horizon, self._misfire_after = now, horizon, misfire_after
        self._decided: dict[_DecisionKey, tuple[TimerState | None, Decision]] = {}

    def __call__(self, timer: LockedTimer) -> Decision:
        """Decide about a timer."""
        try:
            if timer.hold_reason is not None or timer.overridden:
                return self._decide_alone(timer)
            key = (timer.schedule_json, timer.policy_json, timer.scheduled_at, timer.catch_up_end)
            state, decision = self._decided.get(key) or self._decide(timer, key)
            return decision if state is None else with_jitter(decision, state, timer.job_id)
        except MemoryError:
            raise  # of this process
        except Exception as error:
            # Only this job's schedule, policy and overrides are read here: the error is its own.
            raise DecisionFailed from error

    def _decide(self, timer: LockedTimer, key: _DecisionKey) -> tuple[TimerState | None, Decision]:
        decided = decide_on_time(timer, now=self._now, horizon=self._horizon, misfire_after=self._misfire_after)
        if decided is not None:
            self._decided[key] = answer = None, decided
            return answer
        state = self._state(timer)
        decision = decide(state, now=self._now, horizon=self._horizon, misfire_after=self._misfire_after)
        if state.plain and not state.schedule.hashed:
            self._decided[key] = state, decision
        return state, decision

    def _decide_alone(self, timer: LockedTimer) -> Decision:
        """Decide about a timer with a hold or overrides, whose decision no other timer shares."""
        state = self._state(timer)
        if timer.hold_reason == HoldReason.PAUSE:
            # The pause ended at `paused_until`, not at this poll. The time since then counts as downtime.
            ended = on_resume(state, now=self._pause_ends.get(timer.job_id, self._now) - TICK)
            return hold_for_run(ended) if timer.job_id in self._waiting else ended
        decision = decide(state, now=self._now, horizon=self._horizon, misfire_after=self._misfire_after)
        return with_jitter(decision, state, timer.job_id)

    def _state(self, timer: LockedTimer) -> TimerState:
        return timer_state(timer, self._inputs.day_sets, self._inputs.of(timer))
