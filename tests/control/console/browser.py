"""Pages in a real Chromium, with a record of their faults and the findings of axe-core.

Chromium is Debian's: Playwright fetches none. Pages of this module's browsers run no other than the console's own code.
"""

import shutil
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any, cast

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Error, Page, expect, sync_playwright

CHROMIUM = shutil.which("chromium") or ""
needs_chromium = pytest.mark.skipif(not CHROMIUM, reason="Chromium is missing: apt-get install chromium")

DESKTOP, PHONE = (1280, 900), (390, 844)
LOOKS: Mapping[str, tuple[tuple[int, int], str]] = {
    "1280-light": (DESKTOP, "light"), "1280-dark": (DESKTOP, "dark"),
    "390-light": (PHONE, "light"), "390-dark": (PHONE, "dark"),
}  # fmt: skip
"""Size and theme of each look that every page is tested in, by its name."""

expect.set_options(timeout=30_000)  # five seconds, the default, are too few for a page on a busy machine

_AXE = (files("axe_playwright_python") / "axe.min.js").read_text()
_SMALL_LINKS = """() => [...document.querySelectorAll('td a, dl.table dd a')].filter(each =>
    !(each instanceof SVGElement) && each.checkVisibility()).map(each => [each, each.getBoundingClientRect()])
    .filter(([, box]) => Math.min(box.width, box.height) < 24).map(([each, box]) => each.outerHTML)"""
_SMALL_TEXT = """() => [...document.querySelectorAll('body *')].filter(each =>
    !each.closest('.graph') && each.checkVisibility() && parseFloat(getComputedStyle(each).fontSize) < 11
    && [...each.childNodes].some(node => node.nodeType === 3 && node.data.trim()))
    .map(each => each.outerHTML.slice(0, 200))"""
_GRAVE = ("serious", "critical")


@contextmanager
def chromium() -> Generator[Browser]:
    """Start a Chromium for the block."""
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        try:
            yield started
        finally:
            started.close()


@dataclass
class Tab:
    """A page in a browser of its own: own cookies, own storage.

    Args:
        page: Playwright's page.
        faults: Breaches of the policy and errors of scripts since the beginning.
    """

    page: Page
    faults: list[str] = field(default_factory=list[str])

    def open(self, path: str) -> None:
        """Go to a path of the console; return when its scripts have begun."""
        self.page.goto(path)

    def look(self, name: str) -> None:
        """Take on a size and a theme."""
        (width, height), theme = LOOKS[name]
        self.page.set_viewport_size({"width": width, "height": height})
        self.page.emulate_media(color_scheme="dark" if theme == "dark" else "light")

    def findings(self, *rules: str) -> list[str]:
        """Return what axe-core finds serious or critical, and each breach of some further rules, a line each."""
        if not self.page.evaluate("typeof axe !== 'undefined'"):
            self.page.evaluate(_AXE)
        options = {"resultTypes": ["violations"], "rules": {rule: {"enabled": True} for rule in rules}}
        found: dict[str, Any] = self.page.evaluate("options => axe.run(options)", options)
        shown = [each for each in found["violations"] if each["impact"] in _GRAVE or each["id"] in rules]
        return [line for each in shown for line in _lines(each)]

    def sideways(self) -> int:
        """Return the pixels by which the page is wider than its window."""
        return int(self.page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"))

    def small_links(self) -> list[str]:
        """Return the links in cells of tables that are less than 24 pixels wide or high: WCAG 2.2, 2.5.8."""
        return cast("list[str]", self.page.evaluate(_SMALL_LINKS))

    def small_texts(self) -> list[str]:
        """Return what has text of less than 11 pixels, but for graphs, which one zooms."""
        return cast("list[str]", self.page.evaluate(_SMALL_TEXT))

    def note(self, message: ConsoleMessage) -> None:
        """Remember an error in the console."""
        if message.type == "error" and not message.text.startswith("Failed to load resource"):
            self.faults.append(message.text)

    def note_error(self, error: Error) -> None:
        """Remember an error that no script has caught."""
        self.faults.append(error.message)


@contextmanager
def tab(browser: Browser, base_url: str, look: str = "1280-light", **options: Any) -> Generator[Tab]:  # noqa: ANN401
    """Open a tab whose addresses begin with a base URL.

    Args:
        browser: The browser.
        base_url: The console.
        look: Size and theme.
        options: Of Playwright's context, such as `java_script_enabled`.
    """
    context = browser.new_context(base_url=base_url, **options)
    try:
        made = Tab(context.new_page())
        made.page.on("console", made.note)
        made.page.on("pageerror", made.note_error)
        made.look(look)
        yield made
    finally:
        context.close()


def _lines(violation: Mapping[str, Any]) -> Iterator[str]:
    for node in cast("list[dict[str, Any]]", violation["nodes"]):
        yield f"{violation['id']}: {node['html'][:200]}: {node.get('failureSummary', '')}"
