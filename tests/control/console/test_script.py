"""The script in a real Chromium: live, keys, dialogs, drafts, times; and pages without it."""

import gzip
import re
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Browser, FilePayload, Route, expect

from tests.control.api.answering import ApiClient, answering
from tests.control.console.browser import PHONE, Tab, needs_chromium, tab
from tests.control.console.pages import console, key_of
from tests.fixtures.acts import ending
from tests.fixtures.database import Database
from tests.fixtures.services import until
from tidewheel.control.console import rendering
from tidewheel.runs import RunState

pytestmark = [pytest.mark.slow, needs_chromium]

SCRIPT = Path(rendering.__file__).parent / "static" / "console.js"
MOST_BYTES = 10 * 1024
ON = "#live[data-state=on]"


@pytest.fixture
def pages(database: Database) -> Iterator[ApiClient]:
    """A console that needs no key, with one job."""
    database.submit("nightly", overlap="allow_all", schedule={"cron": "30 2 * * *", "timezone": "America/New_York"})
    with answering(database) as client:
        yield client


@pytest.fixture
def here(pages: ApiClient, browser: Browser) -> Iterator[Tab]:
    """A tab of that console; nothing may have gone wrong in it."""
    with tab(browser, str(pages.base_url), timezone_id="Asia/Kolkata") as opened:
        yield opened
        assert not opened.faults


def test_script_is_small() -> None:
    assert len(gzip.compress(SCRIPT.read_bytes(), 9)) <= MOST_BYTES


def test_range_of_log_lines_is_picked_and_has_an_address(here: Tab, database: Database) -> None:
    started = database.begun("nightly")
    database.end(ending(started, RunState.SUCCEEDED, output=b"".join(b"line %d\n" % at for at in range(1, 40))))
    picked = here.page.locator(".line.picked")
    here.open(f"/runs/{started.run_id}#a1-L10-L20")
    expect(picked).to_have_count(11)
    here.page.locator("#a1-L3 > a").click()
    expect(picked).to_have_count(0)
    here.page.locator("#a1-L5 > a").click(modifiers=["Shift"])
    expect(picked).to_have_text(["3line 3", "4line 4", "5line 5"])
    assert here.page.url.endswith("#a1-L3-L5")


def test_text_of_a_file_goes_into_its_field(here: Tab) -> None:
    here.open("/new-calendar")
    file = FilePayload(name="days.ics", mimeType="text/calendar", buffer=b"BEGIN:VCALENDAR <script>")
    here.page.locator("input[data-into=ics]").set_input_files(file)
    expect(here.page.locator("textarea[name=ics]")).to_have_value("BEGIN:VCALENDAR <script>")


def test_fleet_is_read_again_while_it_is_open(here: Tab, database: Database) -> None:
    here.page.clock.install()
    here.open("/fleet")
    expect(here.page.locator("main")).not_to_contain_text("Frozen")
    database.client.freezes.freeze(queue="reports")
    here.page.clock.run_for(6_000)
    expect(here.page.locator("main")).to_contain_text("Frozen", timeout=30_000)


def test_phone_switches_tenants_in_a_menu(here: Tab, database: Database) -> None:
    database.execute("INSERT INTO tenants (tenant) VALUES ('acme')")
    here.look("390-light")
    here.open("/runs")
    here.page.locator(".tenants > summary").click()
    here.page.locator(".tenants").get_by_role("link", name="acme").click()
    expect(here.page).to_have_url(re.compile(r"/runs\?tenant=acme$"))
    assert here.sideways() == 0


def test_operator_of_all_tenants_freezes_another_tenant_and_asks_about_its_jobs(here: Tab, database: Database) -> None:
    database.execute("INSERT INTO tenants (tenant) VALUES ('acme')")
    here.open("/freeze?tenant=acme")
    here.page.locator("form[data-dialog] button").first.click()
    expect(here.page.locator("dialog h1")).to_contain_text("Freeze tenant acme?")
    here.page.keyboard.press("Escape")
    here.page.locator(".ask input[name=q]").fill("nightly")
    here.page.keyboard.press("Enter")
    expect(here.page).to_have_url(re.compile(r"/ask\?tenant=acme&q=nightly$"))


