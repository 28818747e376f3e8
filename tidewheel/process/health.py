"""Liveness (`/healthz`) and readiness (`/readyz`) of this process, and the port that serves both.

Each loop reports its progress and how long it will sleep; a loop that misses its report makes the process not alive. A
loop that waits for PostgreSQL or Kafka still reports, because a restart would not help. Readiness is computed on
request, by the registered checks.
"""

import logging
import socket
import sys
import threading
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from http import HTTPStatus
from ipaddress import ip_address
from itertools import islice
from socketserver import ThreadingMixIn
from threading import Thread
from typing import TYPE_CHECKING, TypeAlias, cast
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from tidewheel.clock import monotonic_seconds
from tidewheel.errors import SettingsError
from tidewheel.process.metrics import metrics_page

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment

_LOG = logging.getLogger("tidewheel.process.health")

# Longer than every limit on a statement, a transaction, a delivery: a loop that is so late does not recover.
_STUCK_SECONDS = 300.0
_SILENT_SECONDS = 10.0  # a client sends its request, or reads its answer, or loses its connection
_MAX_CONNECTIONS = 32  # each has a thread; a Prometheus and two probes need one each
_ANSWER_KEPT_SECONDS = 1.0  # further requests get the same answer: a check may query a database

WhyNot = Callable[[], str | None]
_Request: TypeAlias = socket.socket | tuple[bytes, socket.socket]  # as socketserver declares it; a socket here


class Health:
    """The health of one process; safe from every thread."""

    def __init__(self) -> None:
        self._due: dict[int, tuple[str, float]] = {}  # by thread: each has one loop
        self._checks: dict[str, WhyNot] = {}
        self._checking = threading.Lock()
        self._checked_at = float("-inf")
        self._answer: list[str] = []

    def report(self, loop: str, sleeps_seconds: float = 0.0) -> None:
        """Report that a loop makes progress, and the time until its next report."""
        self._due[threading.get_ident()] = loop, monotonic_seconds() + sleeps_seconds + _STUCK_SECONDS

    def report_waiting(self, sleeps_seconds: float = 0.0) -> None:
        """Report that the loop of this thread, if any, waits for a server, and the time until it retries."""
        if (known := self._due.get(threading.get_ident())) is not None:
            self.report(known[0], sleeps_seconds)

    def remove_loop(self) -> None:
        """Remove the loop of this thread, which has ended normally."""
        self._due.pop(threading.get_ident(), None)

    def requires(self, name: str, why_not: WhyNot) -> None:
        """Register a readiness check, ready while `why_not` returns None; it replaces one of the same name."""
        self._checks[name] = why_not

    def not_alive(self) -> list[str]:
        """Return a line for each loop that is stuck; empty while the process is alive."""
        now = monotonic_seconds()
        late = [(loop, now - due) for loop, due in list(self._due.values()) if due < now]
        return [f"{loop}: stuck for {_STUCK_SECONDS + seconds:.0f} s" for loop, seconds in late]

    def not_ready(self) -> list[str]:
        """Return a line for each failed readiness check; empty while the process is ready."""
        with self._checking:
            if monotonic_seconds() - self._checked_at > _ANSWER_KEPT_SECONDS:
                found = [(name, check()) for name, check in list(self._checks.items())]
                self._answer = [f"{name}: {why}" for name, why in found if why is not None]
                self._checked_at = monotonic_seconds()
            return self._answer


health = Health()


def serve_health(
    port: int | None, state: Health = health, *, host: str = "127.0.0.1", names: Collection[str] = ()
) -> int | None:
    """Serve /metrics, /healthz and /readyz; return the port, None if it is off.

    Args:
        names: The names, besides addresses and `localhost`, under which requests may arrive. Others are refused: a web
            page could otherwise read the metrics through a visitor's browser, by a name that resolves to this machine.
    """
    if port is None:
        return None
    known = {"localhost", *(name.lower() for name in names)}

    def answer(environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        if not _is_known(environ.get("HTTP_HOST"), known):
            text = b"this name is not one of TIDEWHEEL_METRICS_HOSTS\n"
            return _respond(start_response, HTTPStatus.MISDIRECTED_REQUEST, text)
        match environ["PATH_INFO"]:
            case "/metrics":
                return metrics_page(environ, start_response)
            case "/healthz":
                return _respond_with(start_response, state.not_alive())
            case "/readyz":
                return _respond_with(start_response, state.not_ready())
            case _:
                text = b"there are /metrics, /healthz and /readyz\n"
                return _respond(start_response, HTTPStatus.NOT_FOUND, text)

    try:
        version = _Server6 if ":" in host else _Server
        server = make_server(host, port, answer, server_class=version, handler_class=_Silent)
    except OSError as error:
        message = f"metrics cannot be served on {host} port {port}: {error}; correct TIDEWHEEL_METRICS_HOST and _PORT"
        raise SettingsError(message) from error
    Thread(target=server.serve_forever, name="metrics", daemon=True).start()
    return int(server.server_port)


def _is_known(host: object, known: Collection[str]) -> bool:
    """Return True if a Host header has an address or a known name; a client without one is no browser.

    >>> [_is_known(host, {"localhost"}) for host in (None, "10.1.2.3:9464", "[::1]:9464", "Localhost", "evil.example")]
    [True, True, True, True, False]
    """
    if host is None:
        return True
    name = str(host).lower()
    bare = name[1:].partition("]")[0] if name.startswith("[") else name.partition(":")[0]
    try:
        ip_address(bare)
    except ValueError:
        return bare in known
    return True


def _respond_with(start_response: "StartResponse", reasons: list[str]) -> Iterable[bytes]:
    status = HTTPStatus.SERVICE_UNAVAILABLE if reasons else HTTPStatus.OK
    return _respond(start_response, status, "".join(f"{line}\n" for line in reasons or ["ok"]).encode())


def _respond(start_response: "StartResponse", status: HTTPStatus, text: bytes) -> Iterable[bytes]:
    headers = [("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", str(len(text)))]
    start_response(f"{status.value} {status.phrase}", headers)
    return [text]


class _Server(ThreadingMixIn, WSGIServer):
    """Answer each request on its own thread, so that a slow reader delays no other.

    The oldest connection is closed for one above the limit. So silent clients take few threads, and keep no probe away.
    """

    daemon_threads = True
    request_queue_size = 128

    def server_activate(self) -> None:
        """Listen."""
        self._lock = threading.Lock()
        self._open: dict[_Request, None] = {}  # in the order of their arrival, until their threads end
        super().server_activate()

    def verify_request(self, request: _Request, client_address: object) -> bool:
        """Make room for a connection; False closes it, since a check holds up the threads of closed ones."""
        with self._lock:
            for oldest in islice(self._open, max(0, len(self._open) + 1 - _MAX_CONNECTIONS)):
                with suppress(OSError):  # its client was faster
                    cast("socket.socket", oldest).shutdown(socket.SHUT_RDWR)
            if len(self._open) >= 2 * _MAX_CONNECTIONS:
                return False
            self._open[request] = None
        return True

    def process_request_thread(self, request: _Request, client_address: object) -> None:
        """Answer one request."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._lock:
                del self._open[request]

    def handle_error(self, request: _Request, client_address: object) -> None:
        """Log an error; a client that is silent, or has gone, is none."""
        if not isinstance(sys.exception(), OSError):
            _LOG.exception("a request for metrics or health failed")


class _Server6(_Server):
    """The same on an IPv6 address."""

    address_family = socket.AF_INET6


class _Silent(WSGIRequestHandler):
    """Log no line per request, and wait for no silent client."""

    timeout = _SILENT_SECONDS

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""
