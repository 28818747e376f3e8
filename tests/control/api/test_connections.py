"""Idle connections: closed after a timeout, and at the limit by a new connection."""

import socket
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from functools import partial
from http import HTTPStatus

import httpx
import pytest

from tests.control.api.answering import answering
from tests.fixtures.database import Database
from tests.fixtures.services import until
from tidewheel.control.api import app

TOKEN = "correct-horse-battery"
HEAD = b"GET /healthz HTTP/1.1\r\nHost: x\r\n"
# Answered 401, its body unread.
UNWANTED = b"POST /api/v1/executors HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n"


@contextmanager
def connected(client: httpx.Client) -> Generator[socket.socket]:
    with socket.create_connection(("127.0.0.1", client.base_url.port or 0), timeout=60) as made:
        yield made


def answer(connection: socket.socket) -> bytes:
    """Return the next bytes, at least one; empty after a close."""
    return connection.recv(65536)


def all_that_comes(connection: socket.socket) -> bytes:
    """All that comes until the connection is closed; a TimeoutError if it never is."""
    came = bytearray()
    try:
        while more := connection.recv(1 << 20):
            came += more
    except ConnectionResetError:
        pass
    return bytes(came)


_IDLE = {
    "nothing": (b"", 0),
    "half a head": (HEAD, 0),
    "a request": (HEAD + b"\r\n", 1),
    "a request and half a head": (HEAD + b"\r\n" + HEAD, 1),
    "a request without its body": (UNWANTED + b"{", 1),
}
_SLOW = {"at once": b"", "after an answer": HEAD + b"\r\n", "in a body": UNWANTED}


def test_idle_connection_is_closed_in_spite_of_slow_bytes(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "_IDLE_SECONDS", 1)

    def gone(connection: socket.socket) -> bool:
        try:
            connection.sendall(b"G")
            return connection.recv(1) == b""
        except TimeoutError:
            return False
        except (ConnectionResetError, BrokenPipeError):
            return True

    with answering(database, token=TOKEN) as client, ExitStack() as held:
        idle, slow = dict[str, socket.socket](), dict[str, socket.socket]()
        for case, (sent, _) in _IDLE.items():  # at once, for the time of a connection begins with it
            idle[case] = held.enter_context(connected(client))
            idle[case].sendall(sent)
        for case in _SLOW:
            slow[case] = connection = held.enter_context(connected(client))
            connection.sendall(_SLOW[case])
            assert not _SLOW[case] or answer(connection).startswith(b"HTTP/1.1 "), case
            connection.settimeout(0.2)
        for case, connection in slow.items():
            until(partial(gone, connection), f"slow bytes {case}: it is closed")
        for case, connection in idle.items():
            assert all_that_comes(connection).count(b"HTTP/1.1 ") == _IDLE[case][1], case


def test_request_in_progress_is_not_cut_off(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "_IDLE_SECONDS", 1)
    with answering(database, token=TOKEN) as client, connected(client) as connection:
        body = b'{"name": "here:1", "handlers": ["a"], "slots": 1}'
        head = UNWANTED.replace(b"1000", str(len(body)).encode() + b"\r\nAuthorization: Bearer " + TOKEN.encode())
        connection.sendall(head.replace(b"\r\n\r\n", b"\r\nContent-Type: application/json\r\n\r\n"))
        connection.settimeout(2)  # longer than an idle one is kept
        with pytest.raises(TimeoutError):
            connection.recv(1)
        connection.settimeout(60)
        connection.sendall(body)
        assert answer(connection).startswith(b"HTTP/1.1 201 ")


def test_many_idle_connections_do_not_block_requests(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "_CONNECTIONS", 10)
    with answering(database, token=TOKEN) as client:
        for said in (b"", HEAD + b"\r\n"):
            with ExitStack() as held:
                opened: list[socket.socket] = []
                for _ in range(25):
                    opened.append(held.enter_context(connected(client)))
                    if said:
                        opened[-1].sendall(said)
                        assert answer(opened[-1]).startswith(b"HTTP/1.1 200 ")
                assert client.get("/healthz").status_code == HTTPStatus.OK, said
                assert all_that_comes(opened[0]) == b"", said  # who came first has made room


def test_request_with_two_lengths_is_refused_and_its_connection_closed(database: Database) -> None:
    """A proxy that believes the other length would take the rest for a request of the next client."""
    said = b"POST /api/v1/jobs/a:trigger HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    lengths = b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    with answering(database) as client, connected(client) as connection:
        connection.sendall(said + lengths + HEAD + b"\r\n")
        came = all_that_comes(connection)
    assert came.startswith(b"HTTP/1.1 400 ")
    assert b"Transfer-Encoding cannot be combined" in came
    assert came.count(b"HTTP/1.1 ") == 1