def test_tab_that_opens_in_the_background_is_live_once_it_is_shown(here: Tab) -> None:
    here.page.add_init_script("""
        let away = true;
        Object.defineProperty(document, "hidden", { get: () => away });
        window.showTab = () => { away = false; document.dispatchEvent(new Event("visibilitychange")); };
    """)
    here.open("/")
    expect(here.page.locator("#live")).to_contain_text("Paused, tab was hidden")
    here.page.evaluate("showTab()")
    expect(here.page.locator(ON)).to_be_visible()


def test_link_to_a_part_of_the_page_does_not_load_it_again(here: Tab) -> None:
    here.open("/jobs/new")
    here.page.locator("input[name=key]").fill("typed")
    here.page.evaluate("window.same = true")
    here.page.evaluate("location.hash = 'main'")
    here.page.evaluate("location.hash = ''")
    expect(here.page.locator("input[name=key]")).to_have_value("typed")
    assert here.page.evaluate("window.same")


def test_answer_of_a_proxy_keeps_the_form_and_its_request(here: Tab, database: Database) -> None:
    here.open("/jobs/nightly")
    here.page.locator(".actions a[href$=trigger]").click()
    asked: list[str] = []

    def refuse(route: Route) -> None:
        if route.request.method != "POST":
            route.continue_()
            return
        asked.append(parse_qs(route.request.post_data or "")["request_id"][0])
        if len(asked) == 1:
            route.fulfill(status=502, content_type="text/html", body="<h1>Bad gateway</h1>")
        else:
            route.continue_()

    here.page.route("**/trigger*", refuse)
    button = here.page.locator("dialog .buttons button")
    button.click()
    expect(here.page.locator("dialog .said")).to_contain_text("Trying again is safe.")
    button.click()
    expect(here.page).to_have_url(re.compile("/runs/"))
    assert asked[0] == asked[1]


def test_run_that_has_left_its_list_is_struck_out(here: Tab, database: Database) -> None:
    runs = [database.begun("nightly") for _ in range(2)]
    here.open("/runs?status=running")
    expect(here.page.locator(ON)).to_be_visible()
    database.succeed(runs[0])
    expect(here.page.locator(f"tr.left[data-key='{runs[0].run_id}']")).to_be_visible(timeout=30_000)
    expect(here.page.locator(f"tr[data-key='{runs[1].run_id}']")).not_to_have_class("left")


def test_drag_over_the_axis_and_keys_zoom_by_time(here: Tab) -> None:
    here.open("/jobs/nightly?from=2026-11-01T00:00:00Z&to=2026-11-02T00:00:00Z")
    figure = here.page.locator("figure[data-from]")
    box = figure.locator("svg").first.bounding_box()
    assert box is not None
    begin, end = (datetime.fromisoformat(str(figure.get_attribute(f"data-{name}"))) for name in ("from", "to"))
    here.page.mouse.move(box["x"] + box["width"] / 4, box["y"] + 20)
    here.page.mouse.down()
    here.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 30, steps=4)
    expect(here.page.locator(".dragged")).to_be_visible()
    here.page.mouse.up()
    expect(here.page).not_to_have_url(re.compile("2026-11-02T00"))
    found = parse_qs(urlsplit(here.page.url).query)
    for name, share in (("from", 0.25), ("to", 0.5)):
        opened = datetime.fromisoformat(found[name][0])
        assert abs(opened - begin - (end - begin) * share) < (end - begin) * 0.02, name
    zoomed = str(figure.get_attribute("data-from"))
    here.page.keyboard.press("-")
    expect(figure).not_to_have_attribute("data-from", zoomed)
    here.page.keyboard.press("=")
    expect(figure).to_have_attribute("data-from", zoomed)
    here.page.keyboard.press(".")
    expect(here.page.locator(":focus")).to_have_text("Trigger…")


def test_key_selects_the_row_that_has_the_focus(here: Tab) -> None:
    here.open("/jobs")
    here.page.keyboard.press("x")
    here.page.keyboard.press("j")
    here.page.keyboard.press("x")
    expect(here.page.locator("td.choice input")).to_be_checked()
    expect(here.page.locator("th.choice input")).not_to_be_checked()


