"""HTTP targets and the lease: what has lost it sends nothing; kept connections carry no request twice."""

import asyncio
import math
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil
import pytest
import uvloop

from tests.executor.attempting import attempt_of
from tests.executor.http_target import HttpTarget, conversing, serving
from tests.fixtures.services import until
from tidewheel.clock import boot_seconds
from tidewheel.executor.lease import Lease
from tidewheel.executor.outcome import NOT_STARTED, Outcome
from tidewheel.executor.runners.http import HttpRunner
from tidewheel.runs import AttemptOutcome

LEASE_SECONDS = 2.0
KEPT = 200  # idle connections
STOPPED_SECONDS = 2.5  # longer than the lease, shorter than the 5 s that a connection may take

# The runner with a lease that nothing renews, as a child that can be stopped.
CHILD = f"""
import sys, uvloop
from tests.executor.attempting import attempt_of
from tidewheel.clock import boot_seconds
from tidewheel.executor.lease import Lease
from tidewheel.executor.runners.http import HttpRunner
async def work():
    lease = Lease(boot_seconds() + {LEASE_SECONDS})
    runner = HttpRunner(allow_private=True)
    described = {{"target": {{"type": "http", "url": sys.argv[1]}}, "payload": 1}}
    outcome = await runner.run(attempt_of(described, lease=lease))
    print(outcome.kind, outcome.error_type, outcome.not_started, flush=True)
    await runner.close()
uvloop.run(work())
"""


class Looked(Lease):
    """A lease that is over when a function says so."""

    def __init__(self, over: Callable[[], bool]) -> None:
        super().__init__(math.inf)
        self._over = over

    def is_over(self) -> bool:
        return self._over()


def calls(
    target: HttpTarget, count: int, lost: Callable[[int], bool], *, method: str = "POST", payload: object = "x"
) -> list[Outcome]:
    """Call one after another by one runner, which looks at its lease before each write."""

    async def work() -> list[Outcome]:
        outcomes: list[Outcome] = []
        runner = HttpRunner(allow_private=True)
        lease = Looked(lambda: lost(len(outcomes)))
        described = {"target": {"type": "http", "url": target.url(), "method": method}, "payload": payload}
        try:
            while len(outcomes) < count:
                outcomes.append(await runner.run(attempt_of(described, lease=lease)))
        finally:
            await runner.close()
        return outcomes

    return uvloop.run(work())


@pytest.mark.parametrize("payload", ["x", None])
@pytest.mark.parametrize("method", ["POST", "GET"])
def test_lease_lost_while_waiting_for_a_connection_sends_nothing(method: str, payload: object) -> None:
    resolved = threading.Event()

    async def resolve(host: str, port: int) -> Sequence[str]:
        del host, port
        resolved.set()  # the lease is over while the name is looked up
        return ["127.0.0.1"]

    async def work(url: str) -> Outcome:
        runner = HttpRunner(allow_private=True, resolve=resolve)
        described = {"target": {"type": "http", "url": url, "method": method}, "payload": payload}
        try:
            return await runner.run(attempt_of(described, lease=Looked(resolved.is_set)))
        finally:
            await runner.close()

    with serving() as target:
        assert asyncio.run(work(target.url(host="slow.example"))) is NOT_STARTED
    assert target.received == []


@pytest.mark.parametrize("payload", ["x", None])
def test_lease_lost_on_a_kept_connection_sends_nothing(payload: object) -> None:
    with serving() as target:
        outcomes = calls(target, 3, lambda number: number == 1, payload=payload)
    assert [outcome.kind for outcome in outcomes] == [
        AttemptOutcome.SUCCEEDED, AttemptOutcome.RELEASED, AttemptOutcome.SUCCEEDED,
    ]  # fmt: skip
    assert len(target.received) == 2


@pytest.mark.landing
@pytest.mark.process
def test_stopped_executor_sends_nothing_after_its_lease() -> None:
    """The kernel makes its connection while it is stopped, for the listener's queue was full before."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listening, ExitStack() as closing:
        port = listening.getsockname()[1]
        queued = [closing.enter_context(socket.socket()) for _ in range(8)]
        for each in queued:
            each.settimeout(0)
            with suppress(BlockingIOError):
                each.connect(("127.0.0.1", port))
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, f"http://127.0.0.1:{port}/"],
            stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2],
        )  # fmt: skip
        assert child.stdout is not None
        closing.enter_context(child)
        closing.callback(child.kill)
        ports = {each.getsockname()[1] for each in queued}
        until(lambda: connecting(port) - ports, "the child has sent its first SYN, which was dropped")
        os.kill(child.pid, signal.SIGSTOP)
        stopped_at = boot_seconds()
        for each in queued:  # else one may take the place of the child's handshake, which the kernel then forgets
            each.close()
        connection = closing.enter_context(accepted_from_another(listening, ports))
        until(lambda: boot_seconds() - stopped_at > STOPPED_SECONDS, "its lease is over")
        os.kill(child.pid, signal.SIGCONT)
        connection.settimeout(30)
        assert connection.recv(1) == b"", "a request was sent after the lease"
        assert child.stdout.readline() == "released None True\n"


def connecting(port: int) -> set[int]:
    """Return the local ports of connections to a port in state SYN_SENT (02). Source: Linux, proc_net_tcp."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]]
    return {int(row[1].split(":")[1], 16) for row in rows if row[2].endswith(f":{port:04X}") and row[3] == "02"}


