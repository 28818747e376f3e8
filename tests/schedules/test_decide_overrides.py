"""Decisions with skipped and moved occurrences: each has one outcome; pure."""

import json
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from tidewheel.runs import SkipReason
from tidewheel.schedules.decide import decide, next_wakeup, skip_paused
from tidewheel.schedules.decision import Decision, Fire, Override, Skip
from tidewheel.schedules.timer_state import TimerState, timer_state

START = datetime(2026, 3, 2, 12, tzinfo=UTC)
SECOND, MINUTE, HOUR = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1)
JOB = UUID(int=1)


@dataclass(frozen=True)
class Row:
    """A timer of a job that fires each minute from START on."""

    scheduled_at: datetime = START
    last: int | None = None
    policies: str = "{}"
    catch_up_end: datetime | None = None
    job_id: UUID = JOB
    tenant: str = "default"

    @property
    def schedule_json(self) -> str:
        interval = {"kind": "interval", "interval_us": 60_000_000, "anchor": START.isoformat(), "anchor_fires": True}
        return json.dumps(interval if self.last is None else interval | {"end_at": minute(self.last).isoformat()})

    @property
    def policy_json(self) -> str:
        return self.policies


def minute(number: float) -> datetime:
    return START + number * MINUTE


def said(skipped: tuple[float, ...] = (), **moved: float) -> list[Override]:
    """Minutes that are left out, and minutes that are moved: `m3=5.5` moves the third."""
    away = [Override(minute(int(name[1:])), minute(to)) for name, to in moved.items()]
    return [Override(minute(number), None) for number in skipped] + away


def state_of(overrides: list[Override], row: Row | None = None) -> TimerState:
    return timer_state(row or Row(), {}, overrides)


def decided(where: TimerState, now: float, ahead: timedelta = timedelta(0)) -> Decision:
    return decide(where, now=minute(now), horizon=minute(now) + ahead, misfire_after=MINUTE)


def fired(decision: Decision) -> list[tuple[float, float]]:
    """Nominal minute, and the minute in which it may leave."""
    return [((fire.at - START) / MINUTE, (fire.publish_at - START) / MINUTE) for fire in decision.fires]


def skipped(decision: Decision) -> list[tuple[str, float, float, int]]:
    return [
        (s.reason, (s.first_at - START) / MINUTE, (s.last_at - START) / MINUTE, s.occurrences) for s in decision.skips
    ]


def test_moved_occurrence_is_missed_by_its_new_instant() -> None:
    fire_once = decided(state_of(said(m1=5), Row(minute(8))), 8)
    assert [(fire.at, fire.late) for fire in fire_once.fires] == [(minute(8), None), (minute(1), 3 * MINUTE)]
    skip = decided(state_of(said(m1=5), Row(minute(8), policies='{"catch_up":"skip"}')), 8)
    assert (fired(skip), skipped(skip)) == ([(8, 8)], [("misfire", 1, 1, 1)])
    assert skip.moved == (minute(1),)


@given(
    cursor=st.integers(0, 6), quarters=st.integers(0, 32),
    moves=st.dictionaries(st.integers(0, 12), st.integers(1, 52).map(lambda quarters: quarters / 4)),
    policy=st.sampled_from(["skip", "fire_once", "fire_all"]),
)  # fmt: skip
def test_edit_amid_pause_skips_all_that_has_passed_in_it_and_no_more(
    cursor: int, quarters: int, moves: dict[int, float], policy: str
) -> None:
    """Whatever `on_resume` says: a minute has passed by the time it was moved to, else by its own instant."""
    now = quarters / 4
    row = Row(minute(cursor), policies=json.dumps({"on_resume": policy}))
    moves = {number: to for number, to in moves.items() if number >= cursor}
    overrides = [Override(minute(number), minute(to)) for number, to in moves.items()]
    passed = {number for number in range(cursor, 13) if moves.get(number, number) <= now}
    decision = skip_paused(state_of(overrides, row), now=minute(now))
    assert decision.fires == ()
    assert {reason for reason, *_ in skipped(decision)} <= {"paused"}
    assert sum(count for *_, count in skipped(decision)) == len(passed)
    assert set(decision.moved) == {minute(number) for number in passed & moves.keys()}
    assert decision.next_at is not None
    left = [each for each in overrides if each.scheduled_at not in decision.moved]
    again = skip_paused(state_of(left, replace(row, scheduled_at=decision.next_at)), now=minute(now))
    assert (again.skips, again.fires) == ((), ()), "recorded once"


