"""Calendars change while occurrences are under way: each occurrence has one outcome."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.fixtures.acts import about, refusal
from tests.fixtures.database import ClockedDatabase
from tests.intake.test_calendars import fired, november
from tests.scheduler.firing import fire_due
from tidewheel.intake import calendars
from tidewheel.schemas.generated.records import Reply

SECOND = timedelta(seconds=1)
FRIDAY_NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
SATURDAYS: dict[str, Any] = {
    "schedule": {"cron": "0 9 * * SAT"},
    "overlap": "allow_all",
    "on_excluded": "next_business_day",
}
ONCE = SATURDAYS | {"schedule": {"once": "2026-11-21T09:00:00Z"}}


def put(database: ClockedDatabase, *days: str) -> Reply:
    return database.apply({"type": "calendar.put", "name": "holidays", "days": list(days)})


def excluded(database: ClockedDatabase) -> list[datetime]:
    return [at for (at,) in database.rows("SELECT first_at FROM skips WHERE reason = 'excluded' ORDER BY first_at")]


def go_to(database: ClockedDatabase, day: int, hour: int = 9) -> None:
    database.stop_clock(november(day, hour))
    fire_due(database)


def test_occurrences_due_during_a_put_fire_by_the_new_days(friday: ClockedDatabase) -> None:
    """Settling thousands of jobs takes seconds; the clock goes on between the old days and the new ones."""
    put(friday, "2020-01-01")
    friday.submit(schedule="@every 1s", overlap="allow_all", exclude_calendars=["holidays"])
    friday.advance(2 * SECOND)
    friday.execute(
        "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS"
        " 'BEGIN UPDATE test_clock SET ahead = ahead + interval ''3 s''; RETURN new; END'"
    )
    friday.execute("CREATE TRIGGER slow BEFORE UPDATE ON calendars FOR EACH ROW EXECUTE FUNCTION slow()")
    try:
        put(friday, "2020-01-02")
    finally:
        friday.execute("DROP FUNCTION slow CASCADE")
    fire_due(friday)
    assert fired(friday) == [FRIDAY_NOON + n * SECOND for n in range(1, 6)]


@pytest.mark.parametrize("job", [SATURDAYS, ONCE], ids=["weekly", "once"])
def test_fired_occurrence_is_not_shifted_when_a_put_excludes_its_day(
    friday: ClockedDatabase, job: dict[str, Any]
) -> None:
    put(friday, "2020-01-01")
    friday.submit(**job, exclude_calendars=["holidays"])
    go_to(friday, 21)
    friday.stop_clock(november(22))
    put(friday, "2026-11-21", "2026-11-22")
    go_to(friday, 23)
    assert (fired(friday), excluded(friday)) == ([november(21)], [])


def test_fired_occurrence_is_not_shifted_when_its_target_is_excluded(friday: ClockedDatabase) -> None:
    put(friday, "2026-11-21")
    friday.submit(**SATURDAYS, exclude_calendars=["holidays"])
    go_to(friday, 22)
    friday.stop_clock(november(22, 10))
    put(friday, "2026-11-21", "2026-11-22")
    go_to(friday, 23)
    assert (fired(friday), excluded(friday)) == ([november(22)], [november(21)])


@pytest.mark.parametrize("job", [SATURDAYS, ONCE], ids=["weekly", "once"])
def test_fired_occurrence_is_not_shifted_when_an_edit_names_a_calendar(
    friday: ClockedDatabase, job: dict[str, Any]
) -> None:
    put(friday, "2026-11-21", "2026-11-22")
    friday.submit(**job)
    go_to(friday, 21)
    friday.stop_clock(november(22))
    friday.submit(**job, exclude_calendars=["holidays"])
    friday.submit(**job, exclude_calendars=["holidays"], description="an edit that leaves the days alone")
    go_to(friday, 23)
    assert (fired(friday), excluded(friday)) == ([november(21)], [])


def test_excluded_occurrence_stays_excluded_when_a_put_opens_its_day(friday: ClockedDatabase) -> None:
    put(friday, "2026-11-21", "2026-11-22")
    friday.submit(**SATURDAYS, exclude_calendars=["holidays"])
    go_to(friday, 22)
    put(friday, "2026-11-22")
    go_to(friday, 23)
    go_to(friday, 28)
    assert (fired(friday), excluded(friday)) == ([november(28)], [november(21)])


def test_put_of_later_days_keeps_shifted_occurrences(friday: ClockedDatabase) -> None:
    put(friday, "2026-11-21", "2026-11-22")
    friday.submit(**SATURDAYS, exclude_calendars=["holidays"])
    friday.stop_clock(november(21, 12))
    put(friday, "2026-11-21", "2026-11-22", "2026-11-23", "2026-12-25")
    for day in (22, 23, 24):
        go_to(friday, day)
    assert (fired(friday), excluded(friday)) == ([november(24)], [november(21)])


def test_edit_with_the_same_days_keeps_shifted_occurrences(friday: ClockedDatabase) -> None:
    put(friday, "2026-11-21", "2026-11-22")
    friday.submit(**SATURDAYS, exclude_calendars=["holidays"])
    friday.stop_clock(november(22))
    friday.submit(**SATURDAYS, exclude_calendars=["holidays"], description="new words")
    go_to(friday, 23)
    assert (fired(friday), excluded(friday)) == ([november(23)], [november(21)])


def test_moved_and_fired_occurrence_is_not_recorded_as_excluded_by_a_put(friday: ClockedDatabase) -> None:
    put(friday, "2020-01-01")
    friday.submit(schedule="0 9 * * *", overlap="allow_all", exclude_calendars=["holidays"])
    friday.accept(about("job.move", at=november(22).isoformat(), to=november(20, 15).isoformat()))
    go_to(friday, 20, 15)
    put(friday, "2026-11-21", "2026-11-22", "2026-11-23")
    go_to(friday, 24)
    assert (fired(friday), excluded(friday)) == ([november(22), november(24)], [november(21), november(23)])


def test_put_that_affects_too_many_jobs_is_refused_with_their_number(
    friday: ClockedDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calendars, "MAX_JOBS", 2)
    put(friday, "2027-01-01")
    for key in "abc":
        friday.submit(key, schedule="0 9 * * *", exclude_calendars=["holidays"])
    error = refusal(put(friday, "2026-11-21"))
    assert error.path == "name"
    assert error.problem.startswith("3 jobs use this calendar")
    friday.submit("c", schedule="0 9 * * *")
    assert put(friday, "2026-11-21").status == "accepted"
