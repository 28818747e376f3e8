"""The stream of changes of runs: each end once it has happened, from where the client left off."""

import json
import socket
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from http import HTTPStatus
from typing import Any

import httpx
import psutil
import pytest

from tests.control.api.answering import answering, enter, refusal
from tests.fixtures.database import Database
from tests.fixtures.services import until
from tests.transitions.acts import begun, copy_ends, submit, succeed, trigger
from tidewheel.clock import monotonic_seconds
from tidewheel.control.api import connections, run_events

PATH = "/api/v1/run-events"
ENDS, SIZE = 4_000, 4_000  # so many ends of so many bytes are more than the socket of a client takes unread
STALLED = 2


@pytest.fixture
def client(database: Database) -> Iterator[httpx.Client]:
    submit(database)
    with answering(database) as made:
        yield made


@contextmanager
def following(client: httpx.Client, last: str | None = None, query: str = "") -> Generator[Iterator[dict[str, Any]]]:
    headers = {"Last-Event-ID": last} if last else {}
    with client.stream("GET", PATH + query, headers=headers) as answer:
        assert answer.status_code == HTTPStatus.OK
        yield events(answer)


def events(answer: httpx.Response) -> Iterator[dict[str, Any]]:
    event: dict[str, Any] = {}
    for line in answer.iter_lines():
        name, _, text = line.partition(": ")
        if name == "retry":
            yield {"opened": True}
        elif name in {"id", "data"}:
            event[name] = json.loads(text) if name == "data" else text
        elif not line and "data" in event:
            yield event
            event = {}


def test_changes_of_a_run_are_streamed_in_order_and_a_new_stream_goes_on_after_the_last(
    client: httpx.Client, database: Database
) -> None:
    with following(client) as stream:
        assert next(stream) == {"opened": True}
        started = begun(database)
        assert next(stream)["data"]["status"] == "running"
        succeed(database, started)
        ended = next(stream)
        assert (ended["data"]["run_id"], ended["data"]["status"]) == (str(started.run_id), "succeeded")
    missed = begun(database)
    succeed(database, missed)
    with following(client, ended["id"]) as stream:
        seen: list[str] = []
        while str(missed.run_id) not in seen:
            event = next(stream)
            seen += [event["data"]["run_id"]] if "data" in event else []


def test_stream_of_a_job_has_no_other_jobs_runs(client: httpx.Client, database: Database) -> None:
    submit(database, "other")
    with following(client, query="?job=other") as stream:
        next(stream)
        succeed(database, begun(database))
        mine = begun(database, "other")
        assert next(stream)["data"]["run_id"] == str(mine.run_id)


def test_stream_that_cannot_be_opened_is_refused(client: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    refusal(client.get(PATH + "?job=nope"), HTTPStatus.NOT_FOUND)
    told = refusal(client.get(PATH, headers={"Last-Event-ID": "x"}), HTTPStatus.UNPROCESSABLE_ENTITY)
    assert told["errors"][0]["path"] == "Last-Event-ID"
    monkeypatch.setattr(run_events, "_STREAMS", 0)
    refusal(client.get(PATH), HTTPStatus.SERVICE_UNAVAILABLE)


def test_streams_and_lists_leave_heartbeats_their_threads(client: httpx.Client, database: Database) -> None:
    """While every thread of reads and streams waits for a lock, beats go on."""
    executor = enter(client)
    trigger(database)
    with database.transaction() as held:
        held.execute("LOCK TABLE job_runs IN ACCESS EXCLUSIVE MODE")
        waiting = [httpx.Client(base_url=client.base_url, timeout=0.5, trust_env=False) for _ in range(10)]
        for each in waiting:
            with pytest.raises(httpx.ReadTimeout):
                each.get("/api/v1/runs")
        assert executor.heartbeat() == []
    for each in waiting:
        each.close()


@pytest.mark.parametrize(("limit", "value"), [("_UNREAD_SECONDS", 0.5), ("_UNREAD_BYTES", 0)])
def test_stream_whose_client_stops_reading_ends_and_takes_nothing_from_beats(
    client: httpx.Client, database: Database, monkeypatch: pytest.MonkeyPatch, limit: str, value: float
) -> None:
    """Either limit on what was sent and not read disconnects it; an honest stream goes on."""
    since = database.now().isoformat()
    succeed(database, begun(database))
    copy_ends(database, ENDS, size=SIZE)
    monkeypatch.setattr(connections, limit, value)
    executor = enter(client)
    with following(client) as honest, ExitStack() as held:
        assert next(honest) == {"opened": True}
        stalled = [held.enter_context(asking(client, since)) for _ in range(STALLED)]
        places = {each.getsockname()[1] for each in stalled}
        took: list[float] = []

        def are_closed() -> bool:
            asked_at = monotonic_seconds()
            assert executor.heartbeat() == []
            took.append(monotonic_seconds() - asked_at)
            return not places & connected(client)

        until(are_closed, "each is disconnected")
        assert sorted(took)[len(took) // 2] < 0.25  # of a heartbeat each second
        came = sum(len(all_that_comes(each)) for each in stalled)
        assert came < STALLED * ENDS * SIZE / 2, "what was not read was not written"
        last = begun(database)
        assert next(honest)["data"]["run_id"] == str(last.run_id)


@contextmanager
def asking(client: httpx.Client, since: str) -> Generator[socket.socket]:
    """A client of a stream that reads nothing."""
    with socket.socket() as made:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        made.settimeout(60)
        made.connect(("127.0.0.1", client.base_url.port or 0))
        made.sendall(f"GET {PATH} HTTP/1.1\r\nHost: localhost\r\nLast-Event-ID: {since}\r\n\r\n".encode())
        yield made


def connected(client: httpx.Client) -> set[int]:
    """The ports of the clients that the API is connected with."""
    found = psutil.Process().net_connections("tcp")
    return {each.raddr.port for each in found if each.laddr.port == client.base_url.port and each.raddr}


def all_that_comes(connection: socket.socket) -> bytes:
    came = bytearray()
    try:
        while more := connection.recv(1 << 20):
            came += more
    except ConnectionResetError:
        pass
    return bytes(came)
