"""HTTP targets and the lease: what has lost it sends nothing; kept connections carry no request twice."""

import asyncio
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

import pytest
import uvloop

from tests.executor.attempting import attempt_of
from tests.executor.http_target import HttpTarget, conversing, serving
from tidewheel.clock import boot_seconds
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
from tidewheel.executor.runners.http import HttpRunner
async def work():
    began = boot_seconds()
    runner = HttpRunner(allow_private=True, lost_lease=lambda: boot_seconds() - began > {LEASE_SECONDS})
    outcome = await runner.run(attempt_of({{"target": {{"type": "http", "url": sys.argv[1]}}, "payload": 1}}))
    print(outcome.kind, outcome.error_type, outcome.not_started, flush=True)
    await runner.close()
uvloop.run(work())
"""


def calls(
    target: HttpTarget, count: int, lost: Callable[[int], bool], *, method: str = "POST", payload: object = "x"
) -> list[Outcome]:
    """Call one after another by one runner, which looks at its lease before each write."""

    async def work() -> list[Outcome]:
        outcomes: list[Outcome] = []
        runner = HttpRunner(allow_private=True, lost_lease=lambda: lost(len(outcomes)))
        described = {"target": {"type": "http", "url": target.url(), "method": method}, "payload": payload}
        try:
            while len(outcomes) < count:
                outcomes.append(await runner.run(attempt_of(described)))
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
        runner = HttpRunner(allow_private=True, lost_lease=resolved.is_set, resolve=resolve)
        described = {"target": {"type": "http", "url": url, "method": method}, "payload": payload}
        try:
            return await runner.run(attempt_of(described))
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


def test_lease_is_looked_at_again_when_the_body_is_written() -> None:
    """A loop's turn lies between the choice of a connection and the write."""
    looks: list[int] = []

    def lost(number: int) -> bool:
        looks.append(number)
        return len(looks) == 2

    with serving() as target:
        [outcome] = calls(target, 1, lost)
    assert outcome is NOT_STARTED
    assert target.received == []


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


def until(condition: Callable[[], object], what: str) -> None:
    """Wait until something holds."""
    give_up = boot_seconds() + 30
    while not condition():
        assert boot_seconds() < give_up, what
        threading.Event().wait(0.01)


def accepted_from_another(listening: socket.socket, ports: set[int]) -> socket.socket:
    """Accept until a connection comes that the test has not made."""
    listening.settimeout(30)
    while True:
        connection, peer = listening.accept()
        if peer[1] not in ports:
            return connection
        connection.close()


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "POST"])
def test_lost_request_is_not_repeated_by_the_client(method: str) -> None:
    with conversing(lambda _: None) as target:
        [outcome] = calls(target, 1, lambda _: False, method=method)
    assert (outcome.error_type, outcome.not_started) == ("http_protocol", False)
    assert target.connections == 1


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
            if looks == 2:
                loop.call_soon(arrived)  # the loop's next code after the write
            return False

        runner = HttpRunner(allow_private=True, lost_lease=lost)
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/"
        task = asyncio.create_task(runner.run(attempt_of({"target": {"type": "http", "url": url}, "payload": "x"})))
        while not seen:
            await asyncio.sleep(0)
        accepted[0].sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        assert (await task).kind is AttemptOutcome.SUCCEEDED
        accepted[0].close()
        await runner.close()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        (uvloop.run if uv else asyncio.run)(work(listening))
    assert seen == [True]


def test_few_connections_are_kept_to_many_hosts() -> None:
    async def work() -> int:
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
        return left

    assert KEPT - 1 <= asyncio.run(work()) <= KEPT + 1
