"""Zoom, print, long keys and the focus of dialogs in a real Chromium."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from tests.control.api.answering import ApiClient
from tests.control.console.browser import Tab, needs_chromium, tab
from tests.control.console.seeded import Ids
from tests.fixtures.acts import ending
from tidewheel.runs import RunState

pytestmark = [pytest.mark.slow, needs_chromium]

_PINNED = """() => [...document.querySelectorAll('.top, .rail, .spec > .buttons')]
    .filter(each => ['sticky', 'fixed'].includes(getComputedStyle(each).position)).length"""


@pytest.fixture
def here(seeded: tuple[ApiClient, Ids], browser: Browser) -> Iterator[Tab]:
    """A tab of the seeded console; nothing may have gone wrong in it."""
    with tab(browser, str(seeded[0].base_url)) as opened:
        yield opened
        assert not opened.faults


@pytest.mark.parametrize("size", [(320, 256), (844, 390)])
def test_low_window_pins_nothing(here: Tab, size: tuple[int, int]) -> None:
    here.page.set_viewport_size({"width": size[0], "height": size[1]})
    here.open("/jobs/hourly/edit")
    assert here.page.evaluate(_PINNED) == 0
    assert here.sideways() == 0


def test_print_leaves_out_what_acts_and_opens_the_trace(here: Tab, seeded: tuple[ApiClient, Ids]) -> None:
    client, _ = seeded
    client.database.submit("traced", retry={"max_attempts": 1})
    started = client.database.begun("traced")
    trace, output = "Traceback\n  line 1", b"x" * 10_000
    failed = ending(started, RunState.FAILED, error_type="E", error_message="no", trace=trace, output=output)
    client.database.end(failed)
    here.open(f"/runs/{started.run_id}")
    here.page.click("details.trace summary")
    here.page.emulate_media(media="print")
    assert here.page.locator(":is(.rail, .top, .actions, .tabs, .copy, form):visible").count() == 0
    assert here.sideways() == 0
    expect(here.page.locator(".paper")).to_have_text("Tidewheel, development, no keys, tenant default")
    expect(here.page.locator(".paper")).to_be_visible()
    expect(here.page.locator("details.trace pre")).not_to_be_visible()
    here.page.evaluate("dispatchEvent(new Event('beforeprint'))")
    expect(here.page.locator("details.trace pre")).to_be_visible()


@pytest.mark.parametrize(
    ("path", "opener", "focused"),
    [
        ("/jobs/hourly", "text=Trigger…", "dialog textarea[name=payload]"),
        ("/freeze", "text=Freeze fleet…", "dialog input[name=reason]"),
        ("/runs/{running}", "text=Cancel…", "dialog .buttons a"),
    ],
)
def test_dialog_opens_in_place_at_its_first_field_and_one_of_danger_at_the_way_back(
    here: Tab, seeded: tuple[ApiClient, Ids], path: str, opener: str, focused: str
) -> None:
    here.open(path.format_map(seeded[1]))
    here.page.click(opener)
    expect(here.page.locator(focused).first).to_be_focused()


def test_doctor_keeps_the_focus_on_its_button(here: Tab) -> None:
    here.open("/fleet")
    here.page.click("text=Run doctor")
    expect(here.page.locator("text=Run doctor again")).to_be_focused()


def test_one_box_selects_the_rows_of_the_page(here: Tab) -> None:
    here.open("/jobs?prefix=many&limit=20")
    here.page.check("th [data-all]")
    assert here.page.locator("tbody .choice :checked").count() == 20
    here.page.uncheck("th [data-all]")
    assert here.page.locator("tbody .choice :checked").count() == 0
    expect(here.page.locator(".selection")).to_contain_text("You can select only jobs of this page.")
