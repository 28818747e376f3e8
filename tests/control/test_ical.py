"""Days from iCalendar files, well made and otherwise."""

from datetime import date
from pathlib import Path

import pytest

from tidewheel.control.ical import FileDays, days_of, read_calendar_file
from tidewheel.errors import InvalidInput

TODAY = date(2026, 11, 20)


def event(*lines: str, uid: str = "u@x", summary: str = "Holiday") -> str:
    return "\r\n".join(["BEGIN:VEVENT", f"UID:{uid}", f"SUMMARY:{summary}", *lines, "END:VEVENT"])


def file_of(*events: str) -> bytes:
    return "\r\n".join(["BEGIN:VCALENDAR", "VERSION:2.0", "PRODID:-//x//y//EN", *events, "END:VCALENDAR", ""]).encode()


def read(*events: str, years: int = 10) -> FileDays:
    return days_of(file_of(*events), "holidays.ics", today=TODAY, years=years)


def days(*events: str, years: int = 10) -> list[str]:
    return [str(day) for day in sorted(read(*events, years=years).days)]


def test_all_day_event_excludes_the_day_of_dtend() -> None:
    christmas = event("DTSTART;VALUE=DATE:20261225", "DTEND;VALUE=DATE:20261227")
    assert days(christmas) == ["2026-12-25", "2026-12-26"]


def test_event_lasts_its_duration_or_one_day() -> None:
    assert days(event("DTSTART;VALUE=DATE:20261225")) == ["2026-12-25"]
    assert days(event("DTSTART;VALUE=DATE:20261225", "DURATION:P3D")) == ["2026-12-25", "2026-12-26", "2026-12-27"]


@pytest.mark.parametrize(
    ("lines", "touched"),
    [
        (["DTSTART:20261224T220000", "DTEND:20261225T000000"], ["2026-12-24"]),
        (["DTSTART:20261224T220000", "DTEND:20261225T000001"], ["2026-12-24", "2026-12-25"]),
        (["DTSTART;TZID=Asia/Tokyo:20261224T080000", "DURATION:PT1H"], ["2026-12-24"]),
        (["DTSTART:20261224T230000Z"], ["2026-12-24"]),
    ],
)
def test_timed_event_covers_the_days_of_its_own_zone(lines: list[str], touched: list[str]) -> None:
    assert days(event(*lines)) == touched


def test_repeats_are_expanded_to_the_horizon() -> None:
    found = read(event("DTSTART;VALUE=DATE:20241225", "RRULE:FREQ=YEARLY"), years=3)
    assert sorted(day.year for day in found.days) == [2024, 2025, 2026, 2027, 2028]
    assert found.repeats_until == date(2029, 11, 20)


@pytest.mark.parametrize(
    "rule",
    [
        "FREQ=YEARLY;COUNT=2",
        "FREQ=YEARLY;UNTIL=20251225",
        "FREQ=YEARLY;UNTIL=20251225T120000Z",
        "FREQ=MONTHLY;INTERVAL=12;COUNT=2",
    ],
)
def test_repeats_that_end_by_themselves_name_no_horizon(rule: str) -> None:
    found = read(event("DTSTART;VALUE=DATE:20241225", f"RRULE:{rule}"))
    assert (sorted(day.year for day in found.days), found.repeats_until) == ([2024, 2025], None)


def test_until_is_read_on_the_clock_of_the_event() -> None:
    """23:30 UTC of the 26th is the 27th in Tokyo, so that day's event still takes place."""
    daily = event("DTSTART;TZID=Asia/Tokyo:20261125T080000", "RRULE:FREQ=DAILY;UNTIL=20261126T233000Z")
    assert days(daily) == ["2026-11-25", "2026-11-26", "2026-11-27"]


def test_exdates_are_omitted_and_rdates_are_added() -> None:
    given = event(
        "DTSTART;VALUE=DATE:20261201",
        "RRULE:FREQ=WEEKLY;COUNT=4",
        "EXDATE;VALUE=DATE:20261208,20261215",
        "RDATE;VALUE=DATE:20270101",
    )
    assert days(given) == ["2026-12-01", "2026-12-22", "2027-01-01"]


