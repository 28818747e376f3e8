"""Calendars by pages and forms: a year of days, an iCalendar text, errors at their fields, deletion."""

import re
from datetime import date
from http import HTTPStatus

from tests.control.api.answering import ApiClient
from tests.control.console.pages import assert_has, assert_refused, fields_of, found_on, posted, signed_console
from tests.control.console.test_admin import changed, refused
from tests.fixtures.database import Database

ICS = "BEGIN:VCALENDAR\nBEGIN:VEVENT\nDTSTART;VALUE=DATE:20261225\nDTEND;VALUE=DATE:20261227\nEND:VEVENT\nEND:VCALENDAR"


def test_calendar_is_created_changed_and_deleted(pages: ApiClient) -> None:
    page = changed(
        pages, "/new-calendar", name="holidays", days="2026-05-01, 2026-10-03", weekdays="SAT SUN", ics=ICS,
        source="<b>ministry",
    )  # fmt: skip
    assert_has(page, "4 days", "&lt;b&gt;ministry", "Calendar holidays is created.")
    year = pages.get("/calendars/holidays?year=2026").text
    assert year.count('<td class="closed"') == 4
    assert year.count('<td class="weekly"') == 102  # of 104, two are days of its own
    assert len(re.findall(r"<td[^>]*>\d", year)) == 365
    pages.database.submit("a/b", schedule={"cron": "0 9 * * *"}, exclude_calendars=["holidays"])
    assert 'href="/jobs/id:' in pages.get("/calendars/holidays").text
    assert "cannot be deleted while 1 job uses it." in refused(pages, "/calendars/holidays/delete")
    days = {"days": "2027-01-01", "weekdays": "", "ics": "", "source": ""}
    seen = posted(pages, "/calendars/holidays/edit", **days)
    assert seen.status_code == HTTPStatus.OK
    assert 'href="/jobs/id:' in pages.get("/calendars/holidays").text
    page = changed(pages, "/calendars/holidays/edit", **days, seen=seen_of(seen.text))
    assert "1 day<" in page
    pages.database.submit("a/b", schedule={"cron": "0 9 * * *"})
    assert "Calendar holidays is deleted." in changed(pages, "/calendars/holidays/delete")
    assert pages.get("/calendars/holidays").status_code == HTTPStatus.NOT_FOUND


def seen_of(page: str) -> str:
    """Return the name of the effect that a dialog shows."""
    return found_on(page, r'name="seen" value="(\w+)"')


def test_change_of_a_calendar_that_another_one_has_overtaken_is_refused(pages: ApiClient) -> None:
    changed(pages, "/new-calendar", name="holidays", days="2199-05-01", weekdays="")
    late = fields_of(pages.get("/calendars/holidays/edit"))
    changed(pages, "/calendars/holidays/edit", days="2199-05-02", weekdays="")
    answer = pages.post("/calendars/holidays/edit", data=late | {"days": "2199-05-03", "weekdays": ""})
    assert_refused(answer, "Another change has made version 2 of it.")
    assert "2199-05-03</textarea>" in answer.text
    assert pages.database.value("SELECT version FROM calendars") == 2


def test_effect_of_new_days_is_shown_before_they_are_saved(pages: ApiClient) -> None:
    changed(pages, "/new-calendar", name="holidays", days="2199-05-01", weekdays="")
    hostile = "<script>alert(1)</script>\u05d0"
    pages.database.submit(hostile, schedule={"cron": "0 9 * * *"}, exclude_calendars=["holidays"])
    soon: date = pages.database.value("SELECT (tidewheel_now() AT TIME ZONE 'UTC')::date + 3")
    given = {"days": str(soon), "weekdays": ""}
    page = posted(pages, "/calendars/holidays/edit", **given).text
    text = re.sub(r"</?bdi>", "", page)
    assert "<script>alert" not in page
    assert "Removes 1 day: Wed 1 May 2199." in text
    named = f"{soon:%a} {soon.day} {soon:%b %Y}"
    assert_has(text, f"Adds 1 day: {named}.", f"1 of its next 50 occurrences falls on such days: {named}.")
    assert pages.database.value("SELECT version FROM calendars") == 1
    other = posted(pages, "/calendars/holidays/edit", days=str(soon), weekdays="SUN", seen=seen_of(page))
    assert "Adds every SUN." in re.sub(r"</?bdi>", "", other.text)
    page = changed(pages, "/calendars/holidays/edit", **given, seen=seen_of(page))
    assert "Calendar holidays has the new days." in page
    assert "had these days already" in changed(pages, "/calendars/holidays/edit", **given)
    assert "aria-invalid" in refused(pages, "/calendars/holidays/edit", days="2026-02-30", weekdays="")


def test_errors_stand_at_their_fields_and_nothing_typed_is_lost(pages: ApiClient) -> None:
    page = refused(pages, "/new-calendar", name="holidays", days="2026-02-30", weekdays="SAT", ics="")
    assert_has(page, "2026-02-30</textarea>", "&#39;2026-02-30&#39; is not valid")
    page = refused(pages, "/new-calendar", name="holidays", days="", weekdays="", ics="BEGIN:NOTHING")
    assert "Not an iCalendar file" in page or "Contains no event" in page
    assert "BEGIN:NOTHING</textarea>" in page
    assert "A calendar needs a day" in refused(pages, "/new-calendar", name="holidays")
    assert 'aria-invalid="true"' in refused(pages, "/new-calendar", name="<Holidays>", days="2026-05-01")
    changed(pages, "/new-calendar", name="new", days="2026-05-01")
    assert "There is a calendar" in refused(pages, "/new-calendar", name="new", days="2026-05-02")
    assert pages.get("/calendars/new?year=9999").status_code == HTTPStatus.OK


def test_changes_need_the_scope_write(database: Database) -> None:
    with signed_console(database, "read", "operate") as client:
        assert "New calendar" not in client.get("/calendars").text
        for path in ("/new-calendar", "/calendars/x/edit", "/calendars/x/delete"):
            assert client.get(path).status_code == HTTPStatus.FORBIDDEN
