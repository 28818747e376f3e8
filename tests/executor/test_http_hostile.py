"""Hostile HTTP targets: each causes a clear failure, within its time and in bounded memory."""

import asyncio
import itertools
import json
import socket
import threading
import tracemalloc
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from tests.executor.attempting import attempt_of
from tests.executor.http_target import Answer, call, conversing, serving
from tidewheel.executor.outcome import Outcome
from tidewheel.executor.runners.http import HttpRunner
from tidewheel.executor.runners.http_transport import Resolve
from tidewheel.runs import AttemptOutcome

OK = b"HTTP/1.1 200 OK\r\n"
KIB64 = 65_536
MAX_BYTES = 16 << 20  # of memory: a gigabyte would be seen, what the client's parts need would not


def says(*pieces: bytes) -> Callable[[socket.socket], None]:
    """Send these and hang up."""

    def talk(connection: socket.socket) -> None:
        for piece in pieces:
            connection.sendall(piece)

    return talk


def without_end(head: bytes, piece: bytes) -> Callable[[socket.socket], None]:
    """Send the head and then the same piece for ever."""

    def talk(connection: socket.socket) -> None:
        connection.sendall(head)
        while True:
            connection.sendall(piece)

    return talk


def reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")


def traced(work: Callable[[], list[Outcome]]) -> tuple[list[Outcome], int]:
    """Return outcomes and the most memory that they took, in bytes."""
    tracemalloc.start()
    try:
        return work(), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def resolving(*answers: Sequence[str]) -> tuple[Resolve, list[str]]:
    """A name server with a list of answers, and the names it received."""
    coming, asked = iter(answers), list[str]()

    async def resolve(host: str, port: int) -> Sequence[str]:
        del port
        asked.append(host)
        return next(coming)

    return resolve, asked


