"""A range by its versions: each instant by the version in force then, the same from either end and from any point."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidewheel.errors import ScheduleRefused
from tidewheel.schedules.decision import DaySet
from tidewheel.schedules.ranges import Range, calendars_of, range_of

HOUR = timedelta(hours=1)
MIDNIGHT = datetime(2026, 11, 20, tzinfo=UTC)
JOB = UUID(int=1)
STEPS = (1, 2, 3, 5)


@dataclass(frozen=True)
class Row:
    version: int
    schedule: str
    policy: str = "{}"
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
def test_each_instant_is_the_one_of_the_version_in_force(changes: set[int], first: int, length: int, cut: int) -> None:
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


def test_a_version_that_counts_throughout_has_no_bounds() -> None:
    of = made([Row(7, every(2))], MIDNIGHT - 24 * HOUR, MIDNIGHT)
    assert of.count(100) == (13, True)
    assert {version for _, version in of.iterate(None, newest_first=False)} == {7}


def test_calendars_leave_days_out_and_one_that_is_gone_is_refused() -> None:
    row = Row(3, every(1), '{"exclude_calendars":["holidays"]}')
    assert calendars_of("default", [row]) == {("default", "holidays")}
    holidays = {("default", "holidays"): DaySet(days=frozenset({MIDNIGHT.date()}))}
    of = range_of(JOB, "default", [row], holidays, first=MIDNIGHT - 2 * HOUR, last=MIDNIGHT + 30 * HOUR)
    assert of.count(100) == (2 + 7, True)
    with pytest.raises(ScheduleRefused, match="version 3 names the calendar 'holidays', which was deleted"):
        range_of(JOB, "default", [row], {}, first=MIDNIGHT, last=MIDNIGHT)
