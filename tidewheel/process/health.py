"""How this process is: whether it lives (`/healthz`), and whether it could work now (`/readyz`); and the port for both.

Living is told by its loops: each says that it turns, and for how long it will sleep. A loop that waits for PostgreSQL
or Kafka turns; so a process that waits for them lives, for restarting it would help nobody. Ready is asked of whoever
has registered a reason why it may not be, when somebody asks.
"""

import threading
from collections.abc import Callable, Iterable
from http import HTTPStatus
from socketserver import ThreadingMixIn
from threading import Thread
from typing import TYPE_CHECKING
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from tidewheel.clock import monotonic_seconds
from tidewheel.process.metrics import metrics_page

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment

# Well beyond every limit on a statement, a transaction, a delivery: a loop that is late by so much does not come back.
_STUCK_SECONDS = 300.0
_ANSWER_KEPT_SECONDS = 1.0  # who asks in between gets the same answer: a check may ask a database

WhyNot = Callable[[], str | None]


class Health:
    """What one process knows of itself; safe from every thread."""

    def __init__(self) -> None:
        self._due: dict[int, tuple[str, float]] = {}  # by thread: each has one loop
        self._checks: dict[str, WhyNot] = {}
        self._asking = threading.Lock()
        self._asked_at = float("-inf")
        self._answer: list[str] = []

    def turns(self, loop: str, sleeps_seconds: float = 0.0) -> None:
        """A loop says that it goes on, and how long it may be until it says so again."""
        self._due[threading.get_ident()] = loop, monotonic_seconds() + sleeps_seconds + _STUCK_SECONDS

    def waits(self) -> None:
        """The loop of this thread waits for something and will look again; nothing where it has none."""
        if (known := self._due.get(threading.get_ident())) is not None:
            self.turns(known[0])

    def ends(self) -> None:
        """The loop of this thread has ended as it should."""
        self._due.pop(threading.get_ident(), None)

    def requires(self, name: str, why_not: WhyNot) -> None:
        """Let this process be ready only while `why_not` returns None; one of the same name is replaced."""
        self._checks[name] = why_not

    def ails(self) -> list[str]:
        """Why this process is not alive, a line for each loop that stands still; empty while it is."""
        now = monotonic_seconds()
        late = [(loop, now - due) for loop, due in list(self._due.values()) if due < now]
        return [f"{loop}: stands still for {_STUCK_SECONDS + seconds:.0f} s" for loop, seconds in late]

    def lacks(self) -> list[str]:
        """Why this process is not ready, a line for each reason; empty while it is."""
        with self._asking:
            if monotonic_seconds() - self._asked_at > _ANSWER_KEPT_SECONDS:
                found = [(name, check()) for name, check in list(self._checks.items())]
                self._answer = [f"{name}: {why}" for name, why in found if why is not None]
                self._asked_at = monotonic_seconds()
            return self._answer


health = Health()


def serve_health(port: int | None, told: Health = health) -> int | None:
    """Serve /metrics, /healthz and /readyz on 127.0.0.1, on a daemon thread; returns the port, None when it is off."""
    if port is None:
        return None

    def answer(environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        match environ["PATH_INFO"]:
            case "/metrics":
                return metrics_page(environ, start_response)
            case "/healthz":
                return _say(start_response, told.ails())
            case "/readyz":
                return _say(start_response, told.lacks())
            case _:
                text = b"there are /metrics, /healthz and /readyz\n"
                return _respond(start_response, HTTPStatus.NOT_FOUND, text)

    server = make_server("127.0.0.1", port, answer, server_class=_Server, handler_class=_Silent)
    Thread(target=server.serve_forever, name="metrics", daemon=True).start()
    return int(server.server_port)


def _say(start_response: "StartResponse", reasons: list[str]) -> Iterable[bytes]:
    status = HTTPStatus.SERVICE_UNAVAILABLE if reasons else HTTPStatus.OK
    return _respond(start_response, status, "".join(f"{line}\n" for line in reasons or ["ok"]).encode())


def _respond(start_response: "StartResponse", status: HTTPStatus, text: bytes) -> Iterable[bytes]:
    headers = [("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", str(len(text)))]
    start_response(f"{status.value} {status.phrase}", headers)
    return [text]


class _Server(ThreadingMixIn, WSGIServer):
    """Answers each on a thread of its own, so that a slow reader is in nobody's way."""

    daemon_threads = True


class _Silent(WSGIRequestHandler):
    """Logs no line for each look."""

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""
