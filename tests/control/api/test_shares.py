"""Shares: one tenant takes the whole of what a process has, and another one is served."""

import re
import socket
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import partial
from http import HTTPStatus
from threading import Event
from typing import LiteralString, TypeAlias
from uuid import UUID, uuid4

import httpx
import pytest

import tidewheel
from tests.control.api.answering import NO_ROOTS, ApiClient, Executor, answer_of, answering, enter, refusal
from tests.control.api.test_keys import TOKEN, created, with_key
from tests.control.api.test_token_kinds import IN_PATH
from tests.control.console.pages import HTML, fields_of, typed_in
from tests.control.console.seeded import Ids, seed
from tests.control.test_every_view import PAGE_QUERIES, QUERIES
from tests.fixtures.acts import submission
from tests.fixtures.database import ClockedDatabase, Database
from tests.fixtures.services import until
from tests.intake.waiting import token_of, waiting
from tidewheel.clock import monotonic_seconds
from tidewheel.control.api import authorization, key_check, request_input, run_events, workers
from tidewheel.control.console.urls import PATHS
from tidewheel.testing.databases import Template

LOCKS: LiteralString = """
SELECT coalesce(max(extract(epoch FROM clock_timestamp() - state_change)), 0)::float
  FROM pg_stat_activity
 WHERE datname = current_database() AND application_name = 'tidewheel-api' AND wait_event_type = 'Lock'
"""
WAITS_SINCE: LiteralString = """
SELECT max(query_start)
  FROM pg_stat_activity
 WHERE datname = current_database() AND application_name = 'tidewheel-api' AND wait_event_type = 'Lock'
"""
# Claims wait for either, by the lock of this release or of the one before.
BLOCKS_CLAIMS: LiteralString = """
SELECT EXISTS (
    SELECT FROM pg_locks JOIN pg_stat_activity USING (pid)
     WHERE datname = current_database() AND application_name = 'tidewheel-api'
       AND (locktype = 'advisory' AND mode = 'ExclusiveLock'
            OR locktype = 'relation' AND mode = 'ShareRowExclusiveLock'))
"""
TABLES: LiteralString = """
SELECT string_agg(format('%I.%I', n.nspname, c.relname), ', ')
  FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
 WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND c.relname <> 'test_clock'
   AND n.nspname NOT LIKE 'pg\\_%' AND n.nspname <> 'information_schema'
"""


@pytest.fixture
def door(database: Database) -> Iterator[ApiClient]:
    """An API with jobs of two tenants; its client shows no key."""
    database.execute("INSERT INTO tenants (tenant) VALUES ('acme')")
    for tenant in ("default", "acme"):
        database.apply_batch(submission() | {"tenant": tenant})
    with answering(database, token=TOKEN, api_connections_per_address=500) as client:
        del client.headers["Authorization"]
        yield client


def job_of(key: str) -> object:
    """Return a job as REST has it."""
    return submission(key)["job"]


def triggered(door: httpx.Client, key: str, **headers: str) -> httpx.Response:
    return door.post("/api/v1/jobs/job:trigger", json={}, headers=with_key(key) | headers)


def one_more(door: ApiClient, key: str) -> HTTPStatus:
    """Return the status of a trigger by a client that waits for three seconds at most."""
    with httpx.Client(base_url=door.base_url, timeout=3.0, trust_env=False, verify=NO_ROOTS) as own:
        try:
            return HTTPStatus(triggered(own, key).status_code)
        except httpx.ReadTimeout:
            return HTTPStatus.GATEWAY_TIMEOUT


@pytest.mark.landing
@pytest.mark.parametrize("held", ["request id", "job"])
def test_wait_for_a_lock_holds_no_thread_that_others_need(
    door: ApiClient, held: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "_PARKED_SECONDS", 2.0)
    database, own = door.database, created(door.database)
    other = created(database, tenant="acme", rate=10_000)
    assert one_more(door, other) == HTTPStatus.CREATED
    with database.transaction() as holder, ThreadPoolExecutor(8) as threads:
        if held == "job":
            holder.execute("SELECT FROM jobs WHERE tenant = 'default' FOR UPDATE")
            asked = [threads.submit(door.delete, "/api/v1/jobs/job", headers=with_key(own)) for _ in range(8)]
        else:
            tidewheel.enqueue(holder, "job", request_id="R")
            asked = [threads.submit(triggered, door, own, **{"Idempotency-Key": "R"}) for _ in range(8)]
        until(lambda: database.value(LOCKS), "a request has met the lock")
        while not any(each.done() for each in asked):
            assert one_more(door, other) == HTTPStatus.CREATED
        for each in asked:
            answer = each.result()
            assert refusal(answer, HTTPStatus.SERVICE_UNAVAILABLE)["code"] == "busy"
            assert answer.headers["retry-after"] == "1"


