"""The stream of changes of runs: each end once it has happened, from where the client left off."""

import json
import socket
from collections.abc import Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import datetime, timedelta
from http import HTTPStatus
from typing import Any, LiteralString

import httpx
import psutil
import pytest

from tests.control.api.answering import NO_ROOTS, ApiClient, answering, enter, refusal
from tests.control.api.test_connections import all_that_comes
from tests.fixtures.acts import ending
from tests.fixtures.database import ClockedDatabase, Database
from tests.fixtures.services import until
from tests.transitions.stepping import in_background
from tidewheel.clock import monotonic_seconds
from tidewheel.control.api import app, connections, run_events, streams
from tidewheel.runs import RunState
from tidewheel.transitions.finish import finish_runs

PATH = "/api/v1/run-events"
ENDS, SIZE = 4_000, 4_000  # so many ends of so many bytes are more than the socket of a client takes unread
STALLED = 2
COPY_END: LiteralString = """
INSERT INTO finished_runs (run_id, job_id, tenant, job_version, shard, cause, queue, lane, scheduled_at, publish_at,
                           created_at, finished_at, state, attempt)
SELECT gen_random_uuid(), job_id, tenant, job_version, shard, cause, queue, lane, scheduled_at, publish_at, created_at,
       tidewheel_now(), state, attempt
  FROM finished_runs, generate_series(1, %(runs)s)
"""


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_events, "_POLL_SECONDS", 0.05)


@pytest.fixture
def client(client: ApiClient) -> ApiClient:
    client.database.submit()
    return client


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
        started = database.begun()
        seen_states = (each["data"]["status"] for each in stream)
        assert next(each for each in seen_states if each != "queued") == "running", "a slow look may see it queued"
        database.succeed(started)
        ended = next(stream)
        assert (ended["data"]["run_id"], ended["data"]["status"]) == (str(started.run_id), "succeeded")
    missed = database.begun()
    database.succeed(missed)
    with following(client, ended["id"]) as stream:
        seen: list[str] = []
        while str(missed.run_id) not in seen:
            event = next(stream)
            seen += [event["data"]["run_id"]] if "data" in event else []


def ended(stream: Iterator[dict[str, Any]]) -> dict[str, Any]:
    """Return the next event of a run that has ended."""
    return next(each for each in stream if "data" in each and each["data"]["finished_at"] is not None)


def test_stream_of_a_job_has_no_other_jobs_runs(client: httpx.Client, database: Database) -> None:
    database.submit("other")
    with following(client, query="?job=other") as stream:
        next(stream)
        database.succeed(database.begun())
        mine = database.begun("other")
        assert next(stream)["data"]["run_id"] == str(mine.run_id)


