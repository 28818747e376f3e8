"""Strangers: what they can see, and what they can take from executors."""

import json
import re
import socket
import threading
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from http import HTTPStatus
from random import Random
from uuid import uuid4

import httpx
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tests.control.api.answering import answering, enter, refusal
from tests.fixtures.database import Database
from tests.fixtures.services import until
from tests.intake.waiting import token_of, waiting
from tidewheel.clock import monotonic_seconds
from tidewheel.control.api import app, request_input

TOKEN = "correct-horse-battery"
BEATS = 100
STRANGERS = 200

PATHS = (
    "/healthz",
    "/readyz",
    "/api/v1/schemas/0101010101010101",
    "/api/v1/schemas/%00",
    f"/api/v1/runs/{uuid4()}:complete",
    f"/api/v1/runs/{uuid4()}:heartbeat",
    "/api/v1/executors",
    f"/api/v1/executors/{uuid4()}:claim",
    f"/api/v1/executors/{uuid4()}:heartbeat",
    f"/api/v1/executors/{uuid4()}:finish",
)
FIELDS = ("token", "request_id", "tenant", "type", "result", "runs", "sweep", "claim_id", "name", "handlers", "slots")
VALUES: Sequence[object] = (
    None,
    0,
    -1,
    2**70,
    1e308,
    "",
    "x",
    "\x00",
    "\ud800",
    "%s",
    "';--",
    [None],
    {"a": None},
    *(json.loads(text) for text in ("[]", "[[]]", "{}", '{"a": {}}')),
)
BODIES = (b"", b"\xff\x00", b"[" * 1000, b'{"a":' * 1000, b"null", b'{"token": "x"', b'{"a": 1, "a": 2}', b"9" * 5000)
# Words of PostgreSQL, of its driver and of Python.
SECRETS = re.compile(r"postgres|psycopg|libpq|select |insert |relation \"|database \"|traceback|errno|port \d", re.I)


@contextmanager
def stranger(client: httpx.Client, said: bytes = b"") -> Generator[socket.socket]:
    with socket.create_connection(("127.0.0.1", client.base_url.port or 0), timeout=60) as made:
        made.sendall(said)
        yield made


def test_no_answer_to_a_stranger_shows_anything_of_the_database(database: Database) -> None:
    database.submit()
    token = token_of(database, waiting(database))
    nowhere = Database(make_conninfo(database.url, dbname="hidden_name"), database.installation)
    told = conninfo_to_dict(database.url)
    hidden = {"hidden_name", str(told["host"]), str(told["port"])}
    shown = (
        *({"Authorization": f"Bearer {each}"} for each in (TOKEN, token, "x")),
        *({"Host": each} for each in ("[", "x y", "a:b:c")),
        {"Content-Encoding": "gzip"},
        {"Content-Type": "text/plain"},
        {},
    )
    chance = Random(19)  # noqa: S311 - examples, the same in every run

    def ask() -> None:
        method, path = chance.choice(("GET", "POST", "POST", "PUT", "HEAD")), chance.choice(PATHS)
        document = {name: chance.choice(VALUES) for name in chance.sample(FIELDS, chance.randrange(5))}
        body = chance.choice((chance.choice(BODIES), json.dumps(document).encode()))
        headers = {"Content-Type": "application/json", "Authorization": ""} | chance.choice(shown)
        answer = client.request(method, path, headers=headers, content=body)
        assert not SECRETS.search(answer.text), (path, headers, body, answer.text)
        assert not any(each in answer.text for each in hidden), answer.text
        assert answer.status_code != HTTPStatus.INTERNAL_SERVER_ERROR, (path, headers, body)

    with answering(nowhere, token=TOKEN) as client:
        for _ in range(500):
            ask()
        answer = client.post("/api/v1/executors", json={"name": "a", "handlers": ["a"], "slots": 1})
        assert refusal(answer, HTTPStatus.SERVICE_UNAVAILABLE)["code"] == "unavailable"


def test_refusal_of_the_database_shows_nothing_of_it(fresh_database: Database) -> None:
    with answering(fresh_database) as client:
        executor = enter(client)
        fresh_database.execute("ALTER TABLE executors RENAME COLUMN slots TO hidden_name")
        answer = client.post("/api/v1/executors", json={"name": "a", "handlers": ["a"], "slots": 1})
        told = refusal(answer, HTTPStatus.SERVICE_UNAVAILABLE)
        assert (told["code"], SECRETS.search(answer.text), "Undefined" in answer.text) == ("unavailable", None, False)
        assert executor.executor_id


