"""Schedules as values: parsed once, jittered, described."""

import doctest
import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.schedules.brute_force import pinned_zone
from tidewheel.errors import ScheduleRefused
from tidewheel.schedules.cron_schedule import CronSchedule
from tidewheel.schedules.decision import jittered
from tidewheel.schedules.parse import parse_schedule, schedule_from_text
from tidewheel.schedules.schedule import Schedule

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
TEN_SECONDS = {"kind": "interval", "interval_us": 10_000_000, "anchor": "2026-01-01T12:00:00Z"}


def seconds(count: float) -> datetime:
    return NOON + timedelta(seconds=count)


def test_an_interval_does_not_drift() -> None:
    every = parse_schedule({**TEN_SECONDS, "interval_us": 7_000_001})
    assert every.after(NOON + timedelta(days=30)) == NOON + timedelta(microseconds=7_000_001 * 370_286)


def test_an_interval_is_counted_without_visiting_it() -> None:
    every_second = parse_schedule({**TEN_SECONDS, "interval_us": 1_000_000})
    years = NOON.replace(year=2056)
    assert every_second.count(NOON, years, 10**10) == (946_684_800, True)
    assert every_second.count(NOON, years, 1000) == (1000, False)


def test_schedule_includes_both_bounds() -> None:
    bounded = parse_schedule(
        {**TEN_SECONDS, "start_at": seconds(20).isoformat(), "end_at": seconds(40).isoformat()},
    )
    assert list(bounded.between(seconds(-100), seconds(100))) == [seconds(20), seconds(30), seconds(40)]
    assert bounded.before(seconds(1000)) == seconds(40)
    assert bounded.before(seconds(20)) is None
    assert bounded.count(seconds(-100), seconds(100), 9) == (3, True)


@pytest.mark.parametrize(("end", "last"), [("12:03:00", 3), ("12:02:59.999999", 2), ("12:03:00.000001", 3)])
def test_bounds_of_cron_are_exact_to_the_microsecond(end: str, last: int) -> None:
    bounded = parse_schedule(
        {
            "kind": "cron",
            "expressions": ["* * * * *"],
            "start_at": "2026-01-01T12:00:00.000001Z",
            "end_at": f"2026-01-01T{end}Z",
        }
    )
    expected = [NOON + timedelta(minutes=number) for number in range(1, last + 1)]
    assert list(bounded.between(seconds(-100), seconds(1000))) == expected
    assert bounded.before(seconds(1000)) == expected[-1]
    assert bounded.before(expected[0]) is None
    assert bounded.count(seconds(-100), seconds(1000), 9) == (last, True)


def test_intervals_end_where_datetimes_do() -> None:
    yearly = parse_schedule({**TEN_SECONDS, "interval_us": 365 * 86_400_000_000})
    assert yearly.after(datetime.max.replace(tzinfo=UTC)) is None


ONE, OTHER = UUID(int=1), UUID(int=2)


def text(*expressions: str, **more: str) -> str:
    return json.dumps({"kind": "cron", "expressions": expressions, **more})


def test_equal_texts_share_one_schedule() -> None:
    assert schedule_from_text(text("0 3 * * THU"), ONE) is schedule_from_text(text("0 3 * * THU"), OTHER)


def test_h_field_is_hashed_per_job() -> None:
    hashed = text("0 3 * * *", "H H * * *")
    assert schedule_from_text(hashed, ONE) != schedule_from_text(hashed, OTHER)
    assert schedule_from_text(hashed, ONE) is schedule_from_text(hashed, ONE)
    assert schedule_from_text(hashed, ONE) == parse_schedule(json.loads(hashed), job_id=ONE)
    assert schedule_from_text(hashed, ONE).hashed


def test_schedules_with_many_expressions_are_kept_by_their_size() -> None:
    """Sixteen thousand schedules of 64 expressions would take 3 GB."""

    def of(nth: int) -> Schedule:
        expressions = [f"{second} {nth % 60} {nth // 60} * * *" for second in range(60)]
        return schedule_from_text(text(*expressions).replace('", "', '","'), ONE)

    first = of(0)
    assert of(0) is first
    for nth in range(1, 200):
        of(nth)
    assert of(0) == first
    assert of(0) is not first