def test_stream_that_cannot_be_opened_is_refused(
    client: httpx.Client, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusal(client.get(PATH + "?job=nope"), HTTPStatus.NOT_FOUND)
    monkeypatch.setattr(run_events, "_STREAMS", 0)
    with answering(database) as full:
        refusal(full.get(PATH), HTTPStatus.SERVICE_UNAVAILABLE)


def test_streams_and_lists_leave_heartbeats_their_threads(client: httpx.Client, database: Database) -> None:
    """While every thread of reads and streams waits for a lock, beats go on."""
    executor = enter(client)
    database.trigger()

    def read() -> None:
        with (
            httpx.Client(base_url=client.base_url, timeout=0.5, trust_env=False, verify=NO_ROOTS) as own,
            pytest.raises(httpx.ReadTimeout),
        ):
            own.get("/api/v1/runs")

    with database.transaction() as held, ThreadPoolExecutor(10) as threads:
        held.execute("LOCK TABLE job_runs IN ACCESS EXCLUSIVE MODE")
        for waited in [threads.submit(read) for _ in range(10)]:
            waited.result(60)
        assert executor.heartbeat() == []


def test_end_that_is_committed_after_a_later_one_is_sent(client: httpx.Client, database: Database) -> None:
    """An open stream sends it, and so does one that begins again behind the later one."""
    early = database.begun()
    with following(client) as stream, database.transaction() as held:
        next(stream)
        finish_runs(held, database.installation, [ending(early, RunState.SUCCEEDED)])
        late = database.begun()
        database.succeed(late)
        last = ended(stream)
        assert last["data"]["run_id"] == str(late.run_id)
        held.execute("COMMIT")
        assert ended(stream)["data"]["run_id"] == str(early.run_id)
    with following(client, last["id"]) as stream:
        assert {ended(stream)["data"]["run_id"] for _ in range(2)} == {str(early.run_id), str(late.run_id)}


def test_end_whose_transaction_lasts_long_is_sent_once(clocked: ClockedDatabase) -> None:
    clocked.submit()
    with answering(clocked) as client:
        early = clocked.begun()
        with following(client) as stream, clocked.transaction() as held:
            next(stream)
            finish_runs(held, clocked.installation, [ending(early, RunState.SUCCEEDED)])
            for _ in range(2):
                clocked.advance(timedelta(seconds=20))
                clocked.succeed(clocked.begun())
                ended(stream)
            held.execute("COMMIT")
            found = ended(stream)
            assert (found["data"]["run_id"], "id" in found) == (str(early.run_id), False)
            last = clocked.begun()
            clocked.succeed(last)
            assert ended(stream)["data"]["run_id"] == str(last.run_id)


def test_ends_of_one_instant_are_sent_once_however_many_are_remembered(
    client: httpx.Client, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_events, "_REMEMBERED", 3)
    for module in (run_events, streams):
        monkeypatch.setattr(module, "ENDS", 7)
    with following(client) as stream:
        next(stream)
        database.succeed(database.begun())
        ended(stream)
        with database.transaction() as connection:
            connection.execute(COPY_END, {"runs": 30})
        last = database.begun()
        database.succeed(last)
        seen = {ended(stream)["data"]["run_id"] for _ in range(31)}
        assert len(seen) == 31
        assert str(last.run_id) in seen


def test_id_that_is_none_of_a_stream_is_refused(shared_client: ApiClient) -> None:
    for last in ("x", "2026-11-20", "2026-11-20T01:00:00", "20261120T010000Z", "9" * 40, "-1", "\xe9"):
        answer = shared_client.get(PATH, headers=[(b"Last-Event-ID", last.encode("latin-1"))])
        assert refusal(answer)["errors"][0]["path"] == "Last-Event-ID", last


def test_stream_after_an_id_of_the_future_begins_now(client: httpx.Client, database: Database) -> None:
    with following(client, "9999-12-31T23:59:59.999999Z") as stream:
        assert next(stream) == {"opened": True}
        started = database.begun()
        database.succeed(started)
        assert ended(stream)["data"]["run_id"] == str(started.run_id)


def test_id_that_is_too_old_is_answered_with_the_gap(client: httpx.Client, database: Database) -> None:
    now = database.now()
    with client.stream("GET", PATH, headers={"Last-Event-ID": (now - timedelta(hours=3)).isoformat()}) as answer:
        lines = answer.iter_lines()
        while next(lines) != "event: gap":
            pass
        gap = json.loads(next(lines).removeprefix("data: "))
    since, until_ = (datetime.fromisoformat(gap[name]) for name in ("since", "until"))
    assert since == now - timedelta(hours=3)
    assert timedelta(minutes=59) < now - until_ <= timedelta(hours=1)


def test_number_of_streams_is_bounded_also_while_they_open(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_events, "_STREAMS", 4)  # a tenant has half of them

    def open_one(_: int) -> HTTPStatus:
        return HTTPStatus(held.enter_context(client.stream("GET", PATH)).status_code)

    with answering(database) as client:
        with ExitStack() as held, ThreadPoolExecutor(8) as threads:
            statuses = sorted(threads.map(open_one, range(8)))
        assert statuses == [HTTPStatus.OK] * 2 + [HTTPStatus.SERVICE_UNAVAILABLE] * 6

        def opens() -> bool:
            with client.stream("GET", PATH) as answer:
                return answer.status_code == HTTPStatus.OK

        until(opens, "the places are free again")
        until(lambda: client.head(PATH).status_code == HTTPStatus.OK, "HEAD also gets a place")


def test_quiet_stream_sends_comments_and_ends_with_the_api(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_events, "_ALIVE_SECONDS", 0.0)
    monkeypatch.setattr(app, "_GRACE_SECONDS", 60)  # in which a stream that does not end by itself is cut off
    with httpx.Client(timeout=60, trust_env=False, verify=NO_ROOTS) as own, ExitStack() as held:
        with answering(database) as client:
            answer = held.enter_context(own.stream("GET", f"{client.base_url}{PATH}"))
            assert answer.headers["x-accel-buffering"] == "no"
            lines = answer.iter_lines()
            while next(lines) != ": alive":
                pass
            held.enter_context(asking(client, database.now().isoformat()))
            rest = in_background(lambda: list(lines))
            stopped_at = monotonic_seconds()
        assert monotonic_seconds() - stopped_at < 30
        assert set(rest.result(60)) <= {"", ": alive"}


@pytest.mark.landing
@pytest.mark.parametrize(("limit", "value"), [("_UNREAD_SECONDS", 0.5), ("_UNREAD_BYTES", 0)])
def test_stream_whose_client_stops_reading_ends_and_takes_nothing_from_beats(
    client: httpx.Client, database: Database, monkeypatch: pytest.MonkeyPatch, limit: str, value: float
) -> None:
    """Either limit on what was sent and not read disconnects it; an honest stream goes on."""
    since = database.now().isoformat()
    database.succeed(database.begun())
    database.copy_ends(ENDS, size=SIZE)
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
        last = database.begun()
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