def test_buttons_of_a_selection_appear_with_the_first_selected_row(here: Tab) -> None:
    here.open("/jobs")
    button = here.page.locator(".selection button").first
    expect(button).to_be_hidden()
    here.page.locator("td.choice input").first.check()
    button.click()
    expect(here.page.locator("h1")).to_contain_text("Pause 1 job?")


def test_new_rows_of_runs_wait_behind_their_number_and_nothing_else_moves(here: Tab, database: Database) -> None:
    database.submit("unlike")
    first = database.trigger("nightly")
    here.open("/runs")
    row = here.page.locator(f"tr[data-key='{first}']")
    row.get_by_role("checkbox").check()
    expect(here.page.locator(ON)).to_be_visible()
    database.trigger("nightly")
    expect(here.page.locator(".waiting")).to_have_text("1 new", timeout=30_000)
    database.trigger("unlike")  # equal neighbours would be one row
    expect(here.page.locator(".waiting")).to_have_text("2 new", timeout=30_000)
    expect(row.get_by_role("checkbox")).to_be_checked()
    assert here.page.locator("tbody tr").count() == 1
    here.page.click(".waiting")
    assert here.page.locator("tbody tr").count() == 3


def test_selected_text_and_focus_stay_while_the_page_changes(here: Tab, database: Database) -> None:
    here.open("/jobs/nightly")
    expect(here.page.locator(ON)).to_be_visible()
    here.page.evaluate("document.getSelection().selectAllChildren(document.querySelector('h1'))")
    here.page.locator(".actions a[href$=pause]").focus()
    database.trigger("nightly")
    expect(here.page.locator("main")).to_contain_text("waiting", timeout=30_000)
    assert here.page.evaluate("document.getSelection().toString()") == "nightly"
    assert here.page.evaluate("document.activeElement.matches('.actions a[href$=pause]')")


def test_silent_api_is_named_in_a_band_until_it_answers(here: Tab) -> None:
    here.page.clock.install()
    here.open("/")
    expect(here.page.locator(ON)).to_be_visible()
    here.page.context.set_offline(True)
    here.page.evaluate("closeLive()")
    until(lambda: not here.page.evaluate("live.reading"), "no answer from before is to come")
    here.page.clock.run_for(7_000)
    expect(here.page.locator("#live")).to_contain_text("Not live, last heard")
    here.page.clock.run_for(4_000)
    expect(here.page.locator(".stale")).to_contain_text("The API has not answered since")
    here.page.locator(".tenants > summary").click()
    here.page.locator(".freeze").click()
    expect(here.page.locator(".toast.own")).to_contain_text("The API has not answered. Nothing was changed")
    here.page.evaluate("document.querySelector('.toast.own').remove()")
    here.page.locator(".rail a[data-place=jobs]").click()
    expect(here.page.locator(".toast.own")).to_contain_text("The API has not answered.")
    expect(here.page).to_have_title(re.compile("Overview"))
    here.page.context.set_offline(False)
    here.page.evaluate("openLive()")
    expect(here.page.locator(".stale")).to_have_count(0)


def test_page_that_may_not_be_live_says_so_and_reads_itself_slowly(here: Tab, database: Database) -> None:
    database.trigger("nightly")
    here.page.clock.install()
    here.page.route("**/live?*", lambda route: route.fulfill(status=503))
    here.open("/runs")
    expect(here.page.locator("#live[data-state=slow]")).to_have_text("Not live, read each 15 s")
    database.trigger("nightly")
    until(lambda: comes(here, ".waiting"), "the page reads itself")
    here.page.unroute("**/live?*")
    until(lambda: comes(here, ON), "the page is live again")


def runs(opened: Tab, milliseconds: int) -> bool:
    """Let the clock of a page go on."""
    opened.page.clock.run_for(milliseconds)
    return True


def comes(opened: Tab, selector: str) -> bool:
    """Let five seconds of a page's clock pass; return True if it then shows an element."""
    opened.page.clock.run_for(5_000)
    return opened.page.locator(selector).count() > 0


def test_page_reads_itself_again_at_the_instant_that_it_names(here: Tab, database: Database) -> None:
    database.submit("soon", schedule={"interval": "10m"})
    here.page.clock.install()
    reads: list[str] = []
    here.page.on("request", lambda request: reads.append(request.url) if "tidewheel-part" in request.headers else None)
    here.open("/jobs/soon")
    expect(here.page.locator(ON)).to_be_visible()
    until(lambda: runs(here, 2_000) and reads, "the news that a stream begins with")
    assert runs(here, 60_000)
    before = len(reads)
    until(lambda: runs(here, 60_000) and len(reads) > before, "it reads itself after ten minutes")