def test_many_probes_check_the_database_once_a_second(database: Database) -> None:
    sessions = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'tidewheel-api' AND datname = "
    sessions += "current_database()"
    before = database.value(sessions)
    with answering(database, token=TOKEN) as client, ThreadPoolExecutor(20) as probes:
        answers = [each.result().status_code for each in [probes.submit(client.get, "/readyz") for _ in range(400)]]
        assert set(answers) == {HTTPStatus.OK}
        assert database.value(sessions) - before <= 1


def test_strangers_of_one_address_do_not_keep_an_executor_out(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "_CONNECTIONS", 10)
    slow = b"POST /api/v1/runs/%s:complete HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{" % str(uuid4()).encode()
    with answering(database, token=TOKEN, api_connections_per_address=3) as client, ExitStack() as held:
        executor = enter(client)  # its connection stays
        for said in (b"", b"GET /hea", slow):
            for _ in range(8):
                held.enter_context(stranger(client, said))
        assert executor.heartbeat() == []
        with httpx.Client(base_url=client.base_url, headers=client.headers, trust_env=False) as another:
            assert enter(another).heartbeat() == []


def test_bodies_of_strangers_take_a_bounded_part_of_memory(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(request_input.ALLOWANCES, "strangers", 80_000)
    part = b"POST /api/v1/runs/%s:complete HTTP/1.1\r\nHost: x\r\nContent-Length: 36000\r\n\r\n" % str(uuid4()).encode()
    with answering(database, token=TOKEN) as client, stranger(client, part + b" " * 32000):
        path, body = f"/api/v1/runs/{uuid4()}:complete", b" " * 20000

        def is_full() -> bool:
            answer = client.post(path, content=body, headers={"Authorization": ""})
            return answer.status_code == HTTPStatus.SERVICE_UNAVAILABLE

        until(is_full, "the rest is refused")
        assert enter(client).heartbeat() == []


@pytest.mark.parametrize("chunked", [True, False])
def test_body_too_long_is_refused_before_all_of_it_comes(database: Database, *, chunked: bool) -> None:
    head = b"POST /api/v1/executors HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nAuthorization: Bearer "
    length = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: 1000000000"
    block = b"10000\r\n" + b" " * 0x10000 + b"\r\n" if chunked else b""
    with answering(database, token=TOKEN) as client, stranger(client, head + TOKEN.encode() + b"\r\n" + length) as one:
        one.sendall(b"\r\n\r\n" + block * 17)
        assert one.recv(100).startswith(b"HTTP/1.1 413 ")


@pytest.mark.landing
@pytest.mark.parametrize("kind", ["idle", "slow heads", "slow bodies"])
def test_two_hundred_strangers_do_not_slow_down_beats(database: Database, kind: str) -> None:
    body = f"POST /api/v1/runs/{uuid4()}:complete HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{{"
    said = {"idle": b"", "slow heads": b"GET /healthz HTTP/1.1\r\nHost: ", "slow bodies": body.encode()}[kind]
    with answering(database, token=TOKEN, api_connections_per_address=STRANGERS) as client, ExitStack() as held:
        executor = enter(client)
        others = [held.enter_context(stranger(client, said)) for _ in range(STRANGERS)]
        took: list[float] = []
        for number in range(BEATS):
            since = monotonic_seconds()
            assert executor.heartbeat() == []
            took.append(monotonic_seconds() - since)
            others[number].send(b"x")
        assert sorted(took)[BEATS // 2] < 0.1


@pytest.mark.slow
def test_strangers_that_hang_up_keep_out_neither_beats_nor_probes(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each leaves a request that waits for its turn: so many would keep out beats and probes."""
    monkeypatch.setattr(app, "_CONNECTIONS", 300)
    with answering(database, token=TOKEN) as client, ThreadPoolExecutor(2) as floods:
        executor = enter(client)
        over = threading.Event()

        def flood() -> None:
            while not over.is_set():
                with stranger(client, b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"):
                    pass

        flooding = [floods.submit(flood) for _ in range(2)]
        try:
            until_over = monotonic_seconds() + 5.0
            while monotonic_seconds() < until_over:
                assert executor.ask("heartbeat").status_code == HTTPStatus.OK
                assert client.get("/healthz").status_code == HTTPStatus.OK
        finally:
            over.set()
        assert [each.result() for each in flooding] == [None, None]
