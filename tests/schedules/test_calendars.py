"""Schedules under calendars, against a filter that looks at every instant and every day by itself."""

from bisect import bisect_left, bisect_right
from dataclasses import replace
from datetime import UTC, date, datetime, time, timedelta
from itertools import chain, islice, pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fixtures.examples import FULL, examples
from tests.fixtures.work import counted
from tests.schedules.brute_force import pinned_zone, wall_clock
from tests.schedules.expressions import any_expression
from tidewheel.errors import InvalidInput
from tidewheel.schedules.calendars import CalendarSchedule, ensure_open_days, excluded_spans
from tidewheel.schedules.decision import DaySet
from tidewheel.schedules.parse import parse_schedule
from tidewheel.schedules.schedule import Schedule
from tidewheel.schedules.zones import zone, zone_names

DAY = timedelta(days=1)
TICK = timedelta(microseconds=1)
WINDOW = timedelta(days=9)
SOME = 10_000 if FULL else 500  # of a day's 86,400 at most
WEEKEND = DaySet(weekdays=frozenset({0, 6}))
Sets = tuple[DaySet, ...]


def cron(expression: str, timezone: str = "UTC", **more: object) -> Schedule:
    return parse_schedule({"kind": "cron", "expressions": [expression], "timezone": timezone, **more})


def days(*texts: str) -> DaySet:
    return DaySet(days=frozenset(map(date.fromisoformat, texts)))


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


def is_open(day: date, exclude: Sets, include: Sets) -> bool:
    return not any(day in each for each in exclude) and (not include or any(day in each for each in include))


class Case:
    """A schedule, half the time near a clock change, calendars around it, and the naive results."""

    def __init__(self, seed: int) -> None:
        random = Random(seed)  # noqa: S311  # reproducible from the seed that was drawn
        self.zone_name = random.choice(sorted(zone_names()))
        changes = [start for start in zone(self.zone_name).starts if 3e8 < start < 2e9]
        middle = random.choice(changes) if changes and random.random() < 0.8 else random.randint(400_000_000, 2 * 10**9)
        self.middle = datetime.fromtimestamp(middle - middle % 60, UTC)
        near = self.middle.astimezone(pinned_zone(self.zone_name)).replace(tzinfo=None)
        expression = any_expression(random, near)
        self.gap, self.overlap = random.choice(["shift_forward", "skip"]), random.choice(["first", "second", "both"])
        self.nominal = cron(expression, self.zone_name, dst_gap=self.gap, dst_overlap=self.overlap)
        self.exclude = tuple(self._day_set(random) for _ in range(random.choice([0, 1, 1, 2])))
        self.include = tuple(self._day_set(random) for _ in range(0 if self.exclude and random.random() < 0.7 else 1))
        self.by_clock = not (expression[0].isdigit() and expression.split()[1][0].isdigit())
        self.start, self.end = self.middle - WINDOW, self.middle + WINDOW

    def _day_set(self, random: Random) -> DaySet:
        singles = frozenset(
            self.middle.date() + timedelta(days=random.randint(-8, 8)) for _ in range(random.randint(0, 6))
        )
        return DaySet(singles, frozenset(random.sample(range(7), random.choice([0, 0, 1, 2, 5]))))

    def under_calendars(self, *, shift: bool) -> CalendarSchedule:
        return CalendarSchedule(self.nominal, self.exclude, self.include, self.zone_name, shift)

    def near_midnight(self, day: int) -> tuple[datetime, datetime]:
        """Return a part of the window around the start of a day, with few occurrences of a frequent schedule."""
        date = self.middle.date() + day * DAY
        midnight = datetime.combine(date, time(), pinned_zone(self.zone_name)).astimezone(UTC)
        some = [*islice(self.nominal.between(midnight, self.end), SOME)]
        end = some[-1] if len(some) == SOME else self.end
        return max(self.start, midnight - (end - midnight)), end

    def kept(self, start: datetime, end: datetime | None = None) -> list[datetime]:
        local = pinned_zone(self.zone_name)
        return [
            found
            for found in self.nominal.between(start, end or self.end)
            if is_open(found.astimezone(local).date(), self.exclude, self.include)
        ]

    def shifted(self, since: datetime | None = None) -> set[datetime]:
        """Shift excluded instants of the window (later than `since`), minute by minute on the wall clock."""
        readings = wall_clock(self.zone_name, self.start - DAY, self.end, timedelta(minutes=1))
        there = {reading.local.date() for reading in readings}
        wanted: set[datetime] = set()
        local = pinned_zone(self.zone_name)
        for found in self.nominal.between(since or self.start - DAY, self.end):
            wall = found.astimezone(local).replace(tzinfo=None)
            day = wall.date()
            if is_open(day, self.exclude, self.include):
                continue
            while day <= max(there) and not (is_open(day, self.exclude, self.include) and day in there):
                day += DAY
            wanted.add(datetime.combine(day, wall.time()))
        fired: set[datetime] = set()
        for reading in readings:
            passes = self.by_clock or self.overlap == "both"
            wrong_pass = not passes and (reading.repeated if self.overlap == "first" else reading.again)
            made_up = not self.by_clock and self.gap == "shift_forward" and wanted.intersection(reading.skipped)
            if (reading.local in wanted and not wrong_pass) or made_up:
                fired.add(reading.instant)
        return fired