def test_p_stops_live_and_goes_on(here: Tab) -> None:
    here.open("/")
    expect(here.page.locator(ON)).to_be_visible()
    here.page.keyboard.press("p")
    expect(here.page.locator("#live")).to_contain_text("As of")
    here.page.keyboard.press("p")
    expect(here.page.locator(ON)).to_be_visible()


def test_revoked_key_opens_the_sign_in_in_place_and_what_was_typed_stays(database: Database, browser: Browser) -> None:
    database.submit("nightly")
    with console(database) as client, tab(browser, str(client.base_url)) as opened:
        at = opened.page
        at.goto("/sign-in?next=/jobs/nightly")
        at.fill("input[name=key]", key_of(database, "read", "operate"))
        at.click("button.primary")
        at.wait_for_url("**/jobs/nightly")
        at.click(".actions a[href$=pause]")
        at.fill("dialog input[name=reason]", "maintenance")
        [key] = database.client.api_keys.list()
        database.client.api_keys.revoke(key.key_id)
        at.wait_for_selector("dialog.sign-in", timeout=30_000)
        at.fill("dialog.sign-in input[name=key]", key_of(database, "read", "operate"))
        at.click("dialog.sign-in button")
        expect(at.locator("dialog.sign-in")).to_have_count(0)
        assert at.input_value("dialog input[name=reason]") == "maintenance"
        at.click("dialog button.primary")
        expect(at.locator(".toast")).to_contain_text("paused")
        assert not opened.faults


def test_dialog_opens_in_place_acts_and_is_undone(here: Tab, database: Database) -> None:
    at = here.page
    here.open("/jobs/nightly")
    at.click(".actions a[href$=pause]")
    expect(at.locator("dialog input:not([type=hidden])").first).to_be_focused()
    at.keyboard.press("Escape")
    expect(at.locator("dialog")).to_have_count(0)
    expect(at.locator(".actions a[href$=pause]")).to_be_focused()
    at.click(".actions a[href$=pause]")
    at.click("dialog button.primary")
    expect(at.locator(".toast")).to_contain_text("paused")
    assert database.value("SELECT paused FROM jobs WHERE key = 'nightly'")
    at.click(".toast button")
    expect(at.locator(".toast")).to_contain_text("is resumed")
    assert not database.value("SELECT paused FROM jobs WHERE key = 'nightly'")


def test_answer_that_never_came_is_repeated_with_the_same_request(here: Tab, database: Database) -> None:
    at = here.page
    sent: list[str] = []

    def lose(route: Route) -> None:
        if route.request.method == "GET":
            route.continue_()
            return
        sent.append(route.request.post_data or "")
        if len(sent) == 1:
            route.fetch(max_redirects=0)  # it is done, and its answer is lost
            route.abort()
        else:
            route.continue_()

    here.open("/jobs/nightly")
    at.route("**/pause", lose)
    at.click(".actions a[href$=pause]")
    at.click("dialog button.primary")
    expect(at.locator(".said")).to_have_text("Not known whether it was saved. Trying again is safe.")
    at.click("dialog button.primary")
    expect(at.locator(".toast")).to_be_visible()
    assert sent[0] == sent[1]
    assert database.value("SELECT paused FROM jobs WHERE key = 'nightly'")


def test_keys_lead_to_places_rows_and_help_and_can_be_switched_off(here: Tab) -> None:
    at = here.page
    here.open("/")
    at.keyboard.press("g")
    at.keyboard.press("j")
    at.wait_for_url("**/jobs")
    at.keyboard.press("?")
    expect(at.locator("dialog")).to_contain_text("row density")
    at.keyboard.press("Escape")
    expect(at.locator("dialog")).to_have_count(0)
    at.keyboard.press("j")
    expect(at.locator("tbody a").first).to_be_focused()
    at.keyboard.press("Enter")
    at.wait_for_url("**/jobs/nightly")
    at.keyboard.press("/")
    at.keyboard.type("zd")
    assert at.input_value(".ask input") == "zd"
    at.locator("h1").click()
    at.keyboard.press("d")
    at.wait_for_selector("html[data-density=compact]")
    at.click(".settings > summary")
    at.click("button[name=keys][value=off]")
    at.wait_for_selector("html[data-keys=off]")
    at.keyboard.press("g")
    at.keyboard.press("r")
    at.keyboard.press("?")
    assert at.url.endswith("/jobs/nightly")
    assert at.locator("dialog").count() == 0