def test_cancelled_events_and_occurrences_are_omitted() -> None:
    series = event("DTSTART;VALUE=DATE:20261201", "RRULE:FREQ=WEEKLY;COUNT=3")
    cancelled = event("DTSTART;VALUE=DATE:20261208", "RECURRENCE-ID;VALUE=DATE:20261208", "STATUS:CANCELLED")
    moved = event("DTSTART;VALUE=DATE:20261216", "RECURRENCE-ID;VALUE=DATE:20261215")
    gone = event("DTSTART;VALUE=DATE:20270101", "STATUS:cancelled", uid="other")
    found = read(series, cancelled, moved, gone)
    assert sorted(found.days) == [date(2026, 12, 1), date(2026, 12, 16)]
    assert found.events == 2


def test_an_occurrence_of_another_series_is_not_replaced() -> None:
    one = event("DTSTART;VALUE=DATE:20261201", "RRULE:FREQ=WEEKLY;COUNT=2", uid="one")
    other = event("DTSTART;VALUE=DATE:20261209", "RECURRENCE-ID;VALUE=DATE:20261208", uid="other")
    assert days(one, other) == ["2026-12-01", "2026-12-08", "2026-12-09"]


NEW_YORK_WEEKLY = event("DTSTART;TZID=America/New_York:20261125T220000", "RRULE:FREQ=WEEKLY;COUNT=3", "DURATION:PT1H")


@pytest.mark.parametrize(
    "recurrence_id",
    ["RECURRENCE-ID;TZID=America/New_York:20261202T220000", "RECURRENCE-ID:20261203T030000Z",
     "RECURRENCE-ID;TZID=Asia/Tokyo:20261203T120000", "RECURRENCE-ID;VALUE=DATE:20261202"],
)  # fmt: skip
@pytest.mark.parametrize(
    "start", ["DTSTART;TZID=Asia/Tokyo:20261210T120000", "DTSTART;VALUE=DATE:20261210", "DTSTART:20261210T230000Z"]
)
def test_moved_occurrence_leaves_its_old_day_whatever_its_new_zone(start: str, recurrence_id: str) -> None:
    """Issue 39, W2: its instant was compared as a day of the zone that it was moved to."""
    assert days(NEW_YORK_WEEKLY, event(start, recurrence_id)) == ["2026-11-25", "2026-12-09", "2026-12-10"]


def test_exdate_in_another_zone_omits_its_instant() -> None:
    series = NEW_YORK_WEEKLY.replace("END:VEVENT", "EXDATE:20261203T030000Z,20261210T000000Z\r\nEND:VEVENT")
    assert days(series) == ["2026-11-25", "2026-12-09"]


def test_rdate_with_a_period_lasts_as_long_as_the_period() -> None:
    given = event("DTSTART:20261201T080000Z", "DURATION:PT1H", "RDATE;VALUE=PERIOD:20261205T200000Z/PT5H")
    assert days(given) == ["2026-12-01", "2026-12-05", "2026-12-06"]


@pytest.mark.parametrize(
    ("lines", "touched"),
    [
        (["DTSTART;VALUE=DATE:99991231"], "9999-12-31"),
        (["DTSTART;TZID=Asia/Tokyo:99991231T230000"], "9999-12-31"),
        (["DTSTART;VALUE=DATE:00010101"], "0001-01-01"),
        (["DTSTART;TZID=America/New_York:00010101T000000"], "0001-01-01"),
    ],
)
def test_day_at_an_end_of_the_calendar_is_read(lines: list[str], touched: str) -> None:
    assert days(event(*lines)) == [touched]


