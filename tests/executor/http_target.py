"""A real HTTP server on this machine whose answers a test writes, and attempts at it."""

import socket
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tests.executor.attempting import attempt_of, run_attempt, run_attempts
from tidewheel.executor.outcome import Outcome
from tidewheel.executor.runners.http import HttpRunner
from tidewheel.jobs.allow_lists import AllowLists
from tidewheel.task_tokens import TaskTokens


@dataclass
class Answer:
    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict[str, str])
    hold: threading.Event | None = None


@dataclass
class Received:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class HttpTarget:
    """The server, its answers in turn (the last one repeats), and what it received."""

    port: int = 0
    answers: list[Answer] = field(default_factory=lambda: [Answer()])
    received: list[Received] = field(default_factory=list[Received])
    connections: int = 0

    def url(self, path: str = "/hook", host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}{path}"


class Quiet(BaseHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        del format, args


@contextmanager
def listening(handler: type[BaseHTTPRequestHandler]) -> Generator[int]:
    """A server of these connections as long as the block; yields its port."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


@contextmanager
def serving(*answers: Answer) -> Generator[HttpTarget]:
    target = HttpTarget(answers=list(answers) or [Answer()])

    class Handler(Quiet):
        protocol_version = "HTTP/1.1"

        def setup(self) -> None:
            target.connections += 1
            super().setup()

        def answer(self) -> None:
            length = int(self.headers.get("content-length", 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            target.received.append(Received(self.command, self.path, headers, self.rfile.read(length)))
            answer = target.answers.pop(0) if len(target.answers) > 1 else target.answers[0]
            if answer.hold is not None:
                answer.hold.wait(30)
            try:
                self.send(answer)
            except OSError:
                self.close_connection = True  # the caller has hung up

        def send(self, answer: Answer) -> None:
            # Its own Date is sent, unless the answer brings one.
            (self.send_response_only if "Date" in answer.headers else self.send_response)(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(answer.body)))
            self.end_headers()
            self.wfile.write(answer.body)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = do_HEAD = answer

    with listening(Handler) as target.port:
        yield target


@contextmanager
def conversing(talk: Callable[[socket.socket], None], host: str = "127.0.0.1", port: int = 0) -> Generator[HttpTarget]:
    """A server that sends arbitrary bytes on each connection after it has read a request's head."""
    target = HttpTarget()
    listening = socket.create_server((host, port), reuse_port=False)
    target.port = listening.getsockname()[1]

    def serve() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            target.connections += 1
            threading.Thread(target=answer, args=(connection,), daemon=True).start()

    def answer(connection: socket.socket) -> None:
        with connection, suppress(OSError):  # the caller hangs up when it has had enough
            connection.recv(65_536)
            talk(connection)

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield target
    finally:
        # Closing alone does not wake a thread that waits for the next connection.
        with suppress(OSError):
            listening.shutdown(socket.SHUT_RDWR)
        listening.close()


def pretend_aws(monkeypatch: pytest.MonkeyPatch, url: str | None = None) -> None:
    """Name a region and fake credentials, without access to real ones; and an address in place of AWS."""
    for name, value in {
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
        "AWS_DEFAULT_REGION": "eu-west-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": "/dev/null",
        "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
        **({} if url is None else {"AWS_ENDPOINT_URL": url}),
    }.items():
        monkeypatch.setenv(name, value)


def call(
    *urls: str,
    job: dict[str, Any] | None = None,
    seconds: float = 60.0,
    secrets: tuple[bytes, ...] = (),
    host: str = "127.0.0.1",
    target: Mapping[str, object] | None = None,
    **runner: Any,  # noqa: ANN401 - of the runner
) -> list[Outcome]:
    """Run an attempt at each URL to its end, by one runner; secrets sign requests to the host."""
    given: dict[str, Any] = {"allow_private": True, "task_tokens": TaskTokens([b"of tests"])} | runner
    described = [{"target": {"type": "http", "url": url} | dict(target or {})} | (job or {}) for url in urls]
    known = {host: secrets} if secrets else None
    return run_attempts(lambda: HttpRunner(secrets=known, **given), *map(attempt_of, described), seconds=seconds)


def answered(*answers: Answer, path: str = "/hook", **given: Any) -> tuple[Outcome, HttpTarget]:  # noqa: ANN401
    """Run an attempt at a server with these answers; return its outcome and the server."""
    with serving(*answers) as target:
        [outcome] = call(target.url(path), **given)
    return outcome, target


def call_message(url: str, *, allow_lists: AllowLists | None = None) -> Outcome:
    """Run an attempt at a URL that no submit has checked: its message has it."""
    attempt = attempt_of({"target": {"type": "http", "url": "http://a"}})
    http = attempt.definition.target.http
    assert http is not None
    target = replace(attempt.definition.target, http=replace(http, url=url))
    attempt.definition = replace(attempt.definition, target=target)
    return run_attempt(lambda: HttpRunner(allow_private=True, allow_lists=allow_lists), attempt)