@dataclass
class Life:
    """A timer as firing moves it, and what came of it."""

    overrides: dict[datetime, Override]
    last: int
    policies: str
    cursor: datetime = START
    catch_up_end: datetime | None = None
    finished: bool = False
    fires: list[Fire] = field(default_factory=list[Fire])
    skips: list[Skip] = field(default_factory=list[Skip])

    def where(self) -> TimerState:
        known = [
            each
            for each in self.overrides.values()
            if each.scheduled_at >= self.cursor or (each.moved_to is not None and not each.done)
        ]
        return timer_state(Row(self.cursor, self.last, self.policies, self.catch_up_end), {}, known)

    def live_until(self, now: datetime, ahead: timedelta) -> None:
        """Fire until nothing is due; each look must get somewhere."""
        for _ in range(400):
            due = next_wakeup(self.where(), self.cursor - timedelta(microseconds=1))
            if self.finished or due is None or due > now + ahead:
                return
            before = (self.cursor, len(self.fires), len(self.skips))
            self.take(decide(self.where(), now=now, horizon=now + ahead, misfire_after=MINUTE, limit=7))
            assert self.finished or (self.cursor, len(self.fires), len(self.skips)) != before, "it would spin"
        message = "there is always something due"
        raise AssertionError(message)

    def take(self, decision: Decision) -> None:
        self.fires += decision.fires
        self.skips += decision.skips
        for at in decision.moved:
            self.overrides[at] = replace(self.overrides[at], done=True)
        self.finished = decision.next_at is None
        self.cursor, self.catch_up_end = decision.next_at or self.cursor, decision.catch_up_end


CATCH_UPS = st.sampled_from(["fire_once", "fire_all", "skip"])
SPOTS = st.dictionaries(
    st.integers(0, 30).map(float), st.none() | st.integers(0, 40 * 60).map(lambda seconds: seconds / 60), max_size=12
)
STEPS = st.lists(st.integers(1, 50), min_size=0, max_size=60)
ANY_STEPS = st.lists(st.integers(1, 50) | st.integers(60, 900), min_size=0, max_size=60)


def life(spots: dict[float, float | None], last: int, steps: list[int], ahead: int, policies: str) -> Life:
    """A whole life: from the first minute to long after everything that could happen."""
    said = {minute(at): Override(minute(at), None if to is None else minute(to)) for at, to in spots.items()}
    timer = Life({at: each for at, each in said.items() if each.moved_to != at}, last, policies)
    now = START
    for step in [*steps, *([50] * (42 * 60 // 50))]:
        timer.live_until(now, ahead * SECOND)
        now += step * SECOND
    timer.live_until(now, ahead * SECOND)
    return timer


@given(SPOTS, st.integers(0, 30), STEPS, st.sampled_from([0, 5, 60]))
def test_each_occurrence_on_time_fires_once_or_is_recorded(
    spots: dict[float, float | None], last: int, steps: list[int], ahead: int
) -> None:
    timer = life(spots, last, steps, ahead, "{}")
    of_the_job = {minute(n): timer.overrides.get(minute(n), Override(minute(n), minute(n))) for n in range(last + 1)}
    wanted = {at: said.moved_to for at, said in of_the_job.items() if said.moved_to is not None}
    assert sorted((fire.at, fire.publish_at) for fire in timer.fires) == sorted(wanted.items())
    left_out = sorted(at for at, said in of_the_job.items() if said.moved_to is None)
    assert sorted((skip.first_at, skip.last_at) for skip in timer.skips) == [(at, at) for at in left_out]
    assert {skip.reason for skip in timer.skips} <= {SkipReason.MANUAL}


@given(SPOTS, st.integers(0, 30), ANY_STEPS, st.sampled_from([0, 5, 60]), CATCH_UPS)
def test_each_late_occurrence_has_one_outcome(
    spots: dict[float, float | None], last: int, steps: list[int], ahead: int, catch_up: str
) -> None:
    timer = life(spots, last, steps, ahead, json.dumps({"catch_up": catch_up}))
    fires = [fire.at for fire in timer.fires]
    assert len(set(fires)) == len(fires)
    assert len(fires) + sum(skip.occurrences for skip in timer.skips) == last + 1
    said = {at: each for at, each in timer.overrides.items() if at <= minute(last)}
    by_hand = {skip.first_at for skip in timer.skips if skip.reason is SkipReason.MANUAL}
    assert by_hand == {at for at, each in said.items() if each.moved_to is None}
    for fire in timer.fires:
        moved = said.get(fire.at)
        assert fire.publish_at == (moved.moved_to if moved else fire.at)
