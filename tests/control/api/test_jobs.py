"""Jobs over HTTP: lists, details, changes with versions, and refusals with paths."""

import socket
from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from tests.control.api.answering import ApiClient, answer_of, answering, enter, every_page, refusal, refused_fields
from tests.fixtures.acts import HANDLER
from tests.fixtures.database import Database
from tidewheel.control.api import request_input
from tidewheel.nouns.jobs import reads

SPEC: dict[str, Any] = {"schedule": "@every 1h", "target": HANDLER}


def keys(answer: httpx.Response) -> list[str]:
    return [job["key"] for job in answer_of(answer)["jobs"]]


def test_created_job_is_read_with_its_version_as_etag(client: httpx.Client) -> None:
    made = client.post("/api/v1/jobs", json={"key": "a", **SPEC})
    assert (made.status_code, made.headers["etag"], made.json()["version"]) == (HTTPStatus.CREATED, '"1"', 1)
    again = client.post("/api/v1/jobs", json={"key": "a", **SPEC})
    assert (again.status_code, again.json()["unchanged"]) == (HTTPStatus.OK, True)
    found = client.get("/api/v1/jobs/a")
    assert (found.headers["etag"], found.json()["job"]["key"]) == ('"1"', "a")
    assert found.json()["summary"]["next_at"] == made.json()["next_run_at"]


def test_list_pages_and_filters(client: httpx.Client, database: Database) -> None:
    for key in ("b-1", "b-3"):
        database.submit(key)
    database.submit("b-2", labels={"team": "billing"})
    database.submit("c", lane="batch")
    first, rest = every_page(client, "/api/v1/jobs", limit=3)
    assert (first["total"], first["at_least"]) == (4, False)
    assert [[job["key"] for job in page["jobs"]] for page in (first, rest)] == [["b-1", "b-2", "b-3"], ["c"]]
    assert keys(client.get("/api/v1/jobs?prefix=b-")) == ["b-1", "b-2", "b-3"]
    assert keys(client.get("/api/v1/jobs?label=team=billing")) == ["b-2"]
    assert keys(client.get("/api/v1/jobs?lane=batch")) == ["c"]
    assert keys(client.get("/api/v1/jobs?queue=other")) == []
    client.post("/api/v1/jobs/b-1:pause")
    assert keys(client.get("/api/v1/jobs?status=paused")) == ["b-1"]
    assert keys(client.get("/api/v1/jobs?status=active")) == ["b-2", "b-3", "c"]


def test_page_that_looked_at_its_share_has_a_cursor_and_goes_on(
    client: httpx.Client, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reads, "LOOKED_AT", 3)
    for number in range(8):
        database.submit(f"j{number}", labels={"rare": "yes"} if number == 7 else {})
    pages = list(every_page(client, "/api/v1/jobs", label="rare=yes"))
    assert {(page["total"], page["at_least"]) for page in pages} == {(0, True)}
    assert [[job["key"] for job in page["jobs"]] for page in pages] == [[], [], ["j7"]]


@pytest.mark.parametrize("key", ["a/b", "a:pause", "ü b", "50%", "next?", "a/next"])
def test_any_key_is_reached_percent_encoded(shared_client: ApiClient, key: str) -> None:
    client = shared_client
    path = f"/api/v1/jobs/{quote(key, safe='')}"
    assert client.put(path, json=SPEC).status_code == HTTPStatus.CREATED
    assert client.get(path).json()["summary"]["key"] == key
    assert client.post(f"{path}:pause", json={}).status_code == HTTPStatus.OK
    assert client.get(f"{path}/next").json()["key"] == key


def test_change_that_lost_the_race_is_refused_with_412(client: httpx.Client) -> None:
    client.put("/api/v1/jobs/a", json=SPEC)
    won = client.patch("/api/v1/jobs/a", json={"labels": {"n": "1"}}, headers={"If-Match": '"1"'})
    assert (won.status_code, won.headers["etag"]) == (HTTPStatus.OK, '"2"')
    for lost in (
        client.patch("/api/v1/jobs/a", json={"labels": {"n": "2"}}, headers={"If-Match": '"1"'}),
        client.put("/api/v1/jobs/a", json=SPEC, headers={"If-Match": '"1"'}),
        client.put("/api/v1/jobs/a", json=SPEC, headers={"If-None-Match": "*"}),
        client.delete("/api/v1/jobs/a", headers={"If-Match": '"1"'}),
    ):
        assert refusal(lost, HTTPStatus.PRECONDITION_FAILED)["code"] == "version_conflict"
    assert client.get("/api/v1/jobs/a").json()["summary"]["labels"] == {"n": "1"}
    assert client.delete("/api/v1/jobs/a", headers={"If-Match": '"2"'}).status_code == HTTPStatus.OK
    assert refusal(client.get("/api/v1/jobs/a"), HTTPStatus.NOT_FOUND)["code"] == "unknown_job"