def test_bounded_schedules_share_their_expression() -> None:
    bounded = schedule_from_text(text("0 3 * * *", end_at="2030-01-01T00:00:00Z"), ONE)
    free = schedule_from_text(text("0 3 * * *"), ONE)
    assert isinstance(bounded, CronSchedule)
    assert isinstance(free, CronSchedule)
    assert bounded.entries[0] is free.entries[0]


@pytest.mark.parametrize("stored", ["", "[]", "null", "{"])
def test_invalid_stored_text_is_refused(stored: str) -> None:
    with pytest.raises(ScheduleRefused, match="not a JSON object"):
        schedule_from_text(stored, ONE)


HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)
durations = st.timedeltas(timedelta(0), timedelta(days=2))


@given(st.uuids(), durations, st.floats(0, 100), st.none() | st.timedeltas(timedelta(seconds=1), timedelta(days=1)))
def test_a_delay_never_reaches_the_next_occurrence(
    job_id: UUID, longest: timedelta, percent: float, to_next: timedelta | None
) -> None:
    following = None if to_next is None else NOON + to_next
    found = jittered(NOON, following, job_id, longest=longest, percent=percent)
    assert found == jittered(NOON, following, job_id, longest=longest, percent=percent)
    assert found >= NOON
    assert following is None or found < following


def test_jobs_and_occurrences_are_spread() -> None:
    jobs = {jittered(NOON, NOON + HOUR, UUID(int=number), longest=MINUTE) for number in range(200)}
    later = {
        jittered(NOON + HOUR * n, NOON + HOUR * (n + 1), UUID(int=1), longest=MINUTE) - HOUR * n for n in range(200)
    }
    assert len(jobs) == len(later) == 200
    assert all(NOON <= at < NOON + MINUTE for at in jobs | later)
    late = sum(at - NOON > MINUTE / 2 for at in jobs)
    assert 60 < late < 140


def test_no_jitter_is_no_delay() -> None:
    assert jittered(NOON, NOON + HOUR, UUID(int=1)) == NOON
    assert jittered(NOON, None, UUID(int=1), percent=50) == NOON


def test_a_percentage_is_of_the_time_to_the_next() -> None:
    found = [jittered(NOON, NOON + HOUR, UUID(int=number), percent=10) - NOON for number in range(100)]
    assert max(found) < timedelta(minutes=6)
    assert max(found) > timedelta(minutes=5)


def test_a_delay_never_changes_with_a_release() -> None:
    assert jittered(NOON, NOON + HOUR, UUID(int=7), longest=MINUTE) == NOON + timedelta(seconds=11.501069)


PAGE = Path(__file__).parents[2] / "docs" / "time.md"
ROW = re.compile(r"^\| (\S+/\S+) (\d{4}-\d\d-\d\d) (\d\d:\d\d)→[^|]*\| `([^`]+)` \| ([^|]+) \|", re.MULTILINE)
ROWS = ROW.findall(PAGE.read_text(encoding="utf-8"))


def test_doctest_examples_run() -> None:
    assert doctest.testfile(str(PAGE), module_relative=False).failed == 0


def test_every_row_is_checked() -> None:
    assert len(ROWS) == 15


@pytest.mark.parametrize(("name", "day", "time", "expression", "said"), ROWS)
def test_row_equals_the_librarys_result(name: str, day: str, time: str, expression: str, said: str) -> None:
    zone = pinned_zone(name)
    last_second_before = (datetime.fromisoformat(f"{day}T{time}") - timedelta(seconds=1)).replace(tzinfo=zone)
    moment = last_second_before.astimezone(UTC) + timedelta(seconds=1)
    schedule = parse_schedule({"kind": "cron", "expressions": [expression], "timezone": name})
    around = timedelta(hours=2)
    found = [at.astimezone(zone) for at in schedule.between(moment - around, moment + around)]
    times = [word for word in said.replace("none", "").split(", ") if word.strip()]
    assert len(found) == len(times)
    for at, text in zip(found, times, strict=True):
        clock, _, abbreviation = text.partition(" ")
        assert f"{at:%H:%M}" == clock
        assert not abbreviation or abbreviation.startswith(f"{at:%Z}")
