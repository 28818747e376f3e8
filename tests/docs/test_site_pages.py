"""The documentation site in a real Chromium, read from the disk: its search, and axe on its pages."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from tests.control.console.browser import LOOKS, chromium, needs_chromium, tab

pytestmark = [pytest.mark.slow, pytest.mark.process, needs_chromium]
# A page among the first three results, by the words of a newcomer.
FOUND = {
    "retry": "requests-submit", "cancel a run": "tasks", "time zone": "time", "exactly once": "own-transactions",
    "cron": "time", "webhook": "tasks", "dead letter": "interventions", "python handler": "handlers",
    "kafka completion": "quickstart", "freeze": "tasks", "api key": "rest", "limit tenant": "tenants",
    "workflow": "workflows", "upgrade": "tasks",
}  # fmt: skip
FIRST = ("retry", "cron")  # of which it is the first one
PAGES = ("index", "quickstart", "coming-from/temporal", "run-states", "console", "rest")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A Chromium."""
    with chromium() as started:
        yield started


@pytest.mark.parametrize("words", FOUND)
def test_search_finds_guides_before_decision_records(site: Path, browser: Browser, words: str) -> None:
    with tab(browser, "http://none.invalid") as opened:
        opened.open(f"file://{site}/index.html?q={words}")
        expect(opened.page.locator(".md-search-result__meta")).to_contain_text("matching document")
        items = opened.page.locator(".md-search-result__item > a:first-child")
        expect(items.first).to_be_visible()
        found = items.all()[:3]
        first = [str(each.get_attribute("href")) for each in found]
    assert any(f"/{FOUND[words]}.html" in each for each in first[: 1 if words in FIRST else 3]), first
    assert "/adr/" not in first[0]


def test_text_without_a_keystroke_is_searched(site: Path, browser: Browser) -> None:
    with tab(browser, "http://none.invalid") as opened:
        opened.page.goto(f"file://{site}/index.html", wait_until="commit")
        field, found = opened.page.locator(".md-search__input"), opened.page.locator(".md-search-result__meta")
        field.fill("cron")  # before the search is ready
        expect(found).to_contain_text("matching documents")
        field.fill("xyzzyx")
        expect(found).to_contain_text("No matching documents")


@pytest.mark.parametrize("look", LOOKS)
def test_axe_finds_nothing_serious_and_no_page_scrolls_sideways(site: Path, browser: Browser, look: str) -> None:
    with tab(browser, "http://none.invalid", look) as opened:
        for page in PAGES:
            opened.open(f"file://{site}/{page}.html")
            assert (page, opened.findings(), opened.sideways()) == (page, [], 0)
