"""Decide about one occurrence that is on time, without building the timer's state.

Jobs that were submitted one by one have their own anchor or instant, so none shares its decision with another. The
general path parses the schedule, builds the state and computes three occurrences: 12 us. Here arithmetic proves that
the timer's instant is an occurrence: 3 us.
"""

from datetime import datetime, timedelta
from functools import lru_cache
from typing import NamedTuple

from tidewheel.schedules.decision import Decision, Fire
from tidewheel.schedules.parse import read_schedule
from tidewheel.schedules.policies import policies_from_text
from tidewheel.schedules.schedule import Interval
from tidewheel.schedules.timer_state import Timer

_NOTHING = timedelta(0)
_ANY_ANCHOR = "2000-01-01T00:00:00+00:00"
_ONCE = ',"kind":"once"}'


def decide_on_time(timer: Timer, *, now: datetime, horizon: datetime, misfire_after: timedelta) -> Decision | None:
    """Return the decision of `decide` for an interval or a `once` without a hold or overrides.

    Returns:
        None if the decision needs more, as jitter and calendars do, or if the schedule cannot be read. The general path
        then decides, or refuses.

    Raises:
        ValueError: The stored policy cannot be read.
    """
    at = timer.scheduled_at
    if (
        not now - misfire_after < at <= horizon
        or timer.catch_up_end is not None
        or not _fires_exactly(timer.policy_json)
    ):
        return None
    try:
        following = _following(timer.schedule_json, at)
    except (ValueError, TypeError, OverflowError):
        return None
    if following is not None and following <= horizon:
        return None
    return Decision((Fire(at, at),), (), following)


@lru_cache(maxsize=4096)  # distinct policies in use: a handful
def _fires_exactly(policy: str) -> bool:
    """Return True if every occurrence fires at exactly its instant."""
    policies = policies_from_text(policy)
    return not (policies.jitters or policies.calendars)


class _IntervalStep(NamedTuple):
    """An interval without its anchor."""

    every: timedelta
    anchor_fires: bool
    start_at: datetime | None
    end_at: datetime | None


def _following(text: str, at: datetime) -> datetime | None:
    """Return the occurrence after `at` of an interval or a `once`; None if there is none."""
    # The canonical text has sorted names, so the instant comes first.
    _, name, _, instant, rest = text.split('"', 4)
    if name == "anchor":
        every, anchor_fires, start_at, end_at = _interval_step(rest)
        since = at - datetime.fromisoformat(instant)
        fires = since > _NOTHING or (anchor_fires and since == _NOTHING)
        if fires and not since % every and (start_at is None or start_at <= at) and (end_at is None or at <= end_at):
            following = at + every
            return following if end_at is None or following <= end_at else None
    elif name == "at" and rest == _ONCE and datetime.fromisoformat(instant) == at:
        return None
    raise ValueError


@lru_cache(maxsize=4096)  # distinct intervals in use, apart from their anchors: a few hundred
def _interval_step(rest: str) -> _IntervalStep:
    """Parse the text of an interval behind the instant of its anchor."""
    interval = read_schedule(f'{{"anchor":"{_ANY_ANCHOR}"{rest}')
    if not isinstance(interval, Interval):
        raise ValueError  # noqa: TRY004 - it means that the general path must decide
    bounds = interval.bounds
    return _IntervalStep(
        timedelta(microseconds=interval.interval_us), interval.anchor_fires, bounds.start_at, bounds.end_at
    )
