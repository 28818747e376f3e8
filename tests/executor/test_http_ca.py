"""HTTPS targets whose certificate an internal authority has signed."""

import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from tests.executor.attempting import attempt_of, run_attempt
from tests.fixtures.certificates import Authority
from tidewheel.errors import SettingsError
from tidewheel.executor.outcome import Outcome
from tidewheel.executor.runners.http import HttpRunner
from tidewheel.runs import AttemptOutcome
from tidewheel.settings.executor import ExecutorSettings


class _Ok(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"] or 0))
        self.send_response(204)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        del format, args


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"), "internal")


@pytest.fixture(scope="module")
def url(authority: Authority) -> Iterator[str]:
    """A server with a certificate of the authority."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.issue())
    with HTTPServer(("127.0.0.1", 0), _Ok) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"https://127.0.0.1:{server.server_port}/"
        server.shutdown()
        thread.join()


def call(url: str, ca_file: Path | None) -> Outcome:
    attempt = attempt_of({"target": {"type": "http", "url": url}})
    return run_attempt(lambda: HttpRunner(allow_private=True, ca_file=ca_file), attempt)


def test_target_with_a_certificate_of_the_named_authority_is_called(authority: Authority, url: str) -> None:
    assert call(url, authority.file).kind is AttemptOutcome.SUCCEEDED


def test_target_with_a_certificate_of_another_authority_is_refused(url: str, tmp_path: Path) -> None:
    for other in (None, Authority(tmp_path, "other").file):
        outcome = call(url, other)
        assert outcome.kind is AttemptOutcome.FAILED
        assert "CERTIFICATE_VERIFY_FAILED" in str(outcome)


def test_file_without_a_certificate_is_refused_at_start(authority: Authority, tmp_path: Path) -> None:
    empty = tmp_path / "empty.pem"
    empty.touch()
    for file in (empty, tmp_path / "missing.pem"):
        with pytest.raises(SettingsError, match=r"TIDEWHEEL_HTTP_CA_FILE: has no certificate in PEM.*name a readable"):
            ExecutorSettings.load(http_ca_file=str(file))
    assert ExecutorSettings.load(http_ca_file=str(authority.file)).http_ca_file == authority.file
