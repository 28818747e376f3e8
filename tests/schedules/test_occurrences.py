from datetime import UTC, datetime

import pytest

from tidewheel.errors import ScheduleRefused
from tidewheel.schedules.parse import parse_schedule
from tidewheel.schedules.ranges import next_occurrences, nth_occurrence

START = datetime(2026, 1, 1, tzinfo=UTC)


def test_after_itself_is_not_an_occurrence() -> None:
    assert next_occurrences("0 0 * * *", "UTC", START, 1) == [datetime(2026, 1, 2, tzinfo=UTC)]


def test_after_may_be_in_any_zone() -> None:
    local = datetime.fromisoformat("2026-01-01T05:30:00+05:30")
    assert next_occurrences("0 0 * * *", "UTC", local, 1) == [datetime(2026, 1, 2, tzinfo=UTC)]


@pytest.mark.parametrize("n", [0, -1])
def test_none_are_given_when_none_are_asked_for(n: int) -> None:
    assert next_occurrences("0 0 * * *", "UTC", START, n) == []


def test_what_never_comes_gives_nothing() -> None:
    assert next_occurrences("0 0 30 2 *", "UTC", START, 3) == []


def test_the_search_ends_with_the_last_year() -> None:
    late = datetime(2199, 12, 30, tzinfo=UTC)
    assert next_occurrences("0 0 * * *", "UTC", late, 9) == [datetime(2199, 12, 31, tzinfo=UTC)]
    assert next_occurrences("0 0 * * *", "UTC", datetime.max.replace(tzinfo=UTC), 1) == []


def test_the_search_begins_with_the_first_year() -> None:
    early = datetime.min.replace(tzinfo=UTC)
    assert next_occurrences("0 0 * * *", "UTC", early, 1) == [datetime(1900, 1, 1, tzinfo=UTC)]
    assert parse_schedule({"kind": "cron", "expressions": ["@daily"]}).before(early) is None


def test_an_instant_without_an_offset_is_refused() -> None:
    with pytest.raises(ScheduleRefused, match="has no offset"):
        next_occurrences("0 0 * * *", "UTC", START.replace(tzinfo=None), 1)


@pytest.mark.parametrize(
    "document",
    [
        {"kind": "cron", "expressions": ["0 3 * * *"], "timezone": "Europe/Berlin"},
        {"kind": "cron", "expressions": ["*/7 * * * *", "30 2 * * *"], "timezone": "Europe/Berlin"},
        {"kind": "cron", "expressions": ["0 0 29 2 *"]},
        {"kind": "cron", "expressions": ["*/10 * * * * *"], "end_at": "2026-01-01T00:10:00Z"},
        {"kind": "interval", "interval_us": 90_000_001, "anchor": "2026-01-01T00:00:00Z"},
        {"kind": "interval", "interval_us": 86_400_000_000 * 36_500, "anchor": "2026-01-01T00:00:00Z"},
        {"kind": "once", "at": "2026-05-01T00:00:00Z"},
        {"kind": "manual"},
    ],
)
@pytest.mark.parametrize("n", [1, 2, 7, 40, 61])
def test_the_nth_is_the_one_reached_by_walking(document: dict[str, object], n: int) -> None:
    schedule = parse_schedule(document)
    walked: list[datetime] = []
    at = schedule.after(START)
    while at is not None and len(walked) < n:
        walked.append(at)
        at = schedule.after(at)
    assert nth_occurrence(schedule, START, n) == (walked[-1] if len(walked) == n else None)


def test_the_nth_of_many_is_not_walked_to() -> None:
    each_second = parse_schedule({"kind": "cron", "expressions": ["* * * * * *"]})
    assert nth_occurrence(each_second, START, 31_536_000) == datetime(2027, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(("expressions", "n"), [(1, 0), (1, 10**9), (2, 100_001)])
def test_counting_beyond_reason_is_refused(expressions: int, n: int) -> None:
    several = parse_schedule({"kind": "cron", "expressions": ["@daily", "@hourly"][:expressions]})
    with pytest.raises(ScheduleRefused, match="max_runs") as caught:
        nth_occurrence(several, START, n)
    assert caught.value.errors[0].path == "max_runs"