def test_request_that_met_a_lock_is_answered_once_the_lock_is_free(door: ApiClient) -> None:
    key = created(door.database)
    with door.database.transaction() as holder, ThreadPoolExecutor(1) as threads:
        run_id = tidewheel.enqueue(holder, "job", request_id="R")
        asked = threads.submit(triggered, door, key, **{"Idempotency-Key": "R"})
        until(lambda: door.database.value(LOCKS), "the request has met the lock")
        holder.execute("COMMIT")
        assert asked.result().json()["run_id"] == str(run_id)


def test_change_of_a_backfill_waits_for_a_batch_of_its_runs(door: ApiClient) -> None:
    database, key = door.database, created(door.database)
    database.apply_batch(submission("hourly", schedule={"cron": "0 * * * *"}))
    past = {"from": "2026-01-01T00:00:00Z", "to": "2026-01-02T00:00:00Z", "versions": "current"}
    path = door.post("/api/v1/jobs/hourly:backfill", json=past, headers=with_key(key)).headers["location"]
    with database.transaction() as holder, ThreadPoolExecutor(1) as threads:
        holder.execute("SELECT FROM backfills FOR UPDATE")
        paused = threads.submit(door.post, f"{path}:pause", json={}, headers=with_key(key))
        until(lambda: database.value(WAITS_SINCE), "the request has met the lock")
        first = database.value(WAITS_SINCE) or datetime.min.replace(tzinfo=UTC)
        until(lambda: (database.value(WAITS_SINCE) or first) > first or paused.done(), "it is repeated")
        holder.execute("COMMIT")
        assert answer_of(paused.result())["status"] == "paused"