def test_one_of_many_changes_of_a_version_wins_and_the_others_are_refused(client: httpx.Client) -> None:
    client.put("/api/v1/jobs/a", json=SPEC)

    def change(number: int) -> httpx.Response:
        return client.patch("/api/v1/jobs/a", json={"labels": {"n": str(number)}}, headers={"If-Match": '"1"'})

    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(change, range(8)))
    [won] = [number for number, answer in enumerate(answers) if answer.status_code == HTTPStatus.OK]
    for lost in (*answers[:won], *answers[won + 1 :]):
        assert refusal(lost, HTTPStatus.PRECONDITION_FAILED)["errors"][0]["remedy"]
    job = client.get("/api/v1/jobs/a")
    assert (job.headers["etag"], job.json()["summary"]["labels"]) == ('"2"', {"n": str(won)})


@pytest.mark.parametrize(
    ("body", "status", "detail"),
    [
        (b"{" + b" " * (1 << 20) + b"}", HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "more than 1048576 bytes"),
        (b'{"key": "\xff"}', HTTPStatus.BAD_REQUEST, "UTF-8"),
        (b'{"payload": ' + b"[" * 10_000 + b"]" * 10_000 + b"}", HTTPStatus.BAD_REQUEST, "levels deep"),
        (b'{"payload": ' + b"[" * 100_000, HTTPStatus.BAD_REQUEST, "arrays and objects"),
    ],
    ids=["too large", "not UTF-8", "deep", "deep and open"],
)
@pytest.mark.parametrize("call", ["POST /api/v1/jobs", "PATCH /api/v1/jobs/a"])
def test_body_that_cannot_be_read_is_refused_with_its_cause(
    shared_client: ApiClient, call: str, body: bytes, status: HTTPStatus, detail: str
) -> None:
    answer = shared_client.request(*call.split(), content=body, headers={"Content-Type": "application/json"})
    told = refusal(answer, status)
    assert detail in told["detail"]


def test_body_that_comes_too_slowly_is_refused_in_time(client: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_input, "_SECONDS", 0.3)
    executor = enter(client)
    head = b"POST /api/v1/jobs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with socket.create_connection((client.base_url.host, client.base_url.port or 0), timeout=60) as slow:
        slow.sendall(head + b'Content-Length: 1000\r\n\r\n{"key"')
        assert executor.heartbeat() == []
        answer = b"".join(iter(lambda: slow.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"the body did not arrive within 0.3 s" in answer


def test_merge_patch_changes_one_field_and_null_resets_it(client: httpx.Client) -> None:
    client.put("/api/v1/jobs/a", json={**SPEC, "labels": {"a": "1", "b": "2"}, "lane": "batch"})
    client.patch("/api/v1/jobs/a", json={"labels": {"a": None}, "lane": None})
    job = client.get("/api/v1/jobs/a").json()["job"]
    assert (job["labels"], "lane" in job) == ({"b": "2"}, False)


def test_repeated_idempotency_key_gets_the_first_answer(client: httpx.Client, database: Database) -> None:
    database.submit()
    told = {"Idempotency-Key": "order-7"}
    first, again = (client.post("/api/v1/jobs/job:trigger", json={"payload": 1}, headers=told) for _ in range(2))
    assert (first.status_code, again.json()) == (HTTPStatus.CREATED, first.json())
    assert first.headers["location"] == f"/api/v1/runs/{first.json()['run_id']}"
    other = client.post("/api/v1/jobs/job:trigger", json={"payload": 2}, headers=told)
    assert refusal(other, HTTPStatus.CONFLICT)["code"] == "request_conflict"
    assert database.count("job_runs") == 1


def test_trigger_with_dedupe_answers_what_happened(client: httpx.Client, database: Database) -> None:
    database.submit()
    body = {"payload": 1, "dedupe": {"key": "k", "window": "1h", "mode": "reject"}}
    first, second = (client.post("/api/v1/jobs/job:trigger", json=body).json() for _ in range(2))
    assert (first["dedupe"], second) == ("accepted", first | {"dedupe": "deduplicated"})


def test_bulk_rejects_one_job_and_keeps_the_others(client: httpx.Client) -> None:
    jobs: list[dict[str, object]] = [{"key": "a", **SPEC}, {"key": "b", "schedule": "nonsense"}, {"key": "c", **SPEC}]
    answer = answer_of(client.post("/api/v1/jobs:bulk", json={"jobs": jobs}))
    assert (answer["accepted"], answer["rejected"]) == (2, 1)
    assert [each["accepted"] for each in answer["results"]] == [True, False, True]
    assert {error["path"] for error in answer["results"][1]["errors"]} >= {"jobs.1.target"}
    assert keys(client.get("/api/v1/jobs")) == ["a", "c"]


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("/api/v1/jobs?limit=-1", "limit"),
        ("/api/v1/jobs?limit=0", "limit"),
        ("/api/v1/jobs?limit=1001", "limit"),
        ("/api/v1/jobs?limit=1&limit=2", "limit"),
        ("/api/v1/jobs?pre=a", "pre"),
        ("/api/v1/jobs?status=broken", "status"),
        ("/api/v1/jobs?cursor=x", "cursor"),
        ("/api/v1/jobs?label=team", "label"),
        ("/api/v1/jobs?prefix=%00", "prefix"),
        ("/api/v1/jobs/%00", "key"),
        ("/api/v1/jobs/%ff", "key"),
        ("/api/v1/jobs/a/next?limit=101", "limit"),
        ("/api/v1/jobs/a:explain", "at"),
        ("/api/v1/jobs/a:explain?at=now", "at"),
    ],
)
def test_query_that_does_not_fit_is_refused_by_its_name(shared_client: ApiClient, path: str, field: str) -> None:
    assert refused_fields(shared_client.get(path))[0] == field


