"""Forms in a real Chromium: drafts, races of two edits, errors in view."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Locator, Page, Route, expect

from tests.control.api.answering import ApiClient, answering
from tests.control.console.browser import Tab, needs_chromium, tab
from tests.fixtures.database import Database
from tidewheel.nouns.jobs.form import at_path
from tidewheel.nouns.jobs.versions import job_at

pytestmark = [pytest.mark.slow, needs_chromium]

EDIT = "/jobs/nightly/edit"
HOSTILE = '<script>alert(1)</script>"\u202e'


@pytest.fixture
def pages(database: Database) -> Iterator[ApiClient]:
    """A console that needs no key, with one job."""
    put(database, "0 5 * * *")
    with answering(database) as client:
        yield client


@pytest.fixture
def here(pages: ApiClient, browser: Browser) -> Iterator[Tab]:
    """A tab of that console; nothing may have gone wrong in it."""
    with tab(browser, str(pages.base_url)) as opened:
        yield opened
        assert not opened.faults


def put(database: Database, cron: str) -> None:
    """Save a version of the job, as another person."""
    database.submit("nightly", schedule={"cron": [cron]}, payload={"depot": 1})


def stored(database: Database, number: int) -> tuple[object, object]:
    """Return cron and payload of a version."""
    job = database.within(job_at, "default", "nightly", number)
    return at_path(job, ("schedule", "cron")), job["payload"]


def press(at: Page, name: str) -> None:
    at.locator("main").get_by_role("button", name=name).first.click()


def cron(at: Page) -> Locator:
    return at.locator("[name='schedule.cron']")


def payload(at: Page) -> Locator:
    return at.locator("[name=payload]")


def save(at: Page, number: int) -> None:
    press(at, "Save")
    expect(at.locator(".toast")).to_contain_text(f"Version {number} of")


def test_changes_are_laid_on_top_of_another_edit_and_nothing_else(here: Tab, database: Database) -> None:
    at = here.page
    here.open(EDIT)
    put(database, "0 6 * * *")
    payload(at).fill('{"depot": 2}')
    press(at, "Save")
    expect(at.get_by_role("alert")).to_be_focused()
    expect(cron(at)).to_have_value("0 6 * * *")
    at.reload()  # the answer survives, as what was typed on version 2
    expect(at.locator(".draft")).to_contain_text("Restored what you typed at")
    expect(cron(at)).to_have_value("0 6 * * *")
    save(at, 3)
    assert stored(database, 3) == (["0 6 * * *"], {"depot": 2})
    here.open(EDIT)
    expect(at.locator(".draft")).to_have_count(0)


def test_field_that_both_have_changed_is_yours_beside_the_version_in_force(here: Tab, database: Database) -> None:
    at = here.page
    here.open(EDIT)
    put(database, "0 6 * * *")
    cron(at).fill("0 7 * * *")
    press(at, "Save")
    expect(at.locator("#check")).to_contain_text("0 6 * * *")
    expect(cron(at)).to_have_value("0 7 * * *")
    save(at, 3)
    assert stored(database, 3)[0] == ["0 7 * * *"]


def test_draft_of_an_earlier_version_is_offered_and_not_laid_over_the_form(here: Tab, database: Database) -> None:
    at = here.page
    here.open(EDIT)
    payload(at).fill(HOSTILE)
    here.open("/jobs")
    put(database, "0 6 * * *")
    here.open(EDIT)
    expect(at.locator(".draft")).to_contain_text("You typed changes to version 1; version 2 is now in force.")
    expect(payload(at)).not_to_have_value(HOSTILE)
    press(at, "Restore")
    expect(payload(at)).to_have_value(HOSTILE)
    expect(cron(at)).to_have_value("0 6 * * *")
    cron(at).fill("0 8 * * *")
    here.open("/jobs")
    put(database, "0 9 * * *")
    here.open(EDIT)
    expect(at.locator(".draft")).to_contain_text("Both of you changed: schedule.cron")
    press(at, "Discard")
    at.reload()
    expect(at.locator(".draft")).to_have_count(0)
    expect(cron(at)).to_have_value("0 9 * * *")


def test_draft_is_named_and_thrown_away_by_discard_and_by_leaving(here: Tab) -> None:
    at = here.page
    here.open(EDIT)
    served = payload(at).input_value()
    payload(at).fill(HOSTILE)
    at.reload()
    expect(payload(at)).to_have_value(HOSTILE)
    press(at, "Discard")
    expect(payload(at)).to_have_value(served)
    payload(at).fill(HOSTILE)
    at.get_by_role("link", name="Cancel").click()
    at.wait_for_url("**/jobs/nightly")
    here.open(EDIT)
    expect(at.locator(".draft")).to_have_count(0)
    expect(payload(at)).to_have_value(served)


def test_next_trigger_dialog_is_empty_and_offers_what_was_typed(here: Tab) -> None:
    at = here.page
    here.open("/jobs/nightly")
    dialog, typed = at.locator("dialog"), at.locator("dialog [name=payload]")

    def ask() -> None:
        at.locator(".actions").get_by_text("Trigger…").first.click()
        expect(dialog).to_be_visible()

    ask()
    served = typed.input_value()
    typed.fill(HOSTILE)
    at.keyboard.press("Escape")
    ask()
    expect(typed).to_have_value(served)
    dialog.get_by_role("button", name="Restore").click()
    expect(typed).to_have_value(HOSTILE)
    dialog.locator(".buttons a").click()
    ask()
    expect(dialog.locator(".draft")).to_have_count(0)
    expect(typed).to_have_value(served)


def test_refused_save_shows_its_errors_and_a_long_key_is_kept_whole(here: Tab) -> None:
    at = here.page
    here.open("/jobs/new")
    at.locator("#f-key").fill("k" * 300)
    at.locator("main .buttons").get_by_role("button", name="Create job").click()
    errors = at.locator(".band.bad")
    expect(errors).to_be_focused()
    expect(errors).to_be_in_viewport()
    expect(errors).to_contain_text("255")
    expect(at.locator("#f-key")).to_have_value("k" * 300)


def test_slow_save_shows_that_it_is_under_way_and_is_sent_once(here: Tab) -> None:
    at = here.page
    here.open(EDIT)
    payload(at).fill('{"depot": 4}')
    held: list[Route] = []
    at.route("**/edit", lambda route: held.append(route) if route.request.method == "POST" else route.continue_())
    button = at.get_by_role("button", name="Save").last
    with at.expect_request(lambda request: request.method == "POST"):
        button.click()
    expect(at.get_by_role("button", name="Saving…")).to_be_disabled()
    at.locator("#f-retry\\.max_attempts").evaluate("field => field.form.requestSubmit()")
    at.get_by_role("button", name="Saving…").click(force=True)
    assert len(held) == 1
    held[0].abort()
    expect(at.locator(".said")).to_contain_text("Not known whether it was saved.")
    expect(button).to_have_text("Save")
    expect(button).to_be_enabled()
    at.unroute("**/edit")
    save(at, 2)


def test_form_beyond_its_limit_names_it_and_stays(here: Tab) -> None:
    at = here.page
    here.open(EDIT)
    payload(at).fill("1")
    payload(at).evaluate("field => { field.value = ' '.repeat(3_000_000); }")
    at.get_by_role("button", name="Save").last.click()
    expect(at.locator(".said")).to_have_text(
        "This form accepts at most 2 MiB, a payload 256 KiB of that; nothing was saved."
    )
    assert len(payload(at).input_value()) == 3_000_000


def test_save_without_an_answer_says_so_beside_its_button(here: Tab) -> None:
    at = here.page
    here.open(EDIT)
    payload(at).fill('{"depot": 4}')
    at.context.set_offline(True)
    for button in (at.get_by_role("button", name="Save").first, at.get_by_role("button", name="Save").last):
        button.click()
        expect(at.locator(".said")).to_contain_text("Not known whether it was saved.")
        expect(at.locator(".said")).to_be_in_viewport()
        expect(button).to_have_text("Save")
    at.context.set_offline(False)
    save(at, 2)


def test_what_saving_does_is_shown_while_one_types(here: Tab, pages: ApiClient) -> None:
    here.open(EDIT)
    panel = here.page.locator("#check")
    cron(here.page).fill("0 5 * * *\n30 2 * * *")
    expect(panel.locator("ins").first).to_contain_text("02:30 +")
    cron(here.page).fill("61 2 * * *")
    expect(panel).to_contain_text("61")
    expect(panel.locator("ins")).to_have_count(0)
    expect(cron(here.page)).to_be_focused()
    payload(here.page).fill('{"depot": 2')
    cron(here.page).fill("0 6 * * *")
    expect(panel.get_by_role("link", name="payload")).to_be_visible()
    payload(here.page).fill('{"depot": 2}')
    expect(panel.locator("table.diff")).to_contain_text("0 6 * * *")
    assert len(pages.get("/api/v1/jobs/nightly/versions").json()["versions"]) == 1
