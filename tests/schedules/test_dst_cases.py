"""The known cases, one row each: what the wall clock of a zone does to an expression."""

from dataclasses import dataclass
from datetime import UTC, datetime

import pytest

from tidewheel.schedules.ranges import next_occurrences

BERLIN, NEW_YORK, LORD_HOWE, APIA = "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Pacific/Apia"


@dataclass(frozen=True)
class Case:
    """From `after`, the expression's next instants are `expected`, all in UTC."""

    zone: str
    after: str
    expression: str
    expected: tuple[str, ...]
    gap: str = "shift_forward"
    overlap: str = "first"


# Settled past wherever governments still change their minds: a new tzdata must not turn these rows over.
SPRING, AUTUMN = "2024-03-30 12:00", "2024-10-26 12:00"
CASES = {
    "a fixed time in a gap fires at the first instant after": Case(
        BERLIN, SPRING, "30 2 * * *", ("2024-03-31 01:00", "2024-04-01 00:30")
    ),
    "a gap's begin is inside, its end is not": Case(
        BERLIN, SPRING, "0 2,3 * * *", ("2024-03-31 01:00", "2024-04-01 00:00")
    ),
    "several fixed times in one gap are one occurrence": Case(
        BERLIN, SPRING, "0,15,30,45 2 * * *", ("2024-03-31 01:00", "2024-04-01 00:00", "2024-04-01 00:15")
    ),
    "a fixed time in a gap can be skipped": Case(BERLIN, SPRING, "30 2 * * *", ("2024-04-01 00:30",), gap="skip"),
    "the wall clock's hour in a gap is not made up": Case(
        BERLIN, SPRING, "*/30 2 * * *", ("2024-04-01 00:00", "2024-04-01 00:30")
    ),
    "every hour knows no gap": Case(
        BERLIN, "2024-03-30 23:30", "30 * * * *", ("2024-03-31 00:30", "2024-03-31 01:30", "2024-03-31 02:30")
    ),
    "a fixed time in an overlap fires the first time": Case(
        BERLIN, AUTUMN, "30 2 * * *", ("2024-10-27 00:30", "2024-10-28 01:30")
    ),
    "or the second": Case(BERLIN, AUTUMN, "30 2 * * *", ("2024-10-27 01:30", "2024-10-28 01:30"), overlap="second"),
    "or both": Case(
        BERLIN, AUTUMN, "30 2 * * *", ("2024-10-27 00:30", "2024-10-27 01:30", "2024-10-28 01:30"), overlap="both"
    ),
    "asked between the passes, the first does not come again": Case(
        BERLIN, "2024-10-27 00:45", "30 2 * * *", ("2024-10-28 01:30",)
    ),
    "the wall clock fires in both passes": Case(
        BERLIN,
        AUTUMN,
        "30 */2 27 10 *",
        ("2024-10-26 22:30", "2024-10-27 00:30", "2024-10-27 01:30", "2024-10-27 03:30"),
    ),
    "choices mean nothing to the wall clock": Case(
        BERLIN, "2024-10-27 00:15", "*/30 2 * * *", ("2024-10-27 00:30", "2024-10-27 01:00"), overlap="second"
    ),
    "six fields follow the same rule": Case(
        BERLIN, SPRING, "*/20 30 2 * * *", ("2024-03-31 01:00", "2024-04-01 00:30", "2024-04-01 00:30:20")
    ),
    "New York's gap": Case(NEW_YORK, "2024-03-09 12:00", "15 2 * * *", ("2024-03-10 07:00", "2024-03-11 06:15")),
    "New York's overlap": Case(NEW_YORK, "2024-11-02 12:00", "15 1 * * *", ("2024-11-03 05:15", "2024-11-04 06:15")),
    "half an hour's gap": Case(LORD_HOWE, "2024-10-05 12:00", "15 2 * * *", ("2024-10-05 15:30", "2024-10-06 15:15")),
    "half an hour's overlap": Case(
        LORD_HOWE, "2024-04-06 12:00", "45 1 * * *", ("2024-04-06 14:45", "2024-04-06 15:15"), overlap="both"
    ),
    "a gap at midnight": Case(
        "America/Santiago", "2024-09-07 12:00", "0 0 * * *", ("2024-09-08 04:00", "2024-09-09 03:00")
    ),
    "an overlap at midnight": Case(
        "America/Havana", "2024-11-02 12:00", "30 0 * * *", ("2024-11-03 04:30", "2024-11-04 05:30")
    ),
    "a gap of two hours": Case("Antarctica/Troll", SPRING, "30 2 * * *", ("2024-03-31 01:00", "2024-04-01 00:30")),
    "a missing day is a correction": Case(
        APIA, "2011-12-29 12:00", "0 12 * * *", ("2011-12-29 22:00", "2011-12-30 22:00")
    ),
    "the day itself comes a year later": Case(APIA, "2011-12-29 12:00", "0 12 30 12 *", ("2012-12-29 22:00",)),
    "a change of offset for good": Case(
        "Europe/Moscow", "2014-10-25 12:00", "30 1 * * *", ("2014-10-25 21:30", "2014-10-26 22:30")
    ),
    "a half-hour change for good": Case(
        "America/Caracas", "2016-05-01 00:00", "45 2 * * *", ("2016-05-01 07:00", "2016-05-02 06:45")
    ),
    "Ramadan's begin": Case(
        "Africa/Casablanca", "2024-03-09 12:00", "30 2 * * *", ("2024-03-10 01:30", "2024-03-11 02:30")
    ),
    "Ramadan's end": Case(
        "Africa/Casablanca", "2024-04-13 12:00", "30 2 * * *", ("2024-04-14 02:00", "2024-04-15 01:30")
    ),
    "odd seconds": Case(
        "Africa/Monrovia", "1972-01-06 12:00", "30 0 * * *", ("1972-01-07 00:44:30", "1972-01-08 00:30")
    ),
    "three hours are still daylight saving": Case(
        "Antarctica/Casey", "2010-03-04 12:00", "30 0 * * *", ("2010-03-04 13:30", "2010-03-05 16:30")
    ),
    "a correction backwards is believed": Case(
        "Antarctica/Vostok",
        "1994-01-31 00:00",
        "0 20 * * *",
        ("1994-01-31 13:00", "1994-01-31 20:00", "1994-02-01 20:00"),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_known_case(name: str) -> None:
    case = CASES[name]
    after, number = datetime.fromisoformat(f"{case.after}Z"), len(case.expected)
    found = next_occurrences(case.expression, case.zone, after, number, dst_gap=case.gap, dst_overlap=case.overlap)
    assert found == [datetime.fromisoformat(f"{text}Z") for text in case.expected]


def test_rules_hold_long_after_the_last_written_transition() -> None:
    start = datetime(2099, 3, 28, 12, tzinfo=UTC)
    assert next_occurrences("30 2 * * *", BERLIN, start, 1) == [datetime(2099, 3, 29, 1, tzinfo=UTC)]
