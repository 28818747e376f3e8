"""A small HTTP server on 127.0.0.1 that takes the effects of the demo's runs and counts them by itself.

It knows nothing of Tidewheel but the headers that come with a call. How it answers stands in the URL, so that the file
of requests says it: `?fail=2` refuses the first two attempts, `?hold=1500ms` keeps the answer back for that long, and
`?outcome=failed` is a handler's word that this attempt is about to fail.
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

_NOTHING = threading.Event()  # never set: waiting for it is how to sleep


class Receiver:
    """The server and its count.

    Args:
        clock: What arrivals are timed by.
        executors: The processes that calls may come from, asked at each new connection.
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
        """Where it listens, without a slash at the end."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def close(self) -> None:
        """Answer no more."""
        if self._thread.is_alive():
            self._server.shutdown()
        self._server.server_close()

    def calls(self) -> list[Call]:
        """All calls so far, in the order they arrived."""
        with self._lock:
            return list(self._calls)

    def in_hand(self, pid: int) -> int:
        """How many calls of a process are without their answer."""
        with self._lock:
            return sum(call.pid == pid for call in self._open)

    def arrived(self) -> datetime:
        """The present instant, for a call that has just come."""
        return self._clock.now()

    def process_at(self, port: int) -> int | None:
        """Which executor holds the other end of a connection.

        A look at a process costs some 20 ms, so one look serves all connections that are open by then.
        """
        with self._looking:
            if port not in self._ends:
                self._ends = {end: pid for pid in self._executors() for end in _ports_of(pid)}
            return self._ends.get(port)

    def begin(self, call: Call) -> None:
        """Note a call."""
        with self._lock:
            self._calls.append(call)
            self._open.append(call)

    def end(self, call: Call, *, answered: bool) -> None:
        """Note that its answer was handed over, or could not be."""
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
        """Say nothing: a caller that was killed leaves its connection broken."""


class _Exchange(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # an answer of two small writes would wait 40 ms for an acknowledgement

    def __init__(self, receiver: Receiver, request: socket, client_address: tuple[str, int], server: _Server) -> None:
        self._receiver = receiver
        self._pid: int | None = None
        super().__init__(request, client_address, server)  # which serves the whole connection

    def do_POST(self) -> None:
        """Take one call, and answer as its URL says."""
        receiver = self._receiver
        arrived = receiver.arrived()
        self.rfile.read(int(self.headers.get("content-length", "0")))
        if self._pid is None:
            self._pid = receiver.process_at(int(self.client_address[1]))
        told = {name: values[-1] for name, values in parse_qs(urlsplit(self.path).query).items()}
        attempt = int(self.headers.get("tidewheel-attempt", "0"))
        refused = attempt <= int(told.get("fail", "0"))
        call = self._call(attempt, arrived, effective=not refused and told.get("outcome") != "failed")
        receiver.begin(call)
        answered = False
        try:
            _NOTHING.wait(float(told.get("hold", "0ms").removesuffix("ms")) / 1000)
            self._answer(HTTPStatus.SERVICE_UNAVAILABLE if refused else HTTPStatus.OK)
            answered = True
        finally:
            receiver.end(call, answered=answered)

    def log_message(self, format: str, *args: object) -> None:
        """Keep the terminal free."""

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
