"""API keys over HTTP: scopes, tenants, revocation, rates; and what they cannot take from executors."""

import re
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from datetime import timedelta
from http import HTTPStatus
from typing import Any
from uuid import uuid4

import httpx
import pytest

from tests.control.api.answering import ApiClient, answer_of, answering, enter, every_page, refusal, refused_fields
from tests.control.console.pages import fields_of
from tests.fixtures.database import Database
from tests.fixtures.services import until
from tidewheel.api_keys import Scope, new_key
from tidewheel.clock import monotonic_seconds
from tidewheel.control.api import connections, key_check, request_input
from tidewheel.control.client.client import Client
from tidewheel.nouns.audit_log import operations

TOKEN = "correct-horse-battery"
BEATS = 50
IDLE = 1000


@pytest.fixture
def door(database: Database) -> Iterator[ApiClient]:
    """An API whose jobs need a key; its client shows none."""
    with answering(database, token=TOKEN, api_connections_per_address=500) as client:
        del client.headers["Authorization"]
        yield client


def created(database: Database, *scopes: str, tenant: str = "default", **about: Any) -> str:  # noqa: ANN401 - as of `create`
    """Create a key; return it."""
    with Client(database.url, tenant=tenant) as client:
        return client.api_keys.create("ops", scopes or tuple(Scope), **about).key


