"""Rules of every address of the HTTP API: methods, queries, locations, contents."""

import re
from collections.abc import Iterator
from datetime import timedelta
from http import HTTPStatus
from typing import Any

import httpx
import pytest

from tests.control.api.answering import ApiClient, answer_of, refusal
from tests.fixtures.acts import ending
from tests.fixtures.database import Database
from tidewheel.clock import SystemClock
from tidewheel.runs import RunState

ID = "019d3a1c-7f00-8123-8456-789abcdef012"
IN_PATH = {"{key}": "job", "{number}": "1", "{key_id}": "k3v9x0a1bc"}
HOURLY = {"schedule": {"cron": "0 * * * *"}, "target": "a"}


@pytest.fixture
def client(client: ApiClient) -> ApiClient:
    client.database.submit()
    return client


def operations(client: httpx.Client) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield the method and an address of each documented operation."""
    for path, methods in answer_of(client.get("/api/v1/openapi.json"))["paths"].items():
        for method, operation in methods.items():
            yield method, re.sub(r"\{\w+\}", lambda found: IN_PATH.get(found[0], ID), path), operation


def a_past_day() -> dict[str, object]:
    """Return a request to backfill 24 hours, of which both ends are occurrences."""
    hour = SystemClock().now().replace(minute=0, second=0, microsecond=0)
    first, last = (hour - timedelta(hours=hours) for hours in (48, 24))
    return {"from": first.isoformat(), "to": last.isoformat(), "versions": "current"}


def test_query_parameter_that_is_not_documented_is_refused_with_the_nearest_one(shared_client: ApiClient) -> None:
    client = shared_client
    tried = 0
    for method, path, operation in operations(client):
        makes_key = (method.upper(), path) == ("POST", "/api/v1/keys")  # refused to this client, which has none
        if any(each["in"] == "query" for each in operation["parameters"]) and not makes_key:
            told = refusal(client.request(method, f"{path}?tennant=a"))
            [error] = [each for each in told["errors"] if each["path"] == "tennant"]
            assert error["remedy"] == "did you mean 'tenant'?", (method, path)
            tried += 1
    assert tried > 40


def test_header_that_nothing_would_check_is_refused(client: httpx.Client) -> None:
    tried = 0
    for method, path, operation in operations(client):
        if method == "get" or operation.get("x-tidewheel-scope") in {None, "read"}:
            continue
        known = {each["name"] for each in operation["parameters"] if each["in"] == "header"}
        for name in {"If-Match", "If-None-Match", "Idempotency-Key"} - known:
            told = refusal(client.request(method, path, headers={name: '"1"'}))
            assert (told["errors"][0]["path"], told["errors"][0]["remedy"]) == (name, "leave it out"), path
            tried += 1
        for name in known - {"traceparent"}:
            twice = [(name, "1"), (name, "2")]
            told = refusal(client.request(method, path, headers=twice))
            assert (told["errors"][0]["path"], told["errors"][0]["remedy"]) == (name, "send it once"), path
    assert tried > 30
    assert client.delete("/api/v1/jobs/job", headers={"If-Match": '"1"'}).status_code == HTTPStatus.OK


def test_head_answers_as_get_without_content(client: httpx.Client) -> None:
    tried = 0
    for method, path, _ in operations(client):
        if method == "get":
            head = client.head(path, timeout=60)
            assert (head.content, head.status_code == HTTPStatus.METHOD_NOT_ALLOWED) == (b"", False), path
            tried += 1
    assert tried > 20
    read, head = client.get("/api/v1/jobs/job"), client.head("/api/v1/jobs/job")
    for name in ("etag", "content-type", "content-length"):
        assert head.headers[name] == read.headers[name]
    assert client.head("/api/v1/run-events").headers["content-type"].startswith("text/event-stream")


def test_method_that_an_address_lacks_is_refused_with_those_that_it_has(shared_client: ApiClient) -> None:
    client = shared_client
    for method in ("DELETE", "OPTIONS", "TRACE"):
        answer = client.request(method, "/api/v1/jobs")
        told = refusal(answer, HTTPStatus.METHOD_NOT_ALLOWED)
        assert answer.headers["allow"] == "GET, HEAD, POST"
        assert (told["code"], method in told["detail"]) == ("method_not_allowed", True)
    answer = client.post("/api/v1/jobs/job")
    assert answer.headers["allow"] == "DELETE, GET, HEAD, PATCH, PUT"


@pytest.mark.parametrize("path", ["/docs", "/redoc", "/openapi.json", "/api/v1/jobs/", "/api/v1/job", "/api/v1/runs/1"])
def test_unknown_address_is_refused_without_a_redirect(shared_client: ApiClient, path: str) -> None:
    told = refusal(shared_client.get(path), HTTPStatus.NOT_FOUND)
    assert told["code"] == "not_found"
    assert path in told["detail"]


def test_what_was_created_or_accepted_has_its_location(client: httpx.Client, database: Database) -> None:
    started = database.begun()
    database.end(ending(started, RunState.FAILED, error_type="ValueError", error_message="no"))
    spec, past, created = HOURLY, a_past_day(), HTTPStatus.CREATED
    for answer, status in (
        (client.put("/api/v1/jobs/a%2Fb", json=spec), created),
        (client.post("/api/v1/jobs", json={**spec, "key": "c"}), created),
        (client.post("/api/v1/jobs/c:trigger"), created),
        (client.post("/api/v1/jobs/c:backfill", json=past), HTTPStatus.ACCEPTED),
        (client.post("/api/v1/dead-letters:redrive", json={"all": True}), HTTPStatus.ACCEPTED),
        (client.post(f"/api/v1/runs/{started.run_id}:retry"), created),
    ):
        assert answer.status_code == status, answer.text
        answer_of(client.get(answer.headers["location"]))
    again = client.put("/api/v1/jobs/a%2Fb", json=spec)
    assert (again.status_code, "location" in again.headers) == (HTTPStatus.OK, False)
    counted = client.post("/api/v1/jobs/c:backfill", json={**past, "dry_run": True})
    assert (counted.status_code, "location" in counted.headers) == (HTTPStatus.OK, False)


def test_location_of_another_tenant_names_it(client: httpx.Client, database: Database) -> None:
    database.execute("INSERT INTO tenants (tenant) VALUES ('acme')")
    past = a_past_day()
    for path, body in (("jobs", {**HOURLY, "key": "a/ü"}), ("jobs/a%2F%C3%BC:trigger", {}),
                       ("jobs/a%2F%C3%BC:backfill", past)):  # fmt: skip
        answer = client.post(f"/api/v1/{path}?tenant=acme", json=body)
        assert answer.headers["location"].endswith("?tenant=acme")
        answer_of(client.get(answer.headers["location"]))


def test_compressed_body_is_refused(shared_client: ApiClient) -> None:
    client = shared_client
    headers = {"Content-Encoding": "gzip", "Content-Type": "application/json"}
    answer = client.post("/api/v1/jobs", content=b"\x1f\x8b", headers=headers)
    assert "'gzip'" in refusal(answer, HTTPStatus.UNSUPPORTED_MEDIA_TYPE)["detail"]


def test_pages_of_other_sites_are_granted_nothing(shared_client: ApiClient) -> None:
    client = shared_client
    answer = client.get("/api/v1/jobs", headers={"Origin": "https://evil.example", "Accept-Encoding": "gzip"})
    assert not [name for name in answer.headers if name.startswith("access-control")]
    assert "content-encoding" not in answer.headers
