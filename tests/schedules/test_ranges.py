"""Occurrences over ranges: by versions from either end, the n-th, and the next few."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.schedules.instants import next_occurrences
from tidewheel.errors import ScheduleRefused
from tidewheel.schedules.decision import DaySet
from tidewheel.schedules.parse import parse_schedule
from tidewheel.schedules.ranges import Range, calendars_of, nth_occurrence, range_of

HOUR = timedelta(hours=1)
START = datetime(2026, 1, 1, tzinfo=UTC)
MIDNIGHT = datetime(2026, 11, 20, tzinfo=UTC)
JOB = UUID(int=1)
STEPS = (1, 2, 3, 5)


@dataclass(frozen=True)
class Row:
    version: int
    schedule_json: str
    policy_json: str = "{}"
    after: datetime | None = None
    until: datetime | None = None


def every(hours: int) -> str:
    return f'{{"kind":"cron","expressions":["0 */{hours} * * *"]}}'


def rows(*changes: int) -> list[Row]:
    """A version every so many hours."""
    ends = [*(MIDNIGHT + hour * HOUR for hour in changes[1:]), None]
    return [
        Row(number, every(STEPS[number % 4]), after=MIDNIGHT + hour * HOUR, until=ends[number])
        for number, hour in enumerate(changes)
    ]


def made(versions: list[Row], first: datetime, last: datetime) -> Range:
    return range_of(JOB, "default", versions, {}, first=first, last=last)


def expected(versions: list[Row], first: datetime, last: datetime) -> list[tuple[datetime, int]]:
    """Hour by hour."""
    hours = [MIDNIGHT + hour * HOUR for hour in range(140) if first <= MIDNIGHT + hour * HOUR <= last]
    return [
        (at, row.version)
        for at in hours
        for row in versions
        if at.hour % STEPS[row.version % 4] == 0
        and (row.after is None or at > row.after)
        and (row.until is None or at <= row.until)
    ]


@given(
    changes=st.sets(st.integers(0, 60), min_size=1, max_size=5),
    first=st.integers(0, 130),
    length=st.integers(0, 130),
    cut=st.integers(0, 50),
)
def test_each_instant_has_version_in_force(changes: set[int], first: int, length: int, cut: int) -> None:
    """Ends in half hours, so that they lie on instants, between them and at the very change of versions."""
    versions = rows(*sorted(changes))
    start = MIDNIGHT + first * HOUR / 2
    end = start + length * HOUR / 2
    of, wanted = made(versions, start, end), expected(versions, start, end)
    assert list(of.iterate(None, newest_first=False)) == wanted
    assert list(of.iterate(None, newest_first=True)) == wanted[::-1]
    assert of.count(len(wanted)) == (len(wanted), True)
    assert not wanted or of.count(len(wanted) - 1) == (len(wanted) - 1, False)
    if cut < len(wanted):
        cursor = wanted[cut][0]
        assert list(of.iterate(cursor, newest_first=False)) == wanted[cut:]
        assert list(of.iterate(cursor, newest_first=True)) == wanted[cut::-1]


def test_range_excludes_calendar_days_and_refuses_deleted_calendar() -> None:
    row = Row(3, every(1), '{"exclude_calendars":["holidays"]}')
    assert calendars_of("default", [row]) == {("default", "holidays")}
    holidays = {("default", "holidays"): DaySet(days=frozenset({MIDNIGHT.date()}))}
    of = range_of(JOB, "default", [row], holidays, first=MIDNIGHT - 2 * HOUR, last=MIDNIGHT + 30 * HOUR)
    assert of.count(100) == (2 + 7, True)
    with pytest.raises(ScheduleRefused, match="version 3 names the calendar 'holidays', which was deleted"):
        range_of(JOB, "default", [row], {}, first=MIDNIGHT, last=MIDNIGHT)


@pytest.mark.parametrize("n", [0, -1])
def test_zero_occurrences_are_empty(n: int) -> None:
    assert next_occurrences("0 0 * * *", "UTC", START, n) == []


def test_the_search_ends_with_the_last_year() -> None:
    late = datetime(2199, 12, 30, tzinfo=UTC)
    assert next_occurrences("0 0 * * *", "UTC", late, 9) == [datetime(2199, 12, 31, tzinfo=UTC)]
    assert next_occurrences("0 0 * * *", "UTC", datetime.max.replace(tzinfo=UTC), 1) == []


def test_the_search_begins_with_the_first_year() -> None:
    early = datetime.min.replace(tzinfo=UTC)
    assert next_occurrences("0 0 * * *", "UTC", early, 1) == [datetime(1900, 1, 1, tzinfo=UTC)]
    assert parse_schedule({"kind": "cron", "expressions": ["@daily"]}).before(early) is None


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
def test_nth_occurrence_equals_iteration(document: dict[str, object], n: int) -> None:
    schedule = parse_schedule(document)
    walked: list[datetime] = []
    at = schedule.after(START)
    while at is not None and len(walked) < n:
        walked.append(at)
        at = schedule.after(at)
    assert nth_occurrence(schedule, START, n) == (walked[-1] if len(walked) == n else None)


def test_nth_of_many_is_found_by_count() -> None:
    each_second = parse_schedule({"kind": "cron", "expressions": ["* * * * * *"]})
    assert nth_occurrence(each_second, START, 31_536_000) == datetime(2027, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(("expressions", "n"), [(1, 0), (1, 10**9), (2, 100_001)])
def test_excessive_max_runs_is_refused(expressions: int, n: int) -> None:
    several = parse_schedule({"kind": "cron", "expressions": ["@daily", "@hourly"][:expressions]})
    with pytest.raises(ScheduleRefused, match="max_runs") as caught:
        nth_occurrence(several, START, n)
    assert caught.value.errors[0].path == "max_runs"