cases = st.integers(0, 10**9).map(Case)


@given(cases)
def test_excluded_days_have_no_occurrences(case: Case) -> None:
    assert list(case.under_calendars(shift=False).between(case.start, case.end)) == case.kept(case.start)


@examples(60, quick=5)  # each looks at 26,000 minutes
@given(cases)
def test_shifted_occurrence_keeps_its_wall_time_on_the_next_open_day(case: Case) -> None:
    since = case.middle - timedelta(days=1)  # what comes from before the window is not known to the naive answer
    closed = [day for day in range(12) if not is_open((since - day * DAY).date(), case.exclude, case.include)]
    if len(closed) > 6:
        return
    naive = {*case.kept(since), *case.shifted()}
    expected = sorted(found for found in naive if since < found <= case.end)
    assert list(case.under_calendars(shift=True).between(since, case.end)) == expected


@examples(60, quick=5)  # each looks at 26,000 minutes
@given(cases, st.integers(0, 4 * 86_400))
def test_occurrences_before_a_change_are_not_shifted(case: Case, later: int) -> None:
    since = case.middle - 2 * DAY + timedelta(seconds=later)
    shifted = case.shifted(since)
    expected = sorted({found for found in {*case.kept(case.start), *shifted} if found > case.start})
    first = bisect_left(expected, min(shifted, default=since))
    some = expected[max(0, first - SOME) : first + SOME]
    start, end = (case.start, case.end) if len(some) == len(expected) else (some[0] - TICK, some[-1])
    schedule = replace(case.under_calendars(shift=True), since=since)
    assert list(schedule.between(start, end)) == some
    back: list[datetime] = []
    found = schedule.before(end + TICK)
    while found is not None and found > start:
        back.append(found)
        found = schedule.before(found)
    assert back[::-1] == some


@examples(100, quick=10)
@given(cases, st.booleans(), st.integers(0, 60))
def test_before_and_count_agree_with_after(case: Case, shift: bool, limit: int) -> None:  # noqa: FBT001  # drawn
    schedule = case.under_calendars(shift=shift)
    walked = [found for found, _ in zip(schedule.between(case.start, case.end), range(60), strict=False)]
    end = walked[-1] if walked else case.end
    expected = (len(walked), True) if len(walked) <= limit else (limit, False)
    assert schedule.count(case.start, end, limit) == expected
    back: list[datetime] = []
    found = schedule.before(end + TICK)
    while found is not None and found > case.start and len(back) < 60:
        back.append(found)
        found = schedule.before(found)
    assert back[::-1] == walked


@examples(100, quick=10)
@given(cases, st.booleans(), st.integers(-8, 8))
def test_every_instant_is_an_occurrence_or_in_one_excluded_span(case: Case, shift: bool, day: int) -> None:  # noqa: FBT001
    schedule = case.under_calendars(shift=shift)
    start, end = case.near_midnight(day)
    spans = excluded_spans(case.nominal, schedule, start, end)
    kept, fired = set(case.kept(start, end)), list(schedule.between(start, end))
    excluded = [found for found in case.nominal.between(start, end) if found not in kept]
    told = [excluded[bisect_left(excluded, first) : bisect_right(excluded, last)] for first, last, _, _ in spans]
    assert list(chain.from_iterable(told)) == excluded
    for (first, last, occurrences, exact), inside in zip(spans, told, strict=True):
        assert (inside[0], inside[-1], len(inside), True) == (first, last, occurrences, exact)
        assert bisect_right(fired, first) == bisect_left(fired, last), "none fires within the span"
    for (_, last, _, _), (first, _, _, _) in pairwise(spans):
        assert bisect_left(fired, last) < bisect_right(fired, first), "one fires between two spans"


