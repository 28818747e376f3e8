"""Once, intervals, fixed delays, bounds: the kinds whose arithmetic fits in a line."""

from datetime import UTC, datetime, timedelta

import pytest

from tidewheel.schedules.parse import parse_schedule
from tidewheel.schedules.schedule import FixedDelay

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
TEN_SECONDS = {"kind": "interval", "interval_us": 10_000_000, "anchor": "2026-01-01T12:00:00Z"}


def seconds(count: float) -> datetime:
    return NOON + timedelta(seconds=count)


def test_implicit_anchor_is_no_occurrence() -> None:
    assert parse_schedule(TEN_SECONDS).after(seconds(-100)) == seconds(10)
    assert parse_schedule({**TEN_SECONDS, "anchor_fires": True}).after(seconds(-100)) == NOON


def test_an_interval_does_not_drift() -> None:
    every = parse_schedule({**TEN_SECONDS, "interval_us": 7_000_001})
    assert every.after(NOON + timedelta(days=30)) == NOON + timedelta(microseconds=7_000_001 * 370_286)


def test_an_interval_is_counted_without_visiting_it() -> None:
    every_second = parse_schedule({**TEN_SECONDS, "interval_us": 1_000_000})
    years = NOON.replace(year=2056)
    assert every_second.count(NOON, years, 10**10) == (946_684_800, True)
    assert every_second.count(NOON, years, 1000) == (1000, False)


def test_counting_cron_over_years_is_exact() -> None:
    each_second = parse_schedule({"kind": "cron", "expressions": ["* * * * * *"], "timezone": "Europe/Berlin"})
    assert each_second.count(NOON, NOON.replace(year=2056), 10**10) == (946_684_800, True)


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


def test_occurrence_is_past_a_fraction_of_a_second_later() -> None:
    minutely = parse_schedule({"kind": "cron", "expressions": ["* * * * *"]})
    tick = timedelta(microseconds=1)
    assert minutely.after(NOON - tick) == NOON
    assert minutely.after(NOON) == minutely.after(NOON + tick) == seconds(60)
    assert minutely.before(NOON + tick) == NOON
    assert minutely.before(NOON) == seconds(-60)


def test_several_expressions_are_one_schedule_without_repeats() -> None:
    both = parse_schedule({"kind": "cron", "expressions": ["*/15 * * * *", "*/10 12 * * *", "*/15 * * * *"]})
    minutes = [at.minute for at in both.between(NOON, seconds(3600))]
    assert minutes == [10, 15, 20, 30, 40, 45, 50, 0]
    assert both.count(NOON, seconds(3600), 100) == (8, True)
    assert both.count(NOON, seconds(3600), 7) == (7, False)


def test_once_has_one_occurrence_and_manual_none() -> None:
    once, manual = (
        parse_schedule({"kind": "once", "at": "2026-01-01T13:00:00+01:00"}),
        parse_schedule({"kind": "manual"}),
    )
    assert once.after(seconds(-1)) == NOON
    assert once.after(NOON) is None
    assert once.before(seconds(1)) == NOON
    assert list(once.between(seconds(-1), NOON)) == [NOON]
    assert once.count(NOON, seconds(9), 5) == (0, True)
    assert manual.after(NOON) is manual.before(NOON) is None
    assert manual.count(NOON, seconds(9), 5) == (0, True)


def test_intervals_end_where_datetimes_do() -> None:
    yearly = parse_schedule({**TEN_SECONDS, "interval_us": 365 * 86_400_000_000})
    assert yearly.after(datetime.max.replace(tzinfo=UTC)) is None


def test_a_fixed_delay_counts_from_the_end_of_the_last_run() -> None:
    delay = parse_schedule({"kind": "fixed_delay", "interval_us": 90_000_000, "end_at": seconds(300).isoformat()})
    assert isinstance(delay, FixedDelay)
    assert delay.due(NOON, None) == NOON
    assert delay.due(NOON, seconds(100)) == seconds(190)
    assert delay.due(NOON, seconds(211)) is None
    assert delay.after(NOON) is delay.before(NOON) is None
    assert list(delay.between(NOON, seconds(9))) == []
    assert delay.count(NOON, seconds(9), 5) == (0, True)
