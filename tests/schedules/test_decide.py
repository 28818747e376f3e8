"""Decisions about due timers: catch-up, pauses, limits; pure."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from tidewheel.runs import SkipReason
from tidewheel.schedules.calendars import CalendarSchedule
from tidewheel.schedules.decide import (
    MAX_CAUGHT_UP,
    MAX_COUNTED,
    MAX_FIRES,
    decide,
)
from tidewheel.schedules.decision import CatchUp, DaySet, Decision, Policies, Skip
from tidewheel.schedules.parse import parse_schedule
from tidewheel.schedules.schedule import Once, Schedule
from tidewheel.schedules.timer_state import TimerState

START = datetime(2026, 3, 2, 12, tzinfo=UTC)  # a Monday
SECOND, MINUTE, HOUR, DAY = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
MISFIRE_AFTER = MINUTE


def every(seconds: int) -> Schedule:
    """An interval with an occurrence at START."""
    return parse_schedule(
        {"kind": "interval", "interval_us": seconds * 1_000_000, "anchor": START.isoformat(), "anchor_fires": True}
    )


def at_start(schedule: Schedule, policies: Policies | None = None, **more: object) -> TimerState:
    """A timer whose cursor is START."""
    return replace(TimerState(schedule, schedule, schedule, policies or Policies(), START), **more)  # type: ignore[arg-type]


def decided(state: TimerState, late: timedelta, ahead: timedelta = timedelta(0)) -> Decision:
    """Decide at a given lateness after START."""
    now = START + late
    return decide(state, now=now, horizon=now + ahead, misfire_after=MISFIRE_AFTER)


def after(decision: Decision, state: TimerState) -> TimerState:
    """Return the state of the timer after a decision."""
    assert decision.next_at is not None
    return replace(state, cursor=decision.next_at, catch_up_end=decision.catch_up_end)


def all_of(state: TimerState, late: timedelta) -> tuple[list[Decision], TimerState]:
    """Decisions until nothing is due."""
    decisions: list[Decision] = []
    while state.cursor <= START + late:
        decisions.append(decided(state, late))
        if decisions[-1].next_at is None:
            break
        state = after(decisions[-1], state)
    return decisions, state


def test_occurrences_younger_than_misfire_after_fire_late_under_every_policy() -> None:
    for policy in CatchUp:
        decision = decided(at_start(every(10), Policies(catch_up=policy)), 59 * SECOND)
        assert [fire.at for fire in decision.fires] == [START + n * 10 * SECOND for n in range(6)]
        assert all(fire.late is None for fire in decision.fires)


def test_fire_all_keeps_newest_thousand_and_records_rest() -> None:
    policies = Policies(catch_up=CatchUp.FIRE_ALL)
    late = 3 * HOUR
    decisions, _ = all_of(at_start(every(1), policies), late)
    fires = [fire.at for decision in decisions for fire in decision.fires]
    missed = [at for at in fires if at <= START + late - MISFIRE_AFTER]
    assert len(missed) == MAX_CAUGHT_UP
    assert missed[-1] == START + late - MISFIRE_AFTER
    assert fires == sorted(set(fires))
    [limit] = [skip for decision in decisions for skip in decision.skips]
    assert (limit.reason, limit.first_at, limit.last_at) == (SkipReason.CATCH_UP_LIMIT, START, missed[0] - SECOND)
    assert all(len(decision.fires) <= MAX_FIRES for decision in decisions)


def test_catch_up_is_decided_once() -> None:
    policies = Policies(catch_up=CatchUp.FIRE_ALL, window=HOUR)
    state = at_start(every(10), policies)
    first = decided(state, 2 * HOUR)
    assert first.catch_up_end == START + 2 * HOUR - MISFIRE_AFTER
    much_later = decided(after(first, state), 30 * HOUR)
    assert [skip.reason for skip in much_later.skips] == []
    assert much_later.fires[0].at == first.fires[-1].at + 10 * SECOND


@given(
    seconds=st.integers(1, 4000),
    late=st.integers(0, 3 * 86_400),
    policy=st.sampled_from(CatchUp),
    window=st.integers(1, 2 * 86_400),
    steps=st.lists(st.integers(0, 86_400), max_size=4),
)
def test_every_instant_up_to_now_is_fired_or_skipped_exactly_once(
    seconds: int, late: int, policy: CatchUp, window: int, steps: list[int]
) -> None:
    schedule = every(seconds)
    state = at_start(schedule, Policies(catch_up=policy, window=window * SECOND))
    elapsed, fired = 0, 0
    skips: list[Skip] = []
    for more in [late, *steps]:
        elapsed += more
        decisions, state = all_of(state, elapsed * SECOND)
        fired += sum(len(decision.fires) for decision in decisions)
        skips += [skip for decision in decisions for skip in decision.skips]
    if all(skip.exact for skip in skips):
        assert fired + sum(skip.occurrences for skip in skips) == elapsed // seconds + 1
    else:
        assert elapsed // seconds > MAX_COUNTED


def test_a_once_fires_however_late_unless_its_catch_up_is_skip() -> None:
    decision = decided(at_start(Once(START)), 400 * DAY)
    assert [(fire.at, fire.late) for fire in decision.fires] == [(START, 400 * DAY)]
    assert decision.next_at is None
    skipping = decided(at_start(Once(START), Policies(catch_up=CatchUp.SKIP)), HOUR)
    assert (skipping.fires, [skip.reason for skip in skipping.skips]) == ((), [SkipReason.MISFIRE])
    assert skipping.next_at is None


def test_overdue_poll_records_nothing_younger() -> None:
    schedule = every(1)
    effective = CalendarSchedule(schedule, (DaySet(weekdays=frozenset({0})),), (), "UTC")
    state = TimerState(schedule, effective, effective, Policies(), START)
    now = START + 10 * SECOND
    decision = decide(state, now=now, horizon=now - 3 * SECOND, misfire_after=MISFIRE_AFTER)
    assert [fire.at for fire in decision.fires] == [START + n * SECOND for n in range(8)]
    assert decision.next_at == START + 8 * SECOND