@pytest.mark.parametrize(
    ("talk", "said"),
    [
        (says(b"\x16\x03\x01 this is no HTTP at all\r\n\r\n"), "Expected HTTP/"),
        (says(b"SSH-2.0-OpenSSH_9.2\r\n"), ""),
        (says(OK + b"content-length: -5\r\n\r\n"), "Content-Length"),
        (says(OK + b"content-length: 5\r\ncontent-length: 6\r\n\r\n"), "Content-Length"),
        (says(OK + b"transfer-encoding: chunked\r\n\r\nZZZ\r\n"), "chunk"),
        (says(OK + b"a" * 300_000), ""),
        (reset, ""),
        (says(), "without sending a response"),
        (says(b"HTTP/1.1 20"), "without sending"),
        (says(OK + b"content-length: 100\r\n\r\nonly this"), "not completed"),
        (says(OK + b"transfer-encoding: chunked\r\n\r\n5\r\nhel"), "complete"),
        (says(b"HTTP/1.1 099 Low\r\ncontent-length: 0\r\n\r\n"), "status 099"),
        (says(b"HTTP/1.1 000 None\r\ncontent-length: 0\r\n\r\n"), "status 000"),
        (says(b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n"), "status 101"),
    ],
)
def test_invalid_or_truncated_http_response_is_retried(talk: Callable[[socket.socket], None], said: str) -> None:
    with conversing(talk) as target:
        [outcome] = call(target.url())
    assert (outcome.kind, outcome.permanent, outcome.not_started) == (AttemptOutcome.FAILED, False, False)
    assert outcome.error_type in {"http_protocol", "http_reset"}
    assert said in (outcome.error_message or "")
    assert outcome.error_message


@pytest.mark.parametrize(
    ("head", "piece"),
    [
        (OK + b"\r\n", b"x" * KIB64),
        (OK + b"transfer-encoding: chunked\r\n\r\n", b"10000\r\n" + b"x" * KIB64 + b"\r\n"),
        (OK + b"content-length: 1073741824\r\n\r\n", b"x" * KIB64),
        (OK + b"content-length: 1073741824\r\ncontent-encoding: gzip\r\n\r\n", b"x" * KIB64),
        (b"HTTP/1.1 500 Oops\r\n\r\n", b"x" * KIB64),
        (OK, b"x: " + b"y" * 1000 + b"\r\n"),
        (OK + b"x: ", b"y" * KIB64),
        (b"HTTP/1.1 ", b"2" * KIB64),
    ],
    ids=["to the end", "chunked", "with its length", "packed", "an error", "headers", "one header", "the status"],
)
def test_huge_response_is_not_kept_in_memory(head: bytes, piece: bytes) -> None:
    with conversing(without_end(head, piece)) as target:
        [outcome], most = traced(lambda: call(target.url()))
    assert most < MAX_BYTES
    assert outcome.kind in {AttemptOutcome.SUCCEEDED, AttemptOutcome.FAILED}
    assert len(outcome.result or b"") + len(outcome.error_message or "") <= KIB64
    if head == OK + b"\r\n":
        assert json.loads(outcome.result or b"")["body"] == "x" * (48 * 1024), "its beginning is kept"


@pytest.mark.parametrize(
    "head",
    [
        OK + b"".join(b"x-%d: %b\r\n" % (number, b"y" * 60_000) for number in range(100)),
        b"".join(b"HTTP/1.1 103 Early Hints\r\nx-%d: %b\r\n\r\n" % (number, b"y" * 30_000) for number in range(100)),
    ],
    ids=["fields", "hints"],
)
def test_long_head_of_a_response_is_refused_before_it_is_kept(head: bytes) -> None:
    """The parser alone would keep 8 MiB of it, in each slot."""
    with conversing(says(head, OK + b"content-length: 2\r\n\r\nok")) as target:
        [outcome], most = traced(lambda: call(target.url()))
    assert (outcome.kind, outcome.permanent) == (AttemptOutcome.FAILED, False)
    assert most < len(head) + (2 << 20)  # which the target itself holds


@pytest.mark.parametrize("code", [b"100 Continue", b"103 Early Hints"])
def test_endless_interim_responses_end_after_ten(code: bytes) -> None:
    interim = b"HTTP/1.1 " + code + b"\r\nlink: </a.css>\r\n\r\n"
    with conversing(without_end(b"", interim)) as target:
        [outcome] = call(target.url())
    assert (outcome.kind, outcome.error_type) == (AttemptOutcome.FAILED, "http_protocol")
    assert "more than 10 responses 1xx" in (outcome.error_message or "")
    with conversing(says(interim * 10 + OK + b"content-length: 2\r\n\r\nok")) as target:
        [outcome] = call(target.url())
    assert outcome.kind is AttemptOutcome.SUCCEEDED


def test_checked_address_is_the_connected_one() -> None:
    """One look-up per connection: a different second answer of a name server is never used."""
    seen: list[str] = []

    def talk(connection: socket.socket) -> None:
        seen.append(connection.getsockname()[0])
        says(OK + b"content-length: 0\r\nconnection: close\r\n\r\n")(connection)

    resolve, asked = resolving(["127.0.0.1"], ["127.0.0.2"])
    with conversing(talk) as first, conversing(talk, host="127.0.0.2", port=first.port):
        url = first.url(host="changing.example")
        outcomes = call(url, resolve=resolve)
        assert (seen, asked) == (["127.0.0.1"], ["changing.example"])
        resolve, asked = resolving(["127.0.0.1"], ["127.0.0.2"])
        outcomes += call(url, url, resolve=resolve)
    assert seen[1:] == ["127.0.0.1", "127.0.0.2"]
    assert [outcome.kind for outcome in outcomes] == [AttemptOutcome.SUCCEEDED] * 3


def test_name_with_a_private_address_is_refused() -> None:
    """However it was answered before: every connection is checked anew."""
    for answer in (["127.0.0.1"], ["1.1.1.1", "127.0.0.1"], ["127.0.0.1", "1.1.1.1"], ["169.254.169.254"]):
        with serving() as target:
            resolve, asked = resolving(answer, answer)
            url = target.url(host="changing.example")
            outcomes = call(url, url, allow_private=False, resolve=resolve)
        refused = [(outcome.error_type, outcome.permanent) for outcome in outcomes]
        assert refused == [("AddressRefused", True)] * 2, answer
        assert (target.connections, len(asked)) == (0, 2), answer


def test_unresponsive_name_server_fails_the_attempt() -> None:
    async def resolve(host: str, port: int) -> Sequence[str]:
        del host, port
        await asyncio.Event().wait()
        return []

    [outcome] = call("http://slow.example/", resolve=resolve, job={"start_to_close": "200ms"})
    assert (outcome.error_type, outcome.not_started) == ("http_connect_timeout", True)
    assert "could not be resolved within" in (outcome.error_message or "")


async def test_look_ups_of_one_tenant_leave_threads_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look-up that its attempt no longer waits for keeps its thread until the name server answers."""
    answered, real = threading.Event(), socket.getaddrinfo

    def look_up(host: str, *args: Any, **named: Any) -> object:  # noqa: ANN401 - as the function that it replaces
        if host.endswith(".slow.example"):
            answered.wait(60)
            raise socket.gaierror
        return real(host, *args, **named)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    runner = HttpRunner(allow_private=True)

    async def run(tenant: str, url: str, seconds: str) -> Outcome:
        job = {"target": {"type": "http", "url": url}, "start_to_close": seconds}
        return await runner.run(attempt_of(job, tenant=tenant))

    with serving() as target:
        try:
            slow = (run("slow", f"http://{number}.slow.example/", "200ms") for number in range(200))
            assert {outcome.error_type for outcome in await asyncio.gather(*slow)} == {"http_connect_timeout"}
            outcome = await run("other", target.url(host="localhost"), "5s")
        finally:
            answered.set()
            await runner.close()
    assert outcome.kind is AttemptOutcome.SUCCEEDED


def test_cookies_of_a_target_are_not_sent_back() -> None:
    """Another job's request to the same host must not carry what this one's answer said."""
    with serving(Answer(headers={"Set-Cookie": "who=first; Path=/"})) as target:
        call(target.url("/a"), target.url("/b"))
    assert [request.headers.get("cookie") for request in target.received] == [None, None]


def test_runs_of_one_target_share_a_connection() -> None:
    with serving(Answer(body=b"done")) as target:
        outcomes = call(*[target.url(f"/{number}") for number in range(50)])
    assert {outcome.kind for outcome in outcomes} == {AttemptOutcome.SUCCEEDED}
    assert (len(target.received), target.connections) == (50, 1)


@pytest.mark.parametrize("flood", [1, 20_000])
def test_what_a_kept_connection_receives_unrequested_is_no_response_and_not_kept(flood: int) -> None:
    """A response after the response: a request of another run would get it."""
    closed = threading.Event()
    more = threading.Semaphore(1)

    def talk(connection: socket.socket) -> None:
        with suppress(OSError):
            connection.sendall(OK + b"content-length: 4\r\n\r\nmine")
            if more.acquire(blocking=False):
                threading.Event().wait(0.3)  # until the connection is kept
                for _ in range(flood):
                    connection.sendall((OK + b"content-length: 6\r\n\r\nforged") * 500)
                connection.recv(1)
        closed.set()

    async def work(url: str) -> list[Outcome]:
        runner = HttpRunner(allow_private=True)
        first = await runner.run(attempt_of({"target": {"type": "http", "url": url}}))
        await asyncio.to_thread(closed.wait, 30)
        second = await runner.run(attempt_of({"target": {"type": "http", "url": url}}))
        await runner.close()
        return [first, second]

    with conversing(talk) as target:
        outcomes, peak = traced(lambda: asyncio.run(work(target.url())))
    assert [json.loads(outcome.result or b"")["body"] for outcome in outcomes] == ["mine", "mine"]
    assert target.connections == 2
    assert peak < MAX_BYTES


@pytest.mark.parametrize(
    "rest",
    [b"\r\n", b"content-length: 0\r\n\r\n", b"content-length: 9\r\n\r\nabc", b"transfer-encoding: chunked\r\n\r\nZZ"],
)
def test_accepted_request_is_not_repeated_after_a_broken_response(rest: bytes) -> None:
    with conversing(says(b"HTTP/1.1 202 Accepted\r\n" + rest)) as target:
        [outcome] = call(target.url(), target={"async": True, "async_timeout": "1h"})
    assert outcome.waits == timedelta(hours=1)


def test_slow_body_after_202_is_abandoned() -> None:
    done = threading.Event()

    def talk(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 202 Accepted\r\n\r\n")
        for _ in itertools.takewhile(lambda _: not done.wait(0.05), itertools.count()):
            connection.sendall(b".")

    with conversing(talk) as target:
        [outcome] = call(target.url(), target={"async": True})
        done.set()
    assert outcome.waits == timedelta(hours=24)
