"""Journeys of a person through the console, by links, buttons and fields alone."""

import re
from collections.abc import Iterator
from datetime import timedelta
from uuid import UUID

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from tests.control.api.answering import answering
from tests.control.client.test_dead_letters import work_off
from tests.control.console.browser import Tab, needs_chromium, tab
from tests.control.console.pages import console, key_of
from tests.fixtures.acts import about, ending
from tests.fixtures.database import Database
from tests.fixtures.services import until
from tests.scheduler.firing import fire_due
from tests.transitions.graphs import DIAMOND, play, put
from tidewheel.runs import RunState

pytestmark = [pytest.mark.slow, needs_chromium]

REASON = "<script>document.title='run'</script>\u202e"
HEARD = 30_000


@pytest.fixture
def here(database: Database, browser: Browser) -> Iterator[Page]:
    """The overview of a console that needs no key; nothing may have gone wrong in it."""
    with answering(database) as client, tab(browser, str(client.base_url)) as opened:
        opened.open("/")
        yield opened.page
        assert_unharmed(opened)


@pytest.fixture
def admin(database: Database, browser: Browser) -> Iterator[Page]:
    """The overview of a console that needs keys, signed in with one of all tenants."""
    with console(database) as client, tab(browser, str(client.base_url)) as opened:
        opened.open("/sign-in")
        opened.page.fill("input[name=key]", key_of(database, "admin", all_tenants=True))
        opened.page.press("input[name=key]", "Enter")
        expect(opened.page.locator("nav.rail")).to_be_visible()
        yield opened.page
        assert_unharmed(opened)


def assert_unharmed(opened: Tab) -> None:
    assert opened.page.title() != "run"
    assert not opened.faults


def place(at: Page, name: str) -> None:
    """Go to a place of the rail."""
    at.locator("nav.rail").get_by_role("link", name=re.compile(rf"^{name}\b")).click()
    expect(at.locator("nav.rail > ul > li > [aria-current=page]")).to_contain_text(name)


def follow(at: Page, name: str) -> None:
    at.locator("main").get_by_role("link", name=name, exact=True).first.click()


def asked(at: Page, name: str) -> Locator:
    """Click the link of an action; return its dialog."""
    at.locator("body").get_by_role("link", name=name, exact=True).first.click()
    dialog = at.locator("dialog[open]")
    expect(dialog).to_be_visible()
    return dialog


def do(dialog: Locator) -> None:
    dialog.locator("button.primary, button.danger").last.click()
    expect(dialog).to_have_count(0)


def trigger_here(at: Page) -> UUID:
    """Trigger the job that the page shows; return the run, whose page follows."""
    do(asked(at, "Trigger…"))
    at.wait_for_url("**/runs/*")
    return UUID(at.url.rpartition("/")[2])


def test_webhook_is_submitted_fails_is_mended_and_redriven(here: Page, database: Database) -> None:
    place(here, "Jobs")
    follow(here, "New job")
    here.fill("#f-key", "bill")
    here.get_by_label("HTTP call", exact=True).check()
    here.fill("[name='target.url']", "https://example.org/bill")
    here.get_by_label("Manual", exact=True).check()
    here.get_by_role("button", name="Create job").first.click()
    here.wait_for_url("**/jobs/bill")
    started = database.begin(trigger_here(here))
    database.succeed(started)
    expect(here.locator(".title")).to_contain_text("succeeded", timeout=HEARD)

    follow(here, "bill")
    failing = database.begin(trigger_here(here))
    failed = RunState.FAILED
    output = b"the ledger is locked"
    database.end(ending(failing, failed, error_type="http_500", error_message=REASON, output=output))
    expect(here.locator(".lead")).to_contain_text("Failed", timeout=HEARD)

    place(here, "Dead letters")
    follow(here, "bill")
    expect(here.locator("main")).to_contain_text("The last run failed at")
    here.locator(f"main a[href$='{failing.run_id}']").last.click()
    expect(here.locator("main")).to_contain_text("the ledger is locked")

    follow(here, "bill")
    follow(here, "Edit")
    here.fill("[name='target.url']", "https://example.org/bill-again")
    here.get_by_role("button", name="Save").first.click()
    expect(here.locator("main")).to_contain_text("version 2")

    place(here, "Dead letters")
    dialog = asked(here, "Retry 1…")
    do(dialog)
    expect(here.locator("main")).to_contain_text("0 of 1 dead letter that matched at its start")
    work_off(database)
    expect(here.locator("main")).to_contain_text("1 retried", timeout=HEARD)
    expect(here.locator(".title")).to_contain_text("finished")


def test_skip_names_its_reason_and_slow_run_its_stage(here: Page, database: Database) -> None:
    database.submit("nightly", schedule={"interval": "1s"})
    database.apply_batch(about("job.pause", "nightly", reason=REASON))
    late = database.now() + timedelta(seconds=2)
    until(lambda: database.now() > late, "an occurrence has passed")
    database.apply_batch(about("job.resume", "nightly"))
    until(lambda: fire_due(database), "an occurrence is due")
    started = database.begun("nightly", overlap="allow_all")
    database.succeed(started)
    place(here, "Jobs")
    follow(here, "nightly")
    here.get_by_role("link", name="skipped").last.click()
    expect(here.locator("main")).to_contain_text("the job was paused")
    place(here, "Runs")
    here.fill("main [name=job]", "nightly")
    here.locator("main").get_by_role("button", name="Filter").click()
    here.locator(f"main a[href$='{started.run_id}']").first.click()
    expect(here.locator("main tr.slowest")).to_have_count(1)


def test_failed_part_of_a_workflow_is_resumed(here: Page, database: Database) -> None:
    put(database, DIAMOND)
    root = database.trigger("a")
    play(database, lambda key: RunState.FAILED if key == "b" else RunState.SUCCEEDED)
    place(here, "Jobs")
    follow(here, "a")
    here.locator(f"main a[href$='{root}']:visible").last.click()
    follow(here, "Part of a workflow")
    do(asked(here, "Retry failed…"))
    expect(here.locator("main")).to_contain_text("generation 1")
    play(database)
    expect(here.locator(".sentence")).to_contain_text("4 succeeded", timeout=HEARD)


def test_tenant_gets_a_limit_and_a_key_is_revoked(admin: Page) -> None:
    place(admin, "Admin")
    dialog = asked(admin, "Limits…")
    dialog.locator("[name=in_flight]").fill("-3")
    dialog.locator("button.primary").click()
    expect(dialog.locator("[aria-invalid]")).to_have_value("-3")
    dialog.locator("[name=in_flight]").fill("50")
    do(dialog)
    expect(admin.locator("main")).to_contain_text("0 of 50")
    place(admin, "Admin")
    follow(admin, "Keys")
    dialog = asked(admin, "New key…")
    dialog.locator("[name=name]").fill("<script>document.title='run'</script>")
    dialog.locator("[name=read]").check()
    dialog.locator("button.primary").click()
    expect(dialog).to_contain_text("The key, shown only once")
    dialog.get_by_role("link", name="Done").click()
    expect(admin.locator("main")).to_contain_text("2 keys")
    do(asked(admin, "Revoke…"))
    expect(admin.locator("main")).to_contain_text("revoked")
