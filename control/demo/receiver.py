"""A small HTTP server on 127.0.0.1 that counts the effects of the demo's runs.

It reads only the headers of a call. The URL in the file of requests sets its response: `?fail=2` refuses the first two
attempts and `?hold=1500ms` delays the response. A handler sends `?outcome=failed` before its attempt fails.
"""

import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socket import socket
from urllib.parse import parse_qs, urlsplit

import psutil

from tidewheel.clock import Clock
from tidewheel.control.demo.observations import Call

HANDLERS_PATH = "/handlers/"

_NEVER_SET = threading.Event()  # never set: waiting for it is how to sleep


class Receiver:
    """The server and its calls.

    Args:
        clock: The clock that stamps arrivals.
        executors: Returns the pids of the executors at each new connection.
    """

    def __init__(self, clock: Clock, executors: Callable[[], Sequence[int]]) -> None:
        self._clock, self._executors = clock, executors
        self._lock = threading.Lock()
        self._calls: list[Call] = []
        self._open: list[Call] = []
        self._looking = threading.Lock()
        self._ends: dict[int, int] = {}
        self._server = _Server(self)
        self._thread = threading.Thread(target=self._server.serve_forever, name="receiver", daemon=True)

    @property
    def url(self) -> str:
        """The base URL, without a slash at the end."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def start(self) -> None:
        """Start to serve."""
        self._thread.start()

    def close(self) -> None:
        """Stop serving."""
        if self._thread.is_alive():
            self._server.shutdown()
        self._server.server_close()

    def calls(self) -> list[Call]:
        """All calls so far, in the order they arrived."""
        with self._lock:
            return list(self._calls)

    def open_calls(self, pid: int) -> int:
        """Return the number of calls of a process that have no response yet."""
        with self._lock:
            return sum(call.pid == pid for call in self._open)

    def arrived(self) -> datetime:
        """Return the arrival instant of a new call."""
        return self._clock.now()

    def process_at(self, port: int) -> int | None:
        """Return the pid of the executor that opened a connection from this port.

        Reading a process's ports costs some 20 ms, so one reading serves all connections open by then.
        """
        with self._looking:
            if port not in self._ends:
                self._ends = {end: pid for pid in self._executors() for end in _ports_of(pid)}
            return self._ends.get(port)

    def begin(self, call: Call) -> None:
        """Record a call."""
        with self._lock:
            self._calls.append(call)
            self._open.append(call)

    def end(self, call: Call, *, answered: bool) -> None:
        """Record that the response was sent, or failed."""
        with self._lock:
            call.answered = answered
            self._open.remove(call)


def _ports_of(pid: int) -> list[int]:
    with suppress(psutil.Error):
        return [one.laddr.port for one in psutil.Process(pid).net_connections("tcp4") if one.laddr]
    return []


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256  # a hot second opens as many connections at once

    def __init__(self, receiver: Receiver) -> None:
        super().__init__(("127.0.0.1", 0), partial(_Exchange, receiver))

    def handle_error(self, request: object, client_address: object) -> None:
        """Ignore errors: a killed caller leaves its connection broken."""


class _Exchange(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # a response of two small writes would wait 40 ms for an acknowledgement

    def __init__(self, receiver: Receiver, request: socket, client_address: tuple[str, int], server: _Server) -> None:
        self._receiver = receiver
        self._pid: int | None = None
        super().__init__(request, client_address, server)  # which serves the whole connection

    def do_POST(self) -> None:
        """Record one call and respond as its URL requires."""
        receiver = self._receiver
        arrived = receiver.arrived()
        self.rfile.read(int(self.headers.get("content-length", "0")))
        if self._pid is None:
            self._pid = receiver.process_at(int(self.client_address[1]))
        options = {name: values[-1] for name, values in parse_qs(urlsplit(self.path).query).items()}
        attempt = int(self.headers.get("tidewheel-attempt", "0"))
        refused = attempt <= int(options.get("fail", "0"))
        call = self._call(attempt, arrived, effective=not refused and options.get("outcome") != "failed")
        receiver.begin(call)
        answered = False
        try:
            _NEVER_SET.wait(float(options.get("hold", "0ms").removesuffix("ms")) / 1000)
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE if refused else HTTPStatus.OK)
            answered = True
        finally:
            receiver.end(call, answered=answered)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing to the terminal."""

    def _call(self, attempt: int, arrived: datetime, *, effective: bool) -> Call:
        return Call(
            run_id=self.headers.get("tidewheel-run-id", ""),
            attempt=attempt,
            idempotency_key=self.headers.get("idempotency-key", ""),
            job_key=self.headers.get("tidewheel-job-key", ""),
            by_handler=self.path.startswith(HANDLERS_PATH),
            scheduled_at=datetime.fromisoformat(self.headers.get("tidewheel-scheduled-at", "")),
            arrived_at=arrived,
            effective=effective,
            pid=self._pid,
        )

    def _answer(self, status: HTTPStatus) -> None:
        body = f"{status.phrase}\n".encode()
        self.send_response(status)
        self.send_header("content-type", "text/plain; charset=utf-8")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