def with_key(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def add_tenant(database: Database, name: str) -> None:
    database.execute("INSERT INTO tenants (tenant) VALUES (%s)", [name])


def test_every_route_of_jobs_needs_the_scope_that_its_documentation_names(door: ApiClient) -> None:
    database = door.database
    keys = {scope: created(database, *(each for each in Scope if each not in {scope, Scope.ADMIN})) for scope in Scope}
    document = answer_of(door.get("/api/v1/openapi.json", headers=with_key(keys[Scope.ADMIN])))
    tried = 0
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            scope = operation.get("x-tidewheel-scope")
            if scope is None or path.endswith("openapi.json"):
                continue
            at = path.replace("{key}", "a").replace("{key_id}", "0123456789")
            at = re.sub(r"\{\w+_id(:uuid)?\}", str(uuid4()), at).replace("{number}", "1")
            refusal(door.request(method, at), HTTPStatus.UNAUTHORIZED)
            told = refusal(door.request(method, at, headers=with_key(keys[Scope(scope)])), HTTPStatus.FORBIDDEN)
            assert f"the scope {scope}" in told["detail"], (method, path)
            tried += 1
    assert tried > 30


def test_tenant_of_others_is_answered_as_one_that_does_not_exist(door: ApiClient) -> None:
    add_tenant(door.database, "acme")
    acme = with_key(created(door.database, tenant="acme"))
    door.database.submit("of-default")
    assert answer_of(door.get("/api/v1/jobs", headers=acme))["jobs"] == []  # its own tenant, without naming it
    others = [door.get(f"/api/v1/jobs?tenant={name}", headers=acme) for name in ("default", "nowhere")]
    told = [refusal(answer, HTTPStatus.NOT_FOUND)["detail"] for answer in others]
    assert told == ["there is no tenant 'default'", "there is no tenant 'nowhere'"]
    refusal(door.get("/api/v1/jobs/of-default", headers=acme), HTTPStatus.NOT_FOUND)
    for path in ("/api/v1/keys?all_tenants=true", "/api/v1/audit-log?all_tenants=true"):
        refusal(door.get(path, headers=acme), HTTPStatus.FORBIDDEN)
    for path in ("/api/v1/tenants", "/api/v1/status", "/api/v1/executors", "/api/v1/shards"):
        refusal(door.get(path, headers=acme), HTTPStatus.FORBIDDEN)
    refusal(door.post("/api/v1/freezes", json={"scope": "fleet"}, headers=acme), HTTPStatus.FORBIDDEN)
    fleet = with_key(created(door.database, all_tenants=True))
    assert door.post("/api/v1/freezes", json={"scope": "fleet"}, headers=fleet).status_code == HTTPStatus.OK
    door.database.trigger("of-default")
    counts = [answer_of(door.get("/api/v1/freezes", headers=key))["freezes"][0]["waiting"] for key in (fleet, acme)]
    assert counts == [1, 0], "a tenant's key sees no runs of others, nor their number"
    [entry] = answer_of(door.get("/api/v1/audit-log?all_tenants=true&action=freeze", headers=fleet))["entries"]
    assert entry["tenant"] == "*"
    assert answer_of(door.get("/api/v1/audit-log?action=freeze", headers=acme))["entries"] == []
    theirs = created(door.database)[3:13]
    refusal(door.post(f"/api/v1/keys/{theirs}:revoke", headers=acme), HTTPStatus.NOT_FOUND)
    body = {"name": "n", "scopes": ["read"], "all_tenants": True}
    refusal(door.post("/api/v1/keys", json=body, headers=acme), HTTPStatus.FORBIDDEN)


def test_revoked_key_opens_nothing_a_second_later_and_is_named(door: ApiClient) -> None:
    admin, made = created(door.database, "admin"), created(door.database, "read")
    assert door.get("/api/v1/jobs", headers=with_key(made)).status_code == HTTPStatus.OK
    key_id = made[3:13]
    path = f"/api/v1/keys/{key_id}:revoke"
    assert answer_of(door.post(path, headers=with_key(admin))) == {"key_id": key_id, "unchanged": False}
    since = monotonic_seconds()
    until(lambda: door.get("/api/v1/jobs", headers=with_key(made)).status_code == 401, "the revocation acts")
    assert key_check._FRESH_SECONDS == 1  # pyright: ignore[reportPrivateUsage]
    assert monotonic_seconds() - since < 10, "a busy machine included"
    told = refusal(door.get("/api/v1/jobs", headers=with_key(made)), HTTPStatus.UNAUTHORIZED)
    assert told["detail"] == f"the API key {key_id} was revoked; use another one"
    assert answer_of(door.post(path, headers=with_key(admin))) == {"key_id": key_id, "unchanged": True}


def test_stream_ends_when_its_key_is_revoked(door: ApiClient) -> None:
    key = created(door.database, "read")
    with door.stream("GET", "/api/v1/run-events", headers=with_key(key)) as stream:
        lines = stream.iter_lines()
        assert next(lines).startswith("retry:")
        door.database.client.api_keys.revoke(key[3:13])
        assert [line for line in lines if line] == []


def test_expired_unknown_and_mistyped_keys_are_refused(door: ApiClient) -> None:
    expired = created(door.database, "read", lifetime=timedelta(days=1))
    door.database.execute("UPDATE api_keys SET expires_at = tidewheel_now()")
    made = created(door.database, "read")
    wrong_secret = new_key()
    cases = {
        expired: "has expired",
        new_key().text: "there is no such API key",
        type(wrong_secret)(made[3:13], wrong_secret.secret).text: "there is no such API key",
        made[:-1] + ("0" if made[-1] != "0" else "1"): "mistyped",
        made[:-9]: "mistyped",
    }
    for key, detail in cases.items():
        assert detail in refusal(door.get("/api/v1/jobs", headers=with_key(key)), HTTPStatus.UNAUTHORIZED)["detail"]
    assert door.get("/api/v1/jobs", headers=with_key(made)).status_code == HTTPStatus.OK


def test_token_of_executors_and_keys_open_no_call_of_each_other(door: ApiClient) -> None:
    key = created(door.database, "admin")
    for path in ("/api/v1/jobs", "/api/v1/keys"):
        refused = refusal(door.get(path, headers=with_key(TOKEN)), HTTPStatus.FORBIDDEN)
        assert "tidewheel admin api-key create" in refused["detail"]
    body = {"name": "here:1", "handlers": ["a"], "slots": 1}
    refusal(door.post("/api/v1/executors", json=body, headers=with_key(key)), HTTPStatus.FORBIDDEN)


def test_database_has_no_secret_of_a_key_and_one_last_use_a_minute(door: ApiClient) -> None:
    key = created(door.database, "read")
    [row] = door.database.rows("SELECT api_keys::text, last_used_at FROM api_keys")
    assert key[14:57] not in row[0]
    assert row[1] is None
    for _ in range(3):
        assert door.get("/api/v1/jobs", headers=with_key(key)).status_code == HTTPStatus.OK
    used = door.database.value("SELECT last_used_at FROM api_keys")
    assert used is not None
    with answering(door.database, token=TOKEN) as another:  # a process that reads the key again
        assert another.get("/api/v1/jobs", headers=with_key(key)).status_code == HTTPStatus.OK
    assert door.database.value("SELECT last_used_at FROM api_keys") == used


def test_key_beyond_its_rate_gets_429_with_retry_after(door: ApiClient) -> None:
    slow, other = created(door.database, "read", rate=0.5), created(door.database, "read")
    assert door.get("/api/v1/jobs", headers=with_key(slow)).status_code == HTTPStatus.OK
    refused = door.get("/api/v1/jobs", headers=with_key(slow))
    assert refusal(refused, HTTPStatus.TOO_MANY_REQUESTS)["code"] == "rate_limited"
    assert 1 <= int(refused.headers["retry-after"]) <= 2
    assert door.get("/api/v1/jobs", headers=with_key(other)).status_code == HTTPStatus.OK


def test_requests_of_one_key_leave_places_to_others(door: ApiClient) -> None:
    greedy, other = created(door.database, "read", rate=10_000), created(door.database, "read")
    with door.database.transaction() as held, ThreadPoolExecutor(50) as threads:
        held.execute("LOCK TABLE jobs IN ACCESS EXCLUSIVE MODE")
        asked = [threads.submit(door.get, "/api/v1/jobs", headers=with_key(greedy)) for _ in range(46)]
        until(
            lambda: HTTPStatus.TOO_MANY_REQUESTS in {each.result().status_code for each in asked if each.done()},
            "what is beyond its places is refused",  # the lock makes others busy
        )
        waits = threads.submit(door.get, "/api/v1/jobs", headers=with_key(other))
        held.rollback()
        assert waits.result().status_code == HTTPStatus.OK
    assert {each.result().status_code for each in asked} >= {HTTPStatus.OK, HTTPStatus.TOO_MANY_REQUESTS}


def test_bodies_of_one_key_leave_memory_to_others(door: ApiClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(request_input.ALLOWANCES, "keys", 40_000)
    greedy, other = created(door.database), created(door.database)
    head = f"POST /api/v1/jobs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {greedy}\r\nContent-Length: 9000\r\n\r\n"
    with socket.create_connection((door.base_url.host, door.base_url.port or 0), timeout=60) as slow:
        slow.sendall(head.encode() + b" " * 8000)

        def answered(key: str) -> int:
            return door.post("/api/v1/jobs", content=b"{" + b" " * 11_000, headers=with_key(key)).status_code

        until(lambda: answered(greedy) == HTTPStatus.SERVICE_UNAVAILABLE, "the rest of its bodies is refused")
        assert answered(other) == HTTPStatus.UNSUPPORTED_MEDIA_TYPE


@pytest.mark.landing
def test_long_answer_to_a_key_is_not_cut_as_a_strangers_is(door: ApiClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_REQUEST_SECONDS", 2.0)  # a busy machine may take some of it to read the key
    key = created(door.database, "read")
    with door.database.transaction() as held, ThreadPoolExecutor(1) as threads:
        held.execute("LOCK TABLE jobs IN ACCESS EXCLUSIVE MODE")
        asked = threads.submit(door.get, "/api/v1/jobs", headers=with_key(key))
        held.execute("SELECT pg_sleep(2.5)")
        held.rollback()
        assert asked.result().status_code == HTTPStatus.OK


def test_refused_field_of_a_new_key_is_named(door: ApiClient) -> None:
    admin = with_key(created(door.database, "admin"))
    wrong: dict[str, dict[str, object]] = {
        "name": {"name": ""},
        "scopes": {"scopes": []},
        "scopes.0": {"scopes": ["reed"]},
        "lifetime": {"lifetime": "-1d"},
        "rate": {"rate": 0},
        "expires": {"expires": "1d"},
    }
    for path, fields in wrong.items():
        refused = door.post("/api/v1/keys", json={"name": "n", "scopes": ["read"], **fields}, headers=admin)
        assert refused_fields(refused) == [path]


def test_changes_by_a_key_are_listed_with_the_person_that_it_names(door: ApiClient) -> None:
    admin = created(door.database, "admin")
    headers = {**with_key(admin), "Tidewheel-Actor": "anna"}
    spec = {"key": "a", "schedule": "manual", "target": "send-email"}
    assert door.post("/api/v1/jobs", json=spec, headers=headers).status_code == HTTPStatus.CREATED
    assert door.post("/api/v1/jobs", json=spec, headers=headers).status_code == HTTPStatus.OK  # unchanged
    assert door.post("/api/v1/jobs/a:trigger", headers=headers).status_code == HTTPStatus.CREATED
    refusal(door.post("/api/v1/jobs/none:pause", headers=headers), HTTPStatus.NOT_FOUND)
    page = answer_of(door.get("/api/v1/audit-log?door=rest", headers=headers))
    assert [(each["action"], each["object"], each["result"]) for each in page["entries"]] == [
        ("job.pause", "job/none", "unknown_job"),
        ("job.submit", "job/a", "accepted"),
    ]
    entry = page["entries"][1]
    assert (entry["actor_kind"], entry["actor"], entry["named"], entry["verified"]) == ("key", "ops", "anna", True)
    assert (entry["key_id"], entry["version_before"], entry["version_after"]) == (admin[3:13], None, 1)


def test_audit_log_pages_by_time_tenant_actor_and_object(door: ApiClient) -> None:
    for number in range(5):
        door.database.submit(f"job-{number}")
    door.database.submit("job-0", payload=1)
    door.headers.update(with_key(created(door.database, "admin")))

    def objects(**query: str | int) -> list[str]:
        pages = every_page(door, "/api/v1/audit-log", limit=2, **query)
        return [each["object"] for page in pages for each in page["entries"]]

    every = objects(action="job.submit")
    assert every == ["job/job-0", *(f"job/job-{number}" for number in (4, 3, 2, 1, 0))]
    assert objects(object="job/job-0") == ["job/job-0"] * 2
    assert objects(actor="nobody-here") == []
    assert objects(since="2999-01-01T00:00:00Z") == []
    assert len(objects(until="2999-01-01T00:00:00Z")) == 7
    refusal(door.get("/api/v1/audit-log?cursor=x"))


def test_page_of_the_audit_log_that_looked_at_its_share_goes_on(
    door: ApiClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operations, "MAX_LOOK", 3)
    for number in range(8):
        door.database.submit(f"job-{number}")
    door.headers.update(with_key(created(door.database, "admin")))
    pages = [page["entries"] for page in every_page(door, "/api/v1/audit-log", action="key.create")]
    assert ([each["action"] for page in pages for each in page], len(pages)) == (["key.create"], 4)


@pytest.mark.slow
def test_thousand_idle_connections_with_a_key_do_not_slow_down_beats(door: ApiClient) -> None:
    """Half of them were answered, so that they count as the key's: none is in progress."""
    key = created(door.database, "read", rate=10_000)
    head = f"GET /api/v1/none HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {key}\r\n\r\n".encode()
    address = (door.base_url.host, door.base_url.port or 0)
    executors = {"base_url": str(door.base_url), "headers": with_key(TOKEN), "trust_env": False}
    with httpx.Client(**executors) as own, ExitStack() as held:  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
        executor = enter(own)
        for number in range(IDLE):
            one = held.enter_context(socket.create_connection(address, timeout=10))
            if number % 2:
                one.sendall(head)
                assert one.recv(65536).startswith(b"HTTP/1.1 404 ")
        took: list[float] = []
        for _ in range(BEATS):
            since = monotonic_seconds()
            assert executor.heartbeat() == []
            took.append(monotonic_seconds() - since)
        assert sorted(took)[BEATS // 2] < 0.1  # of a heartbeat each second
        with httpx.Client(**executors) as another:  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
            assert enter(another).heartbeat() == []
        assert door.get("/api/v1/jobs", headers=with_key(key)).status_code == HTTPStatus.OK


def test_admin_key_of_a_tenant_makes_no_more_keys_and_no_faster_ones_than_operators_allow(door: ApiClient) -> None:
    """A tenant gave itself a rate of 1,000,000, and 60 keys: issue 39, N11."""
    add_tenant(door.database, "acme")
    admin = with_key(created(door.database, "admin", tenant="acme"))

    def make(**about: object) -> httpx.Response:
        return door.post("/api/v1/keys", json={"name": "n", "scopes": ["read"], **about}, headers=admin)

    [error] = refusal(make(rate=1_000_000))["errors"]
    assert (error["path"], "tidewheel admin tenant limits acme --key-rate N" in error["remedy"]) == ("rate", True)
    assert make(rate=100).status_code == HTTPStatus.CREATED
    door.database.client.tenants.limit("acme", keys=5, key_rate=500)
    assert make(rate=500).status_code == HTTPStatus.CREATED
    with ThreadPoolExecutor(8) as threads:
        answers = [sent.result().status_code for sent in [threads.submit(make) for _ in range(8)]]
    assert answers.count(HTTPStatus.CREATED) == 2, "five with its own"
    [error] = refusal(make())["errors"]
    assert error["path"] == "keys"
    with Client(door.database.url, tenant="acme") as operator:
        operator.api_keys.create("of an operator", ["read"], rate=1000)


def test_keys_of_a_tenant_share_its_rate(door: ApiClient) -> None:
    add_tenant(door.database, "acme")
    door.database.client.tenants.limit("acme", key_rate=0.5)
    keys = [with_key(created(door.database, "read", tenant="acme")) for _ in range(3)]
    answers = [door.get("/api/v1/jobs", headers=key) for key in keys]
    assert [answer.status_code for answer in answers] == [200, 429, 429]
    assert "the API keys of tenant acme have sent too many" in answers[1].json()["detail"]
    others = with_key(created(door.database, "read"))
    assert door.get("/api/v1/jobs", headers=others).status_code == HTTPStatus.OK


def test_key_expires_after_a_year_unless_its_maker_says_otherwise(door: ApiClient) -> None:
    admin = with_key(created(door.database, "admin"))
    abouts: tuple[dict[str, object], ...] = ({}, {"lifetime": None}, {"lifetime": "90d"})
    for about in abouts:
        made = door.post("/api/v1/keys", json={"name": "n", "scopes": ["read"], **about}, headers=admin)
        assert made.status_code == HTTPStatus.CREATED
    lives = "SELECT extract(day FROM expires_at - created_at)::integer FROM api_keys ORDER BY created_at"
    assert [life for (life,) in door.database.rows(lives)] == [365, 365, None, 90]


def test_caller_without_a_key_makes_none(database: Database) -> None:
    """The key would outlive the open API: issue 39, N5."""
    with answering(database) as client:
        body = {"name": "x", "scopes": ["admin"], "all_tenants": True}
        refused = refusal(client.post("/api/v1/keys", json=body), HTTPStatus.FORBIDDEN)
        assert "tidewheel admin api-key create" in refused["detail"]
        client.headers.update({"Accept": "text/html"})
        page = client.get("/admin/new-key")
        assert "Refused without a sign-in" in page.text
        answer = client.post("/admin/new-key", data=fields_of(page) | {"name": "ci", "read": "yes"})
        assert answer.status_code == HTTPStatus.FORBIDDEN
    assert database.count("api_keys") == 0