def test_one_second_schedule_skips_ten_closed_years_at_once() -> None:
    closed = DaySet(days=frozenset(date(2026, 1, 1) + timedelta(days=n) for n in range(3653)))
    schedule = CalendarSchedule(cron("* * * * * *"), (closed,), (), "UTC")
    with counted() as work:
        assert schedule.after(at("2026-01-01T00:00:00Z")) == at("2036-01-02T00:00:00Z")
        assert schedule.before(at("2036-01-02T00:00:00Z")) == at("2025-12-31T23:59:59Z")
        start, end = at("2025-12-31T23:59:00Z"), at("2036-01-02T00:01:00Z")
        assert schedule.count(start, end, 1000) == (59 + 61, True)
        spans = excluded_spans(schedule.schedule, schedule, start, end)
        assert spans == [(at("2026-01-01T00:00:00Z"), at("2036-01-01T23:59:59Z"), 100_000, False)]
    assert work.calls < 150_000, "there are 315 million seconds to walk through"


@pytest.mark.parametrize("shift", [True, False])
def test_search_past_the_end_is_bounded(shift: bool) -> None:  # noqa: FBT001
    only = days("2026-12-24", "2026-12-31")
    schedule = CalendarSchedule(cron("0 9 * * *"), (), (only,), "UTC", shift)
    with counted() as work:
        assert list(schedule.between(at("2026-12-01T00:00:00Z"), at("2099-01-01T00:00:00Z"))) == [
            at("2026-12-24T09:00:00Z"),
            at("2026-12-31T09:00:00Z"),
        ]
        assert schedule.after(at("2026-12-31T09:00:00Z")) is None
        assert schedule.before(at("2026-12-24T09:00:00Z")) is None
        every_day_closed = CalendarSchedule(cron("0 9 * * SAT"), (WEEKEND,), (), "UTC")
        assert every_day_closed.after(at("2026-12-01T00:00:00Z")) is None
    assert work.calls < 1_000_000


@pytest.mark.parametrize("weekday", ["SAT", "MON"])
def test_search_is_short_where_all_instants_are_shifted_or_none_is(weekday: str) -> None:
    schedule = CalendarSchedule(cron(f"0 9 * * {weekday}"), (WEEKEND,), (), "UTC", shift=True)
    with counted() as work:
        assert schedule.after(at("2026-11-20T12:00:00Z")) == at("2026-11-23T09:00:00Z")
        assert schedule.before(at("2026-11-20T12:00:00Z")) == at("2026-11-16T09:00:00Z")
    assert work.calls < 10_000, "a walk through 4,000 weeks takes 150,000 calls"


def test_shift_is_at_most_a_year() -> None:
    yearly = days(*(f"{year}-07-01" for year in range(2020, 2040, 4)))
    schedule = CalendarSchedule(cron("0 9 1 * *"), (), (yearly,), "UTC", shift=True)
    assert list(schedule.between(at("2024-07-01T09:00:00Z"), at("2029-01-01T00:00:00Z"))) == [
        at("2028-07-01T09:00:00Z")
    ]
    weekly = CalendarSchedule(cron("0 9 * * 0"), (), (yearly,), "UTC", shift=True)
    assert weekly.after(at("2024-07-02T09:00:00Z")) == at("2028-07-01T09:00:00Z")


def test_bounds_apply_before_shift() -> None:
    schedule = CalendarSchedule(cron("0 9 * * *", end_at="2026-11-21T12:00:00Z"), (WEEKEND,), (), "UTC", shift=True)
    assert schedule.after(at("2026-11-20T09:00:00Z")) == at("2026-11-23T09:00:00Z")
    assert schedule.after(at("2026-11-23T09:00:00Z")) is None
    assert schedule.before(at("2027-01-01T00:00:00Z")) == at("2026-11-23T09:00:00Z")


