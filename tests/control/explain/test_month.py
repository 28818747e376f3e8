"""Days of a month have the occurrences that the schedule lists, also where the clock changes."""

from collections import Counter
from datetime import UTC, date, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.control.explain.explaining import calendar, done, t
from tests.fixtures.database import ClockedDatabase
from tidewheel.control.explain.month import Counted, InForce, coming_counts, count_fires, job_calendar, local_pieces
from tidewheel.schedules.calendars import Excluding
from tidewheel.schedules.decision import policies_from_text
from tidewheel.schedules.describe import to_zone
from tidewheel.schedules.parse import parse_schedule
from tidewheel.schedules.schedule import TICK
from tidewheel.schedules.timer_state import TimerState

ZONES = ("UTC", "Europe/Berlin", "America/New_York", "Pacific/Apia", "America/Toronto", "Asia/Kathmandu")
_POLICIES = policies_from_text("{}")
_EVER = datetime(2190, 1, 1, tzinfo=UTC)


def state_of(expression: str, zone: str, moves: dict[datetime, datetime] | None = None) -> TimerState:
    schedule = parse_schedule({"kind": "cron", "expressions": [expression], "timezone": zone})
    live = Excluding(schedule, frozenset(moves or {}))
    return TimerState(schedule, schedule, live, _POLICIES, datetime(1990, 1, 1, tzinfo=UTC), moved=moves or {})


@given(
    st.dates(date(1990, 1, 1), date(2036, 12, 31)),
    st.sampled_from(ZONES),
    st.sampled_from(["30 2 * * *", "*/20 * * * *", "0 0 * * *", "15 1,2,3 * * 1-6", "59 23 * * *"]),
)
def test_count_of_a_day_is_the_number_of_its_occurrences(day: date, zone: str, expression: str) -> None:
    state = state_of(expression, zone)
    in_force = [InForce(state, datetime(1980, 1, 1, tzinfo=UTC), _EVER)]
    noon = datetime.combine(day, datetime.min.time(), UTC)
    listed = state.schedule.between(noon - timedelta(days=3), noon + timedelta(days=4))
    by_day = Counter(to_zone(at, zone).date() for at in listed)
    for shown in (day - timedelta(days=1), day, day + timedelta(days=1)):
        pieces = list(local_pieces(shown, zone))
        assert sum(count_fires(in_force, *piece).fires for piece in pieces) == by_day[shown]


@given(st.integers(0, 10**9), st.integers(1, 40), st.integers(-3000, 3000))
def test_bins_hold_each_occurrence_once_and_a_moved_one_at_its_new_time(start: int, bins: int, minutes: int) -> None:
    begin = datetime(2000, 1, 1, tzinfo=UTC) + timedelta(seconds=start)
    edges = [begin + at * timedelta(hours=7) for at in range(bins + 1)]
    nominal = state_of("7 * * * *", "UTC").schedule.after(begin)
    assert nominal is not None
    to = nominal + timedelta(minutes=minutes, seconds=1)
    state = state_of("7 * * * *", "UTC", {nominal: to})
    in_force = [InForce(state, datetime(1980, 1, 1, tzinfo=UTC), _EVER)]
    total = sum(count_fires(in_force, *pair).fires for pair in pairwise(edges))
    every = len(list(state.schedule.between(edges[0] - TICK, edges[-1] - TICK)))
    assert total == every - (nominal < edges[-1]) + (edges[0] <= to < edges[-1])


def month(clocked: ClockedDatabase, of: date | None = None) -> dict[int, tuple[int, tuple[str, ...]]]:
    found = clocked.within(job_calendar, "default", "job", of)
    return {day.date.day: (day.fires, day.excluded_by) for day in found.days}


def words(clocked: ClockedDatabase, of: date) -> str:
    return clocked.within(job_calendar, "default", "job", of).words


def test_month_shows_clock_changes_holidays_skips_and_moves(clocked: ClockedDatabase) -> None:
    clocked.stop_clock(t("03-01T00:00"))
    calendar(clocked, "holidays", days=["2026-03-20"])
    clocked.submit(schedule={"cron": "30 2 * * *", "timezone": "Europe/Berlin"}, exclude_calendars=["holidays"])
    clocked.stop_clock(t("03-02T12:00"))
    done(clocked, "job.skip", at="2026-03-10T01:30:00Z")
    done(clocked, "job.move", at="2026-03-11T01:30:00Z", to="2026-03-12T05:00:00Z")
    with clocked.transaction() as connection:
        found = job_calendar(connection, "default", "job", date(2026, 3, 1))
        counts = coming_counts(connection, "default", "job", [t("03-09T00:00"), t("03-12T00:00"), t("03-13T00:00")])
    days = {day.date.day: day for day in found.days}
    assert (found.zone, len(days), found.words) == ("Europe/Berlin", 31, "")
    assert (days[10].fires, days[10].skipped) == (0, 1)
    assert (days[11].fires, days[11].moved, days[12].fires) == (0, 1, 2)
    assert [f"{at:%H:%M}" for at in days[12].first] == ["02:30", "06:00"]
    assert (days[20].fires, days[20].excluded_by) == (0, ("holidays",))
    assert days[29].notes[0] == "the clock goes from 02:00 to 03:00"
    assert "02:30 does not exist" in days[29].notes[1]
    assert [f"{at:%H:%M}" for at in days[29].first] == ["03:00"]
    assert counts == [Counted(1, exact=True), Counted(2, exact=True)]


def test_month_of_a_second_is_counted_by_arithmetic(clocked: ClockedDatabase) -> None:
    clocked.stop_clock(t("03-01T00:00"))
    clocked.submit(schedule={"cron": "* * * * * *", "timezone": "Europe/Berlin"})
    found = month(clocked, date(2026, 10, 1))
    assert (found[24][0], found[25][0]) == (86_400, 90_000)
    assert month(clocked, date(2026, 2, 1))[27] == (0, ())
    assert words(clocked, date(2026, 2, 1)) == "This job has no occurrence in February 2026."


@pytest.mark.parametrize(("schedule", "word"), [("manual", "trigger"), ({"fixed_delay": "1h"}, "only the next one")])
def test_month_without_computable_occurrences_says_why(clocked: ClockedDatabase, schedule: object, word: str) -> None:
    clocked.stop_clock(t("03-01T00:00"))
    clocked.submit(schedule=schedule)
    found = clocked.within(job_calendar, "default", "job")
    assert word in found.words
    assert sum(day.fires for day in found.days) == (0 if schedule == "manual" else 1)