def accepted_from_another(listening: socket.socket, ports: set[int]) -> socket.socket:
    listening.settimeout(30)
    while True:
        connection, peer = listening.accept()
        if peer[1] not in ports:
            return connection
        connection.close()


def test_lost_request_is_not_repeated_by_the_client() -> None:
    for method in ("GET", "PUT", "DELETE", "POST"):
        with conversing(lambda _: None) as target:
            [outcome] = calls(target, 1, lambda _: False, method=method)
        assert (outcome.error_type, outcome.not_started) == ("http_protocol", False), method
        assert target.connections == 1, method


def test_request_avoids_a_connection_that_the_server_has_closed() -> None:
    """The end of a kept connection is in the kernel, and the loop has had no turn to read it."""
    closed, waited = threading.Semaphore(0), set[int]()

    def talk(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        connection.shutdown(socket.SHUT_RDWR)
        closed.release()

    def wait_until_closed(number: int) -> bool:
        if number not in waited and number:
            closed.acquire(timeout=30)
        waited.add(number)
        return False

    with conversing(talk) as target:
        outcomes = calls(target, 5, wait_until_closed)
    assert [outcome.kind for outcome in outcomes] == [AttemptOutcome.SUCCEEDED] * 5
    assert target.connections == 5


@pytest.mark.parametrize("uv", [False, True], ids=["asyncio", "uvloop"])
def test_request_is_in_the_kernel_right_after_the_look_at_the_lease(uv: bool) -> None:  # noqa: FBT001
    """No other code of the loop runs in between: it could take long, and the lease could end meanwhile."""
    seen: list[bool] = []

    async def work(listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        accepted: list[socket.socket] = []

        def arrived() -> None:
            if not accepted and select.select([listening], [], [], 0)[0]:
                accepted.append(listening.accept()[0])
            seen.append(bool(accepted and select.select(accepted, [], [], 0)[0]))

        looks = 0

        def lost() -> bool:
            nonlocal looks
            looks += 1
            if looks == 2:  # the look before was at the connection
                loop.call_soon(arrived)  # the loop's next code after the write
            return False

        runner = HttpRunner(allow_private=True)
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/"
        attempt = attempt_of({"target": {"type": "http", "url": url}, "payload": "x"}, lease=Looked(lost))
        task = asyncio.create_task(runner.run(attempt))
        while not seen:
            await asyncio.sleep(0)
        accepted[0].sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        assert (await task).kind is AttemptOutcome.SUCCEEDED
        accepted[0].close()
        await runner.close()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        (uvloop.run if uv else asyncio.run)(work(listening))
    assert seen == [True]


def test_rest_of_a_large_request_is_not_sent_after_the_lease() -> None:
    """The target reads nothing until the lease has ended, so the kernel takes only a part."""
    looks, body, over = 0, "x" * 250_000, threading.Event()

    def lost() -> bool:
        nonlocal looks
        looks += 1
        if looks == 2:  # right before the first bytes; the look before was at the connection
            bound_what_the_kernel_takes(listening.getsockname()[1])
        return over.is_set()

    async def work(listening: socket.socket) -> tuple[Outcome, int]:
        runner = HttpRunner(allow_private=True)
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/"
        attempt = attempt_of({"target": {"type": "http", "url": url}, "payload": body}, lease=Looked(lost))
        task = asyncio.create_task(runner.run(attempt))
        loop = asyncio.get_running_loop()
        accepted, _ = await loop.sock_accept(listening)
        async with asyncio.timeout(30):
            while looks < 2:
                await asyncio.sleep(0)
        over.set()
        received = 0
        with accepted:
            while data := await loop.sock_recv(accepted, 65_536):
                received += len(data)
        outcome = await task
        await runner.close()
        return outcome, received

    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        listening.setblocking(False)  # noqa: FBT003 - the socket's own signature
        outcome, received = uvloop.run(work(listening))
    assert 0 < received < len(body)
    assert (outcome.kind, outcome.not_started) == (AttemptOutcome.RELEASED, False)


def bound_what_the_kernel_takes(port: int) -> None:
    """Give this process's connections to a port a small send buffer: a large one takes the whole request."""
    for each in psutil.Process().net_connections("tcp"):
        if each.raddr and each.raddr.port == port:
            with socket.socket(fileno=os.dup(each.fd)) as found:
                found.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)


async def test_few_connections_are_kept_to_many_hosts() -> None:
    living: set[asyncio.StreamWriter] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        living.add(writer)
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while await reader.readuntil(b"\r\n\r\n"):
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        living.discard(writer)
        writer.close()

    server = await asyncio.start_server(serve, "0.0.0.0", 0)  # noqa: S104 - for every address of the loopback
    port = server.sockets[0].getsockname()[1]
    runner = HttpRunner(allow_private=True)
    for number in range(KEPT + 60):
        url = f"http://127.0.{1 + number // 250}.{1 + number % 250}:{port}/"
        outcome = await runner.run(attempt_of({"target": {"type": "http", "url": url, "method": "GET"}}))
        assert outcome.kind is AttemptOutcome.SUCCEEDED
    async with asyncio.timeout(10):
        while len(living) > KEPT + 1:
            await asyncio.sleep(0)
    left = len(living)
    await runner.close()
    server.close()
    async with asyncio.timeout(10):
        while living:
            await asyncio.sleep(0)
    assert KEPT - 1 <= left <= KEPT + 1