def test_day_skipped_by_zone_is_not_open() -> None:
    """Apia went from 29 to 31 December 2011."""
    schedule = CalendarSchedule(
        cron("0 9 29 12 *", "Pacific/Apia"), (days("2011-12-29"),), (), "Pacific/Apia", shift=True
    )
    assert schedule.after(at("2011-12-01T00:00:00Z")) == at("2011-12-31T09:00:00+14:00")


def test_a_day_begins_and_ends_on_the_wall_clock() -> None:
    """St John's set its clock back at 00:01: the evening before came twice, around one minute."""
    zone_name = "America/St_Johns"
    schedule = CalendarSchedule(cron("*/30 * * * *", zone_name), (days("2008-11-02"),), (), zone_name)
    evening = list(schedule.between(at("2008-11-02T02:20:00Z"), at("2008-11-03T04:00:00Z")))
    assert [f"{found:%d %H:%M}" for found in evening] == ["02 03:00", "03 03:30", "03 04:00"]
    assert evening[0].astimezone(pinned_zone(zone_name)).date() == date(2008, 11, 1)


def test_an_interval_has_days_of_utc_and_keeps_its_microseconds() -> None:
    inner = parse_schedule({"kind": "interval", "interval_us": 21_600_000_001, "anchor": "2026-11-20T00:00:00Z"})
    schedule = CalendarSchedule(inner, (WEEKEND,), (), "UTC")
    shifted = CalendarSchedule(inner, (WEEKEND,), (), "UTC", shift=True)
    start, end = at("2026-11-20T12:00:00Z"), at("2026-11-23T06:00:01Z")
    assert [found.microsecond for found in schedule.between(start, end)] == [2, 3, 12, 13]
    assert [found.microsecond for found in shifted.between(start, end)] == [2, 3, 4, 8, 12, 5, 9, 13]


def test_last_of_many_spans_is_inexact() -> None:
    schedule = CalendarSchedule(cron("0 9 * * *"), (WEEKEND,), (), "UTC")
    start, end = at("2000-01-01T00:00:00Z"), at("2020-01-01T00:00:00Z")
    spans = excluded_spans(schedule.schedule, schedule, start, end)
    assert len(spans) == 400
    assert all(exact for *_, exact in spans[:-1])
    first, last, occurrences, exact = spans[-1]
    assert (first, last, exact) == (spans[-2][1] + 6 * DAY, at("2019-12-29T09:00:00Z"), False)
    assert sum(span[2] for span in spans[:-1]) + occurrences == 2 * 1044


def test_decided_instants_are_in_no_excluded_span() -> None:
    daily = cron("0 9 * * *")
    taken = frozenset(at(f"2026-11-{day}T09:00:00Z") for day in (20, 22, 25, 26))
    closed = days(*(f"2026-11-{day}" for day in range(20, 26)))
    schedule = CalendarSchedule(daily, (closed,), (), "UTC", taken=taken)
    spans = excluded_spans(daily, schedule, at("2026-11-19T12:00:00Z"), at("2026-12-01T00:00:00Z"))
    saturday, monday, tuesday = (at(f"2026-11-{day}T09:00:00Z") for day in (21, 23, 24))
    assert spans == [(saturday, saturday, 1, True), (monday, tuesday, 2, True)]


def test_schedule_excluded_entirely_is_refused() -> None:
    now = at("2026-11-20T12:00:00Z")
    with pytest.raises(InvalidInput, match="exclude every future occurrence") as refused:
        ensure_open_days(CalendarSchedule(cron("0 9 * * SAT"), (WEEKEND,), (), "UTC"), now)
    assert refused.value.errors[0].path == "exclude_calendars"
    ensure_open_days(CalendarSchedule(cron("0 9 * * SAT"), (WEEKEND,), (), "UTC", shift=True), now)
    ensure_open_days(cron("0 9 * * SAT"), now)
    past = parse_schedule({"kind": "once", "at": "2026-11-19T12:00:00Z"})
    ensure_open_days(CalendarSchedule(past, (WEEKEND,), (), "UTC"), now)
    with pytest.raises(InvalidInput):
        ensure_open_days(CalendarSchedule(past, (), (WEEKEND,), "UTC"), now)


def test_calendar_schedules_are_values() -> None:
    one, other = (
        CalendarSchedule(cron("0 9 * * *"), (DaySet(weekdays=frozenset({0, 6})),), (), "UTC") for _ in range(2)
    )
    assert one == other
    assert len({one, other, CalendarSchedule(one.schedule, (), (WEEKEND,), "UTC")}) == 2