def test_unknown_tenant_is_not_found_whether_read_or_written(client: httpx.Client) -> None:
    submitted = client.put("/api/v1/jobs/a?tenant=nobody", json=SPEC)
    for answer in (client.get("/api/v1/jobs?tenant=nobody"), submitted):
        told = refusal(answer, HTTPStatus.NOT_FOUND)
        assert (told["code"], told["errors"][0]["path"]) == ("unknown_tenant", "tenant")


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/api/v1/jobs", {"key": "a", **SPEC, "concurency": 1}, "concurency"),
        ("/api/v1/jobs", {"key": "a", **SPEC, "tenant": "b"}, "tenant"),
        ("/api/v1/jobs:preview", {"job": {**SPEC, "concurency": 1}}, "job.concurency"),
        ("/api/v1/jobs/a:trigger", {"tenant": "x"}, "tenant"),
        ("/api/v1/jobs/a:trigger", {"key": "b"}, "key"),
        ("/api/v1/jobs/a:pause", {"until": "soon"}, "until"),
        ("/api/v1/jobs:bulk", {"jobs": []}, "jobs"),
    ],
)
def test_unfit_body_is_refused_by_its_path(
    shared_client: ApiClient, path: str, body: dict[str, object], field: str
) -> None:
    assert field in refused_fields(shared_client.post(path, json=body))


def test_page_of_another_site_changes_nothing(client: httpx.Client, database: Database) -> None:
    database.submit()
    refusal(client.post("/api/v1/jobs/job:pause", headers={"Origin": "https://evil.example"}), HTTPStatus.FORBIDDEN)
    own = str(client.base_url).rstrip("/")
    assert client.post("/api/v1/jobs/job:pause", headers={"Origin": own}).status_code == HTTPStatus.OK


def test_without_the_token_nothing_is_read_or_changed(database: Database) -> None:
    with answering(database, token="correct-horse-battery") as client:
        for method, path in (("GET", "/api/v1/jobs"), ("POST", "/api/v1/jobs"), ("GET", "/api/v1/openapi.json"),
                             ("GET", "/api/v1/jobs/x%2F..%2Fruns%2Fa:complete")):  # fmt: skip
            refusal(client.request(method, path, headers={"Authorization": ""}), HTTPStatus.UNAUTHORIZED)


def test_slash_in_the_key_of_a_path_has_its_remedy(client: httpx.Client, database: Database) -> None:
    database.submit("a/b")
    assert client.get("/api/v1/jobs/a%2Fb").status_code == HTTPStatus.OK
    for method, path in (("GET", "a/b"), ("PUT", "a/b"), ("DELETE", "a/b"), ("GET", "a/b/runs"), ("GET", "a/b/next")):
        refused = refusal(client.request(method, f"/api/v1/jobs/{path}"), HTTPStatus.NOT_FOUND)
        assert 'write a "/" in a key as %2F' in refused["detail"], path