def test_every_layout_of_a_calendar_file_is_read() -> None:
    folded = event("DTSTART;VALUE=DATE:2026\r\n 1225", "DESCRIPTION:" + "x" * 60 + "\r\n " + "y" * 60)
    data = b"\xef\xbb\xbf" + file_of(folded) + file_of(event("DTSTART;VALUE=DATE:20261226")).replace(b"\r\n", b"\n")
    assert sorted(days_of(data, "x.ics", today=TODAY).days) == [date(2026, 12, 25), date(2026, 12, 26)]


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([], "DTSTART is missing"),
        (["DTSTART:yesterday"], "DTSTART: Expected"),
        (["DTSTART;VALUE=DATE:20261225", "DTEND;VALUE=DATE:20261220"], "the end is before the start"),
        (["DTSTART;VALUE=DATE:20261225", "DTSTART;VALUE=DATE:20261226"], "DTSTART occurs twice"),
        (["DTSTART;VALUE=DATE:20261225", "RRULE:FREQ=YEARLY;BYDAY=XX"], "RRULE: Expected weekday"),
        (["DTSTART;VALUE=DATE:20261225", "RRULE:FREQ=HOURLY"], "needs a FREQ of days or longer"),
        (["DTSTART;VALUE=DATE:20261225", "RRULE:FREQ=YEARLY;INTERVAL=0"], "INTERVAL of the RRULE is less than 1"),
        (["DTSTART;VALUE=DATE:00010101", "RRULE:FREQ=DAILY"], "more than 10000 days"),
        (["DTSTART;VALUE=DATE:20261225", "RRULE:FREQ=DAILY;COUNT=0"], "COUNT of the RRULE is less than 1"),
        (["DTSTART;VALUE=DATE:99991231", "DURATION:P2D"], "outside the years 1 to 9999"),
        (["DTSTART;TZID=Asia/Tokyo:20261225T080000", "DTEND:99991231T235959Z"], "outside the years 1 to 9999"),
        (["DTSTART;TZID=Asia/Tokyo:20261225T080000", "RDATE:99991231T235959Z"], "outside the years 1 to 9999"),
        (["DTSTART;TZID=Asia/Tokyo:20261225T080000", "EXDATE:99991231T235959Z"], "outside the years 1 to 9999"),
        (["DTSTART;VALUE=DATE:20261225", "DURATION:PT1H", "DURATION:P1D"], "DURATION occurs twice"),
        (["DTSTART;VALUE=TIME:080000"], "DTSTART is not a date"),
        (["DTSTART;VALUE=DATE:20261225", "RDATE;VALUE=TIME:080000"], "RDATE"),
        (["DTSTART;VALUE=DATE:20261225", "DURATION:P20000D"], "longer than 10000 days"),
        (["DTSTART;VALUE=DATE:20261225", "EXRULE:FREQ=DAILY"], "EXRULE is no longer part"),
        (
            ["DTSTART;VALUE=DATE:20261225", "RECURRENCE-ID;RANGE=THISANDFUTURE:20261225"],
            "THISANDFUTURE is not supported",
        ),
        (["DTSTART;VALUE=DATE:20261225", "no colon in this line"], "could not be parsed"),
    ],
)
def test_unreadable_event_is_named(lines: list[str], said: str) -> None:
    fine = event("DTSTART;VALUE=DATE:20261225", uid="fine")
    with pytest.raises(InvalidInput, match=said) as refused:
        read(fine, event(*lines, uid="bad@x", summary="Bad day"))
    [error] = refused.value.errors
    assert error.path == "holidays.ics"
    assert error.problem.startswith("event 2 'Bad day' (UID bad@x): ")
    assert error.remedy


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "contains no event"),
        (b"hello", "not an iCalendar file"),
        (b"\x89PNG\r\n\x1a\n", "not an iCalendar file"),
        (file_of(), "contains no event"),
        (file_of(event("DTSTART;VALUE=DATE:20261225", "STATUS:CANCELLED")), "has no day that an event covers"),
        (b"x" * (4 * 2**20 + 1), "has more than 4 MiB"),
    ],
)
def test_file_without_a_calendar_is_refused(data: bytes, said: str) -> None:
    with pytest.raises(InvalidInput, match=said):
        days_of(data, "holidays.ics", today=TODAY)


def test_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"holidays\.ics: cannot be read: No such file"):
        read_calendar_file(tmp_path / "holidays.ics", today=TODAY)


@pytest.mark.parametrize("years", [0, 51])
def test_the_horizon_has_bounds(years: int) -> None:
    with pytest.raises(InvalidInput, match="write 1 to 50"):
        read(event("DTSTART;VALUE=DATE:20261225"), years=years)
