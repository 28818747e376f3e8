"""Every page in a real Chromium: its policy holds, no text of users runs, everyone can read it."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from playwright.sync_api import Browser

from tests.control.api.answering import ApiClient, answering
from tests.control.console.browser import LOOKS, Tab, needs_chromium, tab
from tests.control.console.pages import TOKEN
from tests.control.console.seeded import EMPTY, PAGES, Ids, paths
from tests.fixtures.database import Database
from tidewheel.control.console.rendering import CONTENT_SECURITY_POLICY

pytestmark = [pytest.mark.slow, needs_chromium]

RULES = ("target-size", "landmark-unique", "empty-table-header")
"""Rules of axe-core that are off, or whose breach it calls minor."""


class Breach(BaseHTTPRequestHandler):
    """A page that breaks the policy of the console, and is hard to read."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Security-Policy", CONTENT_SECURITY_POLICY)
        self.end_headers()
        self.wfile.write(b"<title>quiet</title><script>document.title='run'</script><img src=/x>")

    def log_message(self, format: str, *args: object) -> None:
        del format, args


@pytest.fixture
def breach() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), Breach) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()
        serving.join()


def check(opened: Tab, path: str) -> None:
    """Open a page; fail if anything is wrong with it in any look."""
    opened.open(path)
    for look in LOOKS:
        opened.look(look)
        assert not opened.findings(*RULES), (path, look)
        assert opened.sideways() <= 0, (path, look)
        assert not opened.small_texts(), (path, look)
        assert not look.startswith("390") or not opened.small_links(), (path, look)
    for width in (640, 320):  # a zoom of 200 % and of 400 %
        opened.page.set_viewport_size({"width": width, "height": 450})
        assert opened.sideways() <= 0, (path, width)
    assert opened.page.title() != "run"
    assert not opened.faults, path


@pytest.mark.process
def test_breach_of_the_policy_and_unreadable_page_are_seen(breach: str, browser: Browser) -> None:
    with tab(browser, breach) as opened:
        opened.open("/")
        assert len(opened.faults) == 1
        assert "Content Security Policy" in opened.faults[0]
        assert {line.partition(":")[0] for line in opened.findings()} == {"html-has-lang", "image-alt"}
        assert opened.page.title() == "quiet"


@pytest.mark.parametrize("name", PAGES)
def test_page_keeps_its_policy_and_everyone_can_read_it(
    name: str, seeded: tuple[ApiClient, Ids], browser: Browser
) -> None:
    client, ids = seeded
    with tab(browser, str(client.base_url)) as opened:
        check(opened, paths(ids)[name])


def test_pages_of_an_empty_installation_and_the_sign_in(database: Database, browser: Browser) -> None:
    with answering(database) as client, tab(browser, str(client.base_url)) as opened:
        for path in EMPTY.values():
            check(opened, path)
    with answering(database, token=TOKEN) as client, tab(browser, str(client.base_url)) as opened:
        check(opened, "/sign-in")
