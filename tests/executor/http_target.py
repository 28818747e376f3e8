"""A real HTTP server on this machine whose answers a test writes, and attempts at it."""

import asyncio
import socket
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.executor.attempting import attempt_of
from tidewheel.executor.outcome import Outcome
from tidewheel.executor.runners.addresses import Resolve
from tidewheel.executor.runners.http import HttpRunner
from tidewheel.executor.runners.secret_store import SecretStore
from tidewheel.jobs.allow_lists import AllowLists
from tidewheel.task_tokens import TaskTokens


@dataclass
class Answer:
    """A response of the server.

    Args:
        status: The status code.
        body: Sent whole, with its length.
        headers: Beside Content-Length.
        chunks: How often the body is sent, one after another and without a length; endless when negative.
        hold: Waited for before anything is sent.
    """

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict[str, str])
    chunks: int = 1
    hold: threading.Event | None = None


@dataclass
class Received:
    """A request as it came."""

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
    sent_bytes: int = 0
    connections: int = 0

    def url(self, path: str = "/hook", host: str = "127.0.0.1") -> str:
        """Return its URL."""
        return f"http://{host}:{self.port}{path}"


@contextmanager
def serving(*answers: Answer) -> Generator[HttpTarget]:
    """A server as long as the block."""
    target = HttpTarget(answers=list(answers) or [Answer()])

    class Handler(BaseHTTPRequestHandler):
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
            if answer.chunks == 1:
                self.send_header("content-length", str(len(answer.body)))
                self.end_headers()
                self.wfile.write(answer.body)
                return
            self.send_header("connection", "close")
            self.end_headers()
            sent = 0
            while sent != answer.chunks:
                self.wfile.write(answer.body)
                target.sent_bytes += len(answer.body)
                sent += 1
            self.close_connection = True

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = do_HEAD = answer

        def log_message(self, format: str, *args: object) -> None:
            del format, args

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    target.port = server.server_port
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield target
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


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


def call(
    *urls: str,
    allow_private: bool = True,
    job: dict[str, Any] | None = None,
    seconds: float = 60.0,
    secrets: tuple[bytes, ...] = (),
    host: str = "127.0.0.1",
    resolve: Resolve | None = None,
    target: Mapping[str, object] | None = None,
    store: SecretStore | None = None,
) -> list[Outcome]:
    """Run an attempt at each URL to its end, one after another, by one runner.

    Args:
        urls: Where to.
        allow_private: As the runner's.
        job: More of the job.
        seconds: The time each attempt has.
        secrets: What to sign with.
        host: Whose requests these sign.
        resolve: As the runner's.
        target: More of the target.
        store: As the runner's.
    """

    async def work() -> list[Outcome]:
        known = {host: secrets} if secrets else None
        runner = HttpRunner(
            allow_private=allow_private,
            secrets=known,
            task_tokens=TaskTokens([b"of tests"]),
            resolve=resolve,
            store=store,
        )
        try:
            outcomes: list[Outcome] = []
            for url in urls:
                described = {"target": {"type": "http", "url": url} | dict(target or {})} | (job or {})
                async with asyncio.timeout(seconds):
                    outcomes.append(await runner.run(attempt_of(described)))
            return outcomes
        finally:
            await runner.close()

    return asyncio.run(work())


def call_message(url: str, *, allow_lists: AllowLists | None = None) -> list[Outcome]:
    """Run an attempt at a URL that no submit has checked: its message has it."""
    attempt = attempt_of({"target": {"type": "http", "url": "http://a"}})
    http = attempt.definition.target.http
    assert http is not None
    target = replace(attempt.definition.target, http=replace(http, url=url))
    attempt.definition = replace(attempt.definition, target=target)

    async def work() -> list[Outcome]:
        runner = HttpRunner(allow_private=True, allow_lists=allow_lists)
        try:
            return [await runner.run(attempt)]
        finally:
            await runner.close()

    return asyncio.run(work())