def test_times_are_in_the_zone_of_the_page_and_whole_on_demand(here: Tab, database: Database) -> None:
    at = here.page
    run = database.trigger("nightly")
    here.open(f"/runs/{run}?tz=Europe/Berlin")
    assert at.locator("main time[title*='UTC+0']").count() > 0
    here.open("/runs")
    assert "ago" in at.inner_text("main tbody time") or "now" in at.inner_text("main tbody time")
    at.keyboard.press("z")
    assert at.inner_text("main tbody time").endswith("UTC")
    at.click(".settings > summary")
    at.click("#browser-zone")
    expect(at.locator("footer")).to_contain_text("Asia/")
    assert "+05:30" in (at.get_attribute("main tbody time", "title") or "")


def test_id_is_copied_also_without_the_clipboard(here: Tab, database: Database) -> None:
    run = database.trigger("nightly")
    here.open(f"/runs/{run}")
    here.page.evaluate("document.execCommand = () => { window.copied = document.activeElement.value; return true; }")
    here.page.evaluate("Object.defineProperty(navigator, 'clipboard', {value: undefined})")
    here.page.keyboard.press("c")
    expect(here.page.locator(".toast")).to_have_text("Copied.")
    assert here.page.evaluate("window.copied") == str(run)


def test_installation_has_its_name_in_the_bar_and_production_stands_out(database: Database, browser: Browser) -> None:
    grounds = set[str]()
    for name in ("production", "staging"):
        with answering(database, console_name=name) as client, tab(browser, str(client.base_url)) as opened:
            opened.open("/")
            expect(opened.page.locator(".env")).to_have_text(name)
            grounds.add(opened.page.locator(".env").evaluate("each => getComputedStyle(each).backgroundColor"))
            assert name in opened.page.title()
    assert len(grounds) == 2


def test_menu_closes_by_a_click_beside_it_and_by_escape(here: Tab) -> None:
    here.open("/")
    for close in (lambda: here.page.click("h1"), lambda: here.page.keyboard.press("Escape")):
        here.page.click(".settings > summary")
        expect(here.page.locator("#looks")).to_be_visible()
        close()
        expect(here.page.locator("#looks")).not_to_be_visible()


def test_theme_is_chosen_in_the_menu_and_by_a_key(here: Tab) -> None:
    here.open("/")
    here.page.click(".settings > summary")
    here.page.click("button[name=theme][value=dark]")
    here.page.wait_for_selector("html[data-theme=dark]")
    here.page.keyboard.press("t")
    here.page.wait_for_selector("html:not([data-theme])")


def test_phone_reaches_every_place_from_the_bottom_bar(here: Tab) -> None:
    here.look("390-light")
    here.open("/")
    for name in ("Workflows", "Fleet", "Bulk work", "Calendars", "Admin"):
        here.page.get_by_text("More", exact=True).click()
        here.page.locator(".more").get_by_role("link", name=name).click()
        expect(here.page.locator(".rail [aria-current=page]").first).to_contain_text(name.partition(" ")[0])


def test_pages_work_without_script(pages: ApiClient, database: Database, browser: Browser) -> None:
    with tab(browser, str(pages.base_url), java_script_enabled=False) as opened:
        at = opened.page
        opened.open("/jobs/nightly")
        assert at.locator(".needs-script:visible, #live:visible").count() == 0
        at.click(".actions a[href$=pause]")
        at.click("button.primary")
        assert "paused" in at.inner_text(".toast")
        assert database.value("SELECT paused FROM jobs WHERE key = 'nightly'")
        at.set_viewport_size({"width": PHONE[0], "height": PHONE[1]})
        at.click(".settings > summary")
        at.fill("input[name=zone]", "Europe/Berlin")
        at.click(".zone button >> nth=0")
        assert "Europe/Berlin" in at.inner_text("footer")
