"""Pages in a real Chromium: none breaks its content security policy, and hostile text runs nothing."""

import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from tests.control.api.answering import answering
from tests.fixtures.database import Database
from tests.transitions.acts import begun, end, ending, submit
from tidewheel.control.console.rendering import CONTENT_SECURITY_POLICY
from tidewheel.runs import RunState

CHROMIUM = shutil.which("chromium") or ""
HOSTILE = "<script>document.title='run'</script><img src=x onerror=\"document.title='run'\">"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not CHROMIUM, reason="Debian's package chromium is missing: apt-get install chromium"),
]


def opened(url: str, profile: Path) -> tuple[str, list[str]]:
    """Return the document of a page after its scripts, and the breaches of its policy."""
    options = ("--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--virtual-time-budget=12000")
    command = [CHROMIUM, *options, f"--user-data-dir={profile}", "--dump-dom", url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout, [line for line in done.stderr.splitlines() if "Content Security Policy" in line]


class Breach(BaseHTTPRequestHandler):
    """A page that breaks the policy of the console."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Security-Policy", CONTENT_SECURITY_POLICY)
        self.end_headers()
        self.wfile.write(b"<title>quiet</title><script>document.title='run'</script>")

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


@pytest.mark.process
def test_breach_of_the_policy_is_seen(breach: str, tmp_path: Path) -> None:
    document, breaches = opened(breach, tmp_path)
    assert breaches
    assert "<title>quiet</title>" in document


def test_no_page_breaks_the_policy_and_no_text_of_users_runs(database: Database, tmp_path: Path) -> None:
    submit(database, "job", description=HOSTILE, labels={"a": HOSTILE}, retry={"max_attempts": 1})
    started = begun(database)
    end(database, ending(started, RunState.FAILED, error_type="E", error_message=HOSTILE))
    with answering(database) as client:
        for path in ("/", "/jobs", "/jobs/job", "/runs", f"/runs/{started.run_id}", "/jobs/none"):
            document, breaches = opened(f"{str(client.base_url).rstrip('/')}{path}", tmp_path)
            assert not breaches, path
            title = re.search(r"<title>([^<]*)</title>", document)
            assert title, document
            assert title[1].endswith("development, no keys"), path
