"""A batch decides for each timer the same as the general path does for it alone."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, timezone
from uuid import UUID

import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from tests.fixtures.examples import examples
from tidewheel.jobs.strict_json import canonical
from tidewheel.scheduler.decide_batch import BatchDecider, DecisionFailed
from tidewheel.schedules.decide import decide, with_jitter
from tidewheel.schedules.decision import DaySet, Decision, Override
from tidewheel.schedules.fast_path import decide_on_time
from tidewheel.schedules.policies import CatchUp
from tidewheel.schedules.timer_state import timer_state
from tidewheel.transitions.decision_inputs import DecisionInputs
from tidewheel.transitions.timers import LockedTimer

START = datetime(2026, 3, 2, 12, tzinfo=UTC)
TICK, SECOND, MINUTE = timedelta(microseconds=1), timedelta(seconds=1), timedelta(minutes=1)
MISFIRE_AFTER = MINUTE
DAY_SETS = {("default", "weekend"): DaySet(weekdays=frozenset({0, 6})), ("default", "none"): DaySet()}

near = st.one_of(
    st.sampled_from([timedelta(0), TICK, -TICK, SECOND, MINUTE, -MINUTE]),
    st.integers(-300, 300).map(lambda seconds: seconds * SECOND),
    st.timedeltas(timedelta(days=-3), timedelta(days=3)),
).map(lambda distance: START + distance)
every = st.one_of(st.sampled_from([1, 5, 60, 3600]), st.integers(1, 10_000)).map(lambda seconds: seconds * 1_000_000)


@st.composite
def bounds(draw: st.DrawFn) -> dict[str, object]:
    start, end = sorted([draw(near), draw(near)])
    return {
        "start_at": draw(st.sampled_from([None, start.isoformat()])),
        "end_at": draw(st.sampled_from([None, end.isoformat()])),
    }


KINDS = (*["interval"] * 4, "once", "cron", "fixed_delay", "manual")


@st.composite
def texts(draw: st.DrawFn, kinds: Sequence[str] = KINDS) -> str:
    """A schedule as it is stored."""
    kind = draw(st.sampled_from(kinds))
    document: dict[str, object] = {"kind": kind}
    if kind in {"interval", "fixed_delay"}:
        document |= {"interval_us": draw(every), **draw(bounds())}
    if kind == "interval":
        anchor = draw(near).astimezone(draw(st.sampled_from([UTC, timezone(timedelta(hours=5, minutes=30))])))
        document |= {"anchor": anchor.isoformat(), "anchor_fires": draw(st.booleans())}
    if kind == "once":
        document["at"] = draw(near).isoformat()
    if kind == "cron":
        document |= {"expressions": draw(st.sampled_from([["* * * * *"], ["H H * * *"]])), **draw(bounds())}
    return canonical(document).decode()


@st.composite
def policies(draw: st.DrawFn) -> str:
    document: dict[str, object] = {"catch_up": draw(st.sampled_from(CatchUp))}
    more: list[dict[str, object]] = [
        {"exclude_calendars": ["weekend"], "on_excluded": draw(st.sampled_from(["skip", "next_business_day"]))},
        {"exclude_calendars": ["none"]},
        {"include_calendars": ["weekend"]},
        {"jitter_us": 30_000_000},
        {"jitter_percent": 50},
    ]
    document |= draw(st.sampled_from([{}, {}, {}, *more]))
    return canonical(document).decode()


def locked_timer(at: datetime, schedule: str, policy: str = "{}", *, number: int = 1) -> LockedTimer:
    return LockedTimer(
        job_id=UUID(int=number), tenant="default", shard=0, scheduled_at=at, version=1, schedule_json=schedule,
        handler="a", queue="default", lane="standard", overlap="skip", definition=b"", has_deadlines=False,
        concurrency_key=None, priority=5, ordering_key=None, passes=False,
        policy_json=policy, due_at=at,
    )  # fmt: skip


@st.composite
def timers(draw: st.DrawFn, number: int = 1) -> LockedTimer:
    """Draw a timer, mostly at an occurrence of its schedule."""
    timer = locked_timer(draw(near), draw(texts()), draw(policies()), number=number)
    at = timer_state(timer, DAY_SETS).schedule.after(timer.scheduled_at)
    if at is not None and draw(st.integers(0, 9)):
        timer = timer._replace(scheduled_at=at)
    return timer._replace(catch_up_end=draw(st.sampled_from([None, None, None, timer.scheduled_at])))


def long_way(timer: LockedTimer, overrides: list[Override], now: datetime, horizon: datetime) -> Decision:
    where = timer_state(timer, DAY_SETS, overrides)
    decision = decide(where, now=now, horizon=horizon, misfire_after=MISFIRE_AFTER)
    return with_jitter(decision, where, timer.job_id)


@examples(400)
@given(st.data())
def test_batch_decisions_equal_single_decisions(data: st.DataObject) -> None:
    some = [data.draw(timers(number)) for number in range(1, data.draw(st.integers(1, 4)) + 1)]
    # Others with the same inputs, one of which has overrides and may be decided first.
    some += [timer._replace(job_id=UUID(int=100 + number)) for number, timer in enumerate(some)]
    said = {UUID(int=200): [Override(some[0].scheduled_at, data.draw(st.one_of(st.none(), near)))]}
    some = data.draw(st.permutations([*some, some[0]._replace(job_id=UUID(int=200), overridden=True)]))
    late = data.draw(st.one_of(st.timedeltas(timedelta(0), 2 * MINUTE), st.sampled_from([timedelta(0), MISFIRE_AFTER])))
    now = some[0].scheduled_at + late
    horizon = now + data.draw(st.sampled_from([timedelta(0), 5 * SECOND, -3 * SECOND]))
    decider = BatchDecider(
        DecisionInputs(DAY_SETS, said), (), {}, now=now, horizon=horizon, misfire_after=MISFIRE_AFTER
    )
    for timer in some:
        assert decider(timer) == long_way(timer, list(said.get(timer.job_id, ())), now, horizon)


@examples(200)
@given(texts(["interval", "once"]), near, st.timedeltas(timedelta(0), MISFIRE_AFTER - TICK))
def test_fast_path_decides_single_occurrence_on_time(schedule: str, since: datetime, late: timedelta) -> None:
    timer = locked_timer(since, schedule)
    occurrences = timer_state(timer, {}).schedule
    at = occurrences.after(since) or occurrences.after(START - timedelta(days=4000))
    if at is None:  # its bounds leave none
        reject()
    timer = timer._replace(scheduled_at=at)
    following = occurrences.after(timer.scheduled_at)
    now = timer.scheduled_at + late if following is None else min(timer.scheduled_at + late, following - TICK)
    short = decide_on_time(timer, now=now, horizon=now, misfire_after=MISFIRE_AFTER)
    assert short is not None
    assert short == long_way(timer, [], now, now)


@pytest.mark.parametrize(
    "schedule",
    [
        "{}",
        '{"anchor":"2026-03-02T12:00:00","anchor_fires":true,"interval_us":60000000,"kind":"interval"}',
        '{"anchor":"never","anchor_fires":true,"interval_us":60000000,"kind":"interval"}',
        '{"anchor":"2026-03-02T12:00:00Z","anchor_fires":true,"interval_us":1,"kind":"interval"}',
        '{"at":"never","kind":"once"}',
    ],
)
def test_fast_path_leaves_unreadable_schedule_to_general_path(schedule: str) -> None:
    timer = locked_timer(START, schedule)
    assert decide_on_time(timer, now=START, horizon=START, misfire_after=MISFIRE_AFTER) is None
    decider = BatchDecider(DecisionInputs(), (), {}, now=START, horizon=START, misfire_after=MISFIRE_AFTER)
    with pytest.raises(DecisionFailed):
        decider(timer)
