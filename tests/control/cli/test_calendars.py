"""`tidewheel admin calendar`: put, listed, shown, deleted, refused with what works."""

from pathlib import Path

from tests.control.cli.command import json_output, tidewheel
from tests.fixtures.database import Database

CHRISTMAS = """BEGIN:VCALENDAR
BEGIN:VEVENT
UID:christmas
SUMMARY:Christmas
DTSTART;VALUE=DATE:20251225
DTEND;VALUE=DATE:20251227
RRULE:FREQ=YEARLY
END:VEVENT
END:VCALENDAR
"""


def test_calendar_is_put_from_lists_and_shown(database: Database) -> None:
    put = json_output(
        database, "admin", "calendar", "put", "closed", "--days", "2026-12-25, 2026-12-24", "--weekdays", "SAT,sun"
    )
    assert (put["unchanged"], put["version"], put["days"]) == (False, 1, ["2026-12-24", "2026-12-25"])
    shown = json_output(database, "admin", "calendar", "show", "closed")
    assert shown == {name: value for name, value in put.items() if name != "unchanged"}
    assert shown["weekdays"] == ["SUN", "SAT"]


def test_identical_put_is_reported_as_unchanged(database: Database) -> None:
    for said in ("version 1", "unchanged, version 1"):
        done = tidewheel(database, "admin", "calendar", "put", "closed", "--weekdays", "SAT,SUN")
        assert done.lines == [f"calendar closed: {said}; SUN, SAT; no job uses it"]


def test_file_adds_its_days_and_reports_the_horizon_of_its_repeats(database: Database, tmp_path: Path) -> None:
    path = tmp_path / "bank.ics"
    path.write_text(CHRISTMAS)
    put = json_output(database, "admin", "calendar", "put", "bank", "--from", path, "--weekdays", "SUN", "--years", "2")
    assert put["days"][:4] == ["2025-12-25", "2025-12-26", "2026-12-25", "2026-12-26"]
    assert put["weekdays"] == ["SUN"]
    assert put["source"].startswith("bank.ics: 1 events, repeats followed to 20")


def test_unreadable_file_changes_nothing(database: Database, tmp_path: Path) -> None:
    path = tmp_path / "bank.ics"
    path.write_text(CHRISTMAS.replace("20251225", "soon"))
    [refusal] = tidewheel(database, "admin", "calendar", "put", "bank", "--from", path).refusals
    assert refusal.startswith("bank.ics: event 1 'Christmas' (UID christmas): DTSTART: ")
    assert database.count("calendars") == 0


def test_invalid_value_is_refused_with_its_place(database: Database) -> None:
    def refusal(*flags: str) -> str:
        [line] = tidewheel(database, "admin", "calendar", "put", "closed", *flags).refusals
        return line

    assert refusal().endswith("add days with --from, --days or --weekdays")
    assert refusal("--days", "2026-12-25,25.12.2026").startswith("days.1: ")
    assert "SUN, MON" in refusal("--weekdays", "SAT,SONNTAG")


def test_calendars_are_listed_with_the_jobs_that_name_them(database: Database) -> None:
    assert tidewheel(database, "admin", "calendar", "list").lines == ["no calendars"]
    json_output(database, "admin", "calendar", "put", "closed", "--days", "2026-12-25", "--source", "the works council")
    database.submit("report", schedule={"cron": "0 9 * * *"}, exclude_calendars=["closed"])
    [listed] = json_output(database, "admin", "calendar", "list")["calendars"]
    assert (listed["name"], listed["days"], listed["weekdays"], listed["jobs"]) == ("closed", 1, [], 1)
    row = tidewheel(database, "admin", "calendar", "list").lines[-1]
    assert row.split() == ["closed", "1", "1", "1", "the", "works", "council"]
    assert tidewheel(database, "admin", "calendar", "show", "closed").lines[-1].split() == ["jobs", "report"]


def test_a_calendar_is_deleted_once_no_job_names_it(database: Database) -> None:
    json_output(database, "admin", "calendar", "put", "closed", "--days", "2026-12-25")
    database.submit("report", schedule={"cron": "0 9 * * *"}, exclude_calendars=["closed"])
    [refusal] = tidewheel(database, "admin", "calendar", "delete", "closed").refusals
    assert refusal.startswith("name: the job 'report' uses it")
    database.submit("report", schedule={"cron": "0 9 * * *"})
    assert json_output(database, "admin", "calendar", "delete", "closed") == {"name": "closed", "deleted": True}
    [refusal] = tidewheel(database, "admin", "calendar", "show", "closed").refusals
    assert refusal == "name: tenant 'default' has no calendar 'closed'; choose one of the list of calendars"