@pytest.mark.slow
def test_no_thread_waits_for_a_lock_longer_than_a_second(
    clocked_template: Template, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Call each route, open each page and send its form, while another session has locked each table.

    Each of them meets a lock: the API refuses none before its first statement.
    """
    monkeypatch.setattr(workers, "_PARKED_SECONDS", 0.0, raising=False)
    database = ClockedDatabase(clocked_template.copy(), clocked_template.installation)
    ids = seed(database)
    waits, key = waiting(database, "never"), created(database)
    with answering(database, api_connections_per_address=500) as client, ThreadPoolExecutor(24) as threads:
        calls = {**_routes(client, waits.run_id, token_of(database, waits), key), **_pages(client, ids, key)}
        with database.transaction() as holder:
            holder.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
            holder.execute("LOCK TABLE " + database.value(TABLES))
            asked = {name: threads.submit(call) for name, call in calls.items()}
            longest = 0.0
            while longest < 1.0 and not all(each.done() for each in asked.values()):
                longest = max(longest, database.value(LOCKS))
        answers = {name: each.result() for name, each in asked.items()}
    database.close()
    assert 0 < longest < 1.0
    assert HTTPStatus.INTERNAL_SERVER_ERROR not in answers.values()
    met = {HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.METHOD_NOT_ALLOWED}  # some pages have no form, some forms no page
    assert {name for name, status in answers.items() if status not in met} <= _READ_NO_TABLE


Call: TypeAlias = Callable[[], int]
_READ_NO_TABLE = {
    "get /healthz", "get /readyz", "get /api/v1/openapi.json", "get /api/v1/doctor", "post /api/v1/doctor:run",
    "open job_new", "open sign_in", "send sign_out", "send theme",
}  # fmt: skip


def _routes(client: ApiClient, run_id: UUID, token: str, key: str) -> dict[str, Call]:
    """Return a call of each route of REST, with the example of its body."""
    named = {**IN_PATH, "key": "hourly", "run_id": str(run_id), "executor_id": enter(client).executor_id}
    paths = answer_of(client.get("/api/v1/openapi.json"))["paths"]

    def ask(method: str, path: str) -> int:
        at = re.sub(r"\{(\w+)\}", lambda found: named.get(found[1]) or str(uuid4()), path)
        schema = paths[path][method].get("requestBody", {}).get("content", {}).get("application/json", {})
        body, headers = schema.get("example", {}), with_key(key) if path == "/api/v1/keys" else {}
        if re.search("/runs/[^/]*:(complete|heart)", path):
            body, headers = {**body, "token": token}, {}
        at += QUERIES.get(path, ("",))[0] if method == "get" else ""
        with client.stream(method, at, json=body, headers=headers) as answer:
            return answer.status_code

    return {f"{method} {path}": partial(ask, method, path) for path, methods in paths.items() for method in methods}


def _pages(client: ApiClient, ids: Ids, key: str) -> dict[str, Call]:
    """Return calls that open each page of the console, and that send what its form has."""
    named = {**IN_PATH, **ids, "ref": "hourly", "run_id": ids["running"], "root_run_id": ids["workflow"]}
    named |= {"kind": "redrive", "id": ids["redrive"], "number": ids["run_letter"], "key_id": "bbbbbbbbbb"}
    sent = fields_of(client.get("/", headers=HTML)) | {"key": key}
    calls: dict[str, Call] = {}
    for name, path in PATHS.items():
        if name in {"api", "live", "static"}:
            continue
        at = path.format_map(named | {"name": "holidays" if "calendar" in name else "acme"})
        at += PAGE_QUERIES.get(name, ("",))[0].format_map(named)
        page = client.get(at, headers=HTML)
        form = sent | (typed_in(page, None) if "<form" in page.text else {})
        form |= {**typed_in(page), "do": "save"} if 'id="spec"' in page.text else {}
        calls[f"open {name}"] = partial(_status_of, client, "GET", at)
        calls[f"send {name}"] = partial(_status_of, client, "POST", at, form)
    return calls


def _status_of(client: ApiClient, method: str, path: str, form: Mapping[str, str] | None = None) -> int:
    return client.request(method, path, data=form, headers=HTML).status_code


def test_bulk_of_500_jobs_costs_its_key_500_requests(door: ApiClient) -> None:
    key, other = created(door.database, rate=10), created(door.database, rate=10)
    jobs = [job_of(f"bulk-{number}") for number in range(500)]
    answer_of(door.post("/api/v1/jobs:bulk", json={"jobs": jobs}, headers=with_key(key)))
    refused = door.get("/api/v1/jobs", headers=with_key(key))
    assert refusal(refused, HTTPStatus.TOO_MANY_REQUESTS)["code"] == "rate_limited"
    assert door.get("/api/v1/jobs", headers=with_key(other)).status_code == HTTPStatus.OK


def test_bulk_of_500_jobs_costs_its_tenant_500_requests(door: ApiClient) -> None:
    door.database.client.tenants.limit("acme", key_rate=10)
    key, other = (with_key(created(door.database, tenant="acme", rate=10)) for _ in range(2))
    jobs = [job_of(f"bulk-{number}") for number in range(500)]
    answer_of(door.post("/api/v1/jobs:bulk", json={"jobs": jobs}, headers=key))
    refused = refusal(door.get("/api/v1/jobs", headers=other), HTTPStatus.TOO_MANY_REQUESTS)
    assert "the API keys of tenant acme have sent too many" in refused["detail"]


@pytest.mark.landing
@pytest.mark.parametrize("call", ["heartbeat", "register"])
def test_executors_of_a_tenant_fill_no_queue_for_those_of_others(database: Database, call: str) -> None:
    """A key may register a thousand executors: each of its requests is of another one."""
    database.execute("INSERT INTO tenants (tenant) VALUES ('acme')")
    over = Event()
    with answering(database, token=TOKEN, api_threads=1) as door, ExitStack() as stack:

        def client_of(tenant: str) -> httpx.Client:
            headers = with_key(created(database, "execute", tenant=tenant, rate=10_000))
            own = httpx.Client(base_url=door.base_url, timeout=60, trust_env=False, verify=NO_ROOTS, headers=headers)
            return stack.enter_context(own)

        def flood(executor: Executor) -> None:
            while not over.is_set():
                if executor.ask("heartbeat").status_code != HTTPStatus.OK:
                    over.wait(0.01)

        greedy = [client_of("default"), client_of("default")]
        beats = [enter(greedy[number % 2]) for number in range(36)]
        own = client_of("acme")
        executor = enter(own)
        with ThreadPoolExecutor(36) as threads:
            asked = [threads.submit(flood, each) for each in beats]
            try:
                for _ in range(40):
                    if call == "heartbeat":
                        assert executor.heartbeat() == []
                    else:
                        enter(own)
            finally:
                over.set()
            assert [each.result() for each in asked] == [None] * 36


@pytest.mark.landing
def test_queue_that_one_tenant_has_filled_takes_the_requests_of_others(door: ApiClient) -> None:
    greedy = [created(door.database, "read") for _ in range(5)]
    other = created(door.database, "read", tenant="acme")
    path = "/api/v1/jobs"
    with door.database.transaction() as holder, ThreadPoolExecutor(160) as threads:
        holder.execute("LOCK TABLE jobs IN ACCESS EXCLUSIVE MODE")
        asked = [threads.submit(door.get, path, headers=with_key(greedy[number % 5])) for number in range(150)]
        until(lambda: any(each.done() for each in asked), "the queue is full")
        with (
            httpx.Client(base_url=door.base_url, timeout=1.0, trust_env=False, verify=NO_ROOTS) as own,
            pytest.raises(httpx.ReadTimeout),  # it waits, and is not refused
        ):
            own.get(path, headers=with_key(other))
        holder.rollback()
        assert door.get(path, headers=with_key(other)).status_code == HTTPStatus.OK
        assert {each.result().status_code for each in asked} >= {HTTPStatus.OK, HTTPStatus.SERVICE_UNAVAILABLE}


def test_streams_of_a_key_and_of_a_tenant_leave_half_to_others(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.execute("INSERT INTO tenants (tenant) VALUES ('acme')")
    monkeypatch.setattr(run_events, "_STREAMS", 8)
    monkeypatch.setattr(run_events, "_OF_KEY", 2, raising=False)
    with answering(database, token=TOKEN) as client, ExitStack() as held:

        def opened(key: str) -> list[int]:
            """The statuses of three more streams of a key."""
            made = [client.stream("GET", "/api/v1/run-events", headers=with_key(key)) for _ in range(3)]
            return [held.enter_context(each).status_code for each in made]

        statuses = [status for _ in range(3) for status in opened(created(database))]
        assert opened(created(database, tenant="acme"))[0] == HTTPStatus.OK
        assert statuses == [200, 200, 503, 200, 200, 503, 503, 503, 503]


@pytest.mark.landing
def test_strangers_keep_out_neither_static_files_nor_sign_in_nor_tokens_in_bodies(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.submit()
    started = waiting(database)
    token = token_of(database, started)
    monkeypatch.setattr(authorization, "_TURN_SECONDS", 3600.0)
    with answering(database, token=TOKEN, api_connections_per_address=500) as client, ExitStack() as held:
        file = re.search(r'"(/static/[^"]+)"', client.get("/sign-in").text)
        assert file is not None
        for _ in range(120):
            waits = held.enter_context(socket.create_connection(("127.0.0.1", client.base_url.port or 0), timeout=60))
            waits.sendall(b"GET /api/v1/schemas/0101010101010101 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        without = {"Authorization": ""}

        def is_full() -> bool:
            with httpx.Client(base_url=client.base_url, timeout=1.0, trust_env=False, verify=NO_ROOTS) as own:
                try:
                    return own.get("/api/v1/schemas/0101010101010101").status_code == HTTPStatus.SERVICE_UNAVAILABLE
                except httpx.ReadTimeout:
                    return False

        until(is_full, "the queue of strangers is full")
        beat = client.post(f"/api/v1/runs/{started.run_id}:heartbeat", json={"token": token}, headers=without)
        assert answer_of(beat)["run_status"] == "waiting"
        assert client.get(file[1], headers=without).status_code == HTTPStatus.OK


def test_strangers_keep_nobody_out_of_sign_in(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(authorization, "_TURN_SECONDS", 3600.0)
    with answering(database, token=TOKEN) as client:
        without = {"Authorization": "", "Accept": "text/html"}
        client.get("/api/v1/schemas/0101010101010101", headers=without)  # takes the one turn of the hour
        assert client.get("/sign-in", headers=without).status_code == HTTPStatus.OK


@pytest.mark.landing
def test_strangers_behind_a_trusted_proxy_take_turns_by_their_addresses(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authorization, "_TURN_SECONDS", 0.2)
    with (
        answering(database, token=TOKEN, api_trusted_proxies="127.0.0.0/8") as client,
        ThreadPoolExecutor(60) as threads,
    ):
        path, done = "/api/v1/schemas/c301", list[str]()

        def ask(address: str) -> None:
            client.get(path, headers={"Authorization": "", "X-Forwarded-For": address})
            done.append(address)

        asked = [threads.submit(ask, "192.0.2.1") for _ in range(30)]
        until(lambda: len(done) >= 2, "turns are taken")
        before = len(done)
        asked.append(threads.submit(ask, "192.0.2.2"))
        until(lambda: "192.0.2.2" in done, "the other address has its turn")
        assert done.index("192.0.2.2") < before + 13  # further ones follow until this thread looks
        assert [each.result() for each in asked]


def test_form_that_does_not_come_is_refused(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_input, "_SECONDS", 0.2)
    head = "POST /sign-in HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 100\r\n"
    head += "Content-Type: application/x-www-form-urlencoded\r\n\r\nkey="
    with (
        answering(database, token=TOKEN) as client,
        socket.create_connection(("127.0.0.1", client.base_url.port or 0), timeout=20) as slow,
    ):
        slow.sendall(head.encode())
        assert slow.recv(100).startswith(b"HTTP/1.1 408 ")


@pytest.mark.landing
def test_cancellations_of_a_tenant_leave_most_of_the_time_to_claims(door: ApiClient) -> None:
    keys = [created(door.database, rate=10_000) for _ in range(3)]
    over = Event()

    def cancel(key: str) -> None:
        while not over.is_set():
            with httpx.Client(base_url=door.base_url, timeout=60, trust_env=False, verify=NO_ROOTS) as own:
                own.post("/api/v1/runs:cancel", json={"key": "job"}, headers=with_key(key))

    with ThreadPoolExecutor(12) as threads:
        asked = [threads.submit(cancel, keys[number % 3]) for number in range(12)]
        try:
            until(lambda: door.database.count("cancellations") > 10, "runs are cancelled")
            blocked = [bool(door.database.value(BLOCKS_CLAIMS)) for _ in range(500)]
        finally:
            over.set()
        assert [each.result() for each in asked] == [None] * 12
    assert 0 < sum(blocked) < 200


@pytest.mark.landing
def test_time_before_claims_are_blocked_keeps_no_freeze_waiting(
    door: ApiClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The jobs of a freeze by labels are written first: claims go on, so they need no rest."""
    monkeypatch.setattr(workers, "_REST", 100)
    door.database.execute("CREATE FUNCTION wait() RETURNS trigger AS 'BEGIN PERFORM pg_sleep(1); RETURN NULL; END'"
                          " LANGUAGE plpgsql")  # fmt: skip
    door.database.execute("CREATE TRIGGER wait BEFORE INSERT ON frozen_jobs EXECUTE FUNCTION wait()")
    key = with_key(created(door.database))
    with httpx.Client(base_url=door.base_url, timeout=60, trust_env=False, verify=NO_ROOTS, headers=key) as client:
        answer_of(client.post("/api/v1/freezes", json={"key_prefix": "j"}))
        since = monotonic_seconds()
        answer_of(client.post("/api/v1/freezes", json={"queue": "reports"}))
        assert monotonic_seconds() - since < 50
    door.database.execute("DROP FUNCTION wait CASCADE")


def test_forgotten_keys_are_those_of_the_tenant_that_has_most(door: ApiClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(key_check, "_KEPT", 4)
    monkeypatch.setattr(key_check, "_FRESH_SECONDS", 3600.0)
    other = created(door.database, "read", tenant="acme", rate=0.001)
    assert door.get("/api/v1/jobs", headers=with_key(other)).status_code == HTTPStatus.OK
    for _ in range(8):
        assert door.get("/api/v1/jobs", headers=with_key(created(door.database, "read"))).status_code == HTTPStatus.OK
    assert door.get("/api/v1/jobs", headers=with_key(other)).status_code == HTTPStatus.TOO_MANY_REQUESTS
