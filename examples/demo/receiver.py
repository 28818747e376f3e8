"""A small HTTP server on 127.0.0.1 that counts the effects of the demo's runs.

It reads only the headers of a call. The URL in the file of requests sets its response: `?fail=2` refuses the first two
attempts and `?hold=1500ms` delays the response.
"""

import threading
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self
from urllib.parse import parse_qs, urlsplit

from tidewheel.clock import SystemClock

HANDLERS_PATH = "/handlers"

_NEVER_SET = threading.Event()  # never set: waiting for it is how to sleep


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One HTTP request that reached the receiver, by a handler or an HTTP target: one attempt of a run.

    It took effect (`effective`) unless the receiver refused it.
    """

    run_id: str
    attempt: int
    idempotency_key: str
    job_key: str
    by_handler: bool
    scheduled_at: datetime
    arrived_at: datetime
    effective: bool


class Receiver:
    """The server and its calls, in the order they arrived; a context manager."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self._server = _Server(("127.0.0.1", 0), partial(_Exchange, self.calls))
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, name="receiver", daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256  # a hot second opens as many connections at once

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore errors: a killed caller leaves its connection broken."""


class _Exchange(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # a response of two small writes would wait 40 ms for an acknowledgement

    def __init__(self, calls: list[Call], *connection: object) -> None:
        self._calls = calls
        super().__init__(*connection)  # type: ignore[arg-type]  # which serves the whole connection

    def do_POST(self) -> None:
        """Record one call and respond as its URL requires."""
        arrived = SystemClock().now()
        self.rfile.read(int(self.headers.get("content-length", "0")))
        options = {name: values[-1] for name, values in parse_qs(urlsplit(self.path).query).items()}
        attempt = int(self.headers["tidewheel-attempt"])
        refused = attempt <= int(options.get("fail", "0"))
        self._calls.append(
            Call(
                run_id=self.headers["tidewheel-run-id"],
                attempt=attempt,
                idempotency_key=self.headers["idempotency-key"],
                job_key=self.headers["tidewheel-job-key"],
                by_handler=self.path.startswith(HANDLERS_PATH),
                scheduled_at=datetime.fromisoformat(self.headers["tidewheel-scheduled-at"]),
                arrived_at=arrived,
                effective=not refused,
            )
        )
        _NEVER_SET.wait(float(options.get("hold", "0ms").removesuffix("ms")) / 1000)
        self.send_response(HTTPStatus.SERVICE_UNAVAILABLE if refused else HTTPStatus.OK)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing to the terminal."""
