"""Pictures of every page: `python -m tests.control.console.screenshots DIR`, with a contact sheet.

The pages are those of a seeded installation and of an empty one. Their clocks are stopped, so a change of
a picture is a change of the code.
"""

import sys
import tempfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from html import escape
from pathlib import Path

from playwright.sync_api import Browser

from tests.control.api.answering import answering
from tests.control.console.browser import LOOKS, chromium, tab
from tests.control.console.seeded import EMPTY, NOW, paths, seed
from tests.fixtures.database import ClockedDatabase
from tidewheel.local.stack import LocalStack
from tidewheel.testing.databases import CLOCK, Template

_SHEET = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Pages of the console</title>
<style>body {{ font: 14px system-ui; margin: 24px }} section {{ display: flex; gap: 16px; align-items: flex-start }}
a {{ flex: 13 }} a.phone {{ flex: 4 }} img {{ width: 100%; border: 1px solid #ccc }} h2 {{ margin: 32px 0 8px }}</style>
<h1>Pages of the console</h1>{}</html>
"""


def take(browser: Browser, base_url: str, pages: Mapping[str, str], folder: Path) -> None:
    """Take a picture of each page in each look."""
    for look in LOOKS:
        with tab(browser, base_url, look) as opened:
            for name, path in pages.items():
                opened.open(path)
                opened.page.screenshot(path=folder / f"{name}.{look}.png", full_page=True)


def contact_sheet(names: list[str]) -> str:
    """Return a page that shows the looks of each page side by side."""
    return _SHEET.format("".join(f"<h2>{escape(name)}</h2><section>{_row(name)}</section>" for name in names))


def _row(name: str) -> str:
    files = ((f"{name}.{look}.png", "phone" if look.startswith("390") else "desktop") for look in LOOKS)
    return "".join(f'<a class="{kind}" href="{file}"><img src="{file}" alt="{file}"></a>' for file, kind in files)


@contextmanager
def _template() -> Generator[Template]:
    with tempfile.TemporaryDirectory() as home:
        stack = LocalStack(Path(home), brokers=1, lasting=False)
        try:
            made = Template(stack.up().database_url, "screenshots", CLOCK)
            yield made
            made.close()
        finally:
            stack.down(erase=True)


def main(folder: Path) -> None:
    """Take the pictures of both installations."""
    folder.mkdir(parents=True, exist_ok=True)
    with _template() as template, chromium() as browser:
        full, empty = (ClockedDatabase(template.copy(), template.installation) for _ in range(2))
        empty.stop_clock(NOW)
        pages = paths(seed(full))
        empties = {f"empty-{name}": path for name, path in EMPTY.items()}
        for database, chosen in ((full, pages), (empty, empties)):
            with answering(database) as client:
                take(browser, str(client.base_url), chosen, folder)
            database.close()
    (folder / "index.html").write_text(contact_sheet([*pages, *empties]))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
