"""Changes over HTTP that are repeated, race with others, or state conditions."""

from concurrent.futures import ThreadPoolExecutor
from http import HTTPStatus
from typing import Any

import httpx
import pytest

from tests.control.api.answering import ApiClient, answer_of, refusal, refused_fields
from tests.fixtures.acts import HANDLER
from tests.transitions.stepping import in_background

SPEC: dict[str, Any] = {"schedule": "@every 1h", "target": HANDLER}
JOB = "/api/v1/jobs/a"
ONCE = {"Idempotency-Key": "edit-7"}
OTHER_BODY = {"description": "other"}


@pytest.fixture
def client(client: ApiClient) -> ApiClient:
    client.put(JOB, json=SPEC)
    return client


def patched(client: httpx.Client, patch: dict[str, Any], **headers: str) -> httpx.Response:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return client.patch(JOB, json=patch, headers=names)


def described(client: httpx.Client) -> object:
    return client.get(JOB).json()["job"].get("description")


@pytest.mark.parametrize("conditions", [{}, {"If-Match": '"1"'}], ids=["any version", "If-Match"])
@pytest.mark.parametrize("meanwhile", ["nothing", "changed", "deleted"])
def test_repeated_patch_gets_the_first_answer(client: httpx.Client, conditions: dict[str, str], meanwhile: str) -> None:
    headers = {**ONCE, **conditions}
    first = client.patch(JOB, json={"description": "first"}, headers=headers)
    assert (first.status_code, first.headers["etag"]) == (HTTPStatus.OK, '"2"')
    if meanwhile == "changed":
        assert patched(client, {"description": "second"}).headers["etag"] == '"3"'
    elif meanwhile == "deleted":
        assert client.delete(JOB).status_code == HTTPStatus.OK
    again = client.patch(JOB, json={"description": "first"}, headers=headers)
    assert (again.status_code, again.json(), again.headers["etag"]) == (HTTPStatus.OK, first.json(), '"2"')
    for other in (
        client.patch(JOB, json=OTHER_BODY, headers=headers),
        client.patch(JOB, json={"description": "first"}, headers={**headers, "If-Match": '"9"'}),
        client.patch("/api/v1/jobs/b", json={"description": "first"}, headers=headers),
    ):
        assert refusal(other, HTTPStatus.CONFLICT)["code"] == "request_conflict"
    if meanwhile == "changed":
        assert described(client) == "second"


def test_patch_that_was_refused_by_its_version_gets_the_refusal_again(client: httpx.Client) -> None:
    for _ in range(2):
        lost = patched(client, OTHER_BODY, If_Match='"7"', **ONCE)
        assert refusal(lost, HTTPStatus.PRECONDITION_FAILED)["code"] == "version_conflict"


def test_concurrent_patches_of_different_fields_are_all_applied(client: httpx.Client) -> None:
    def change(number: int) -> httpx.Response:
        return patched(client, {"labels": {f"n{number}": "1"}}, Idempotency_Key=f"edit-{number % 8}")

    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(change, range(8)))
        assert [each.status_code for each in answers] == [HTTPStatus.OK] * 8
        again = list(threads.map(change, range(8)))
    assert [each.json() for each in again] == [each.json() for each in answers]
    assert sorted(client.get(JOB).json()["job"]["labels"]) == [f"n{number}" for number in range(8)]
    assert client.get(JOB).headers["etag"] == '"9"'


def test_patch_repeated_while_the_first_is_not_answered_is_applied_once(client: ApiClient) -> None:
    with client.database.transaction() as held:
        held.execute("SELECT 1 FROM timers FOR UPDATE")
        both = [in_background(lambda: patched(client, OTHER_BODY, **ONCE)) for _ in range(2)]
    first, second = (each.result(60) for each in both)
    assert (first.status_code, first.json()) == (HTTPStatus.OK, second.json())
    assert client.get(JOB).headers["etag"] == '"2"'


def test_patch_keeps_what_it_does_not_name_byte_for_byte(client: ApiClient) -> None:
    payload = {"big": 12345678901234567890123, "tiny": 1e-300, "text": "ü\u2028", "order": {"b": 1, "a": 2}}
    client.put(JOB, json={**SPEC, "payload": payload, "jitter": "12.5%", "retry": {"jitter": "7%"}})
    before = client.database.rows("SELECT definition FROM job_versions ORDER BY version DESC LIMIT 1")
    assert answer_of(patched(client, {}))["unchanged"]
    assert answer_of(patched(client, {"description": "new"}))["version"] == 3
    assert client.get(JOB).json()["job"]["payload"] == payload
    patched(client, {"description": None})
    after = client.database.rows("SELECT definition FROM job_versions ORDER BY version DESC LIMIT 1")
    assert len(after[0][0]) == len(before[0][0])


@pytest.mark.parametrize("method", ["PUT", "PATCH", "DELETE"])
@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("If-Match", '"0"'),
        ("If-Match", '"01"'),
        ("If-Match", "1"),
        ("If-Match", '"1", "2"'),
        ("If-Match", ""),
        ("If-Match", "W/*"),
        ("If-None-Match", '"1"'),
        ("If-None-Match", ""),
        ("Idempotency-Key", ""),
        ("Idempotency-Key", "k" * 256),
        ("Idempotency-Key", "a\tb"),
    ],
)
def test_condition_that_does_not_fit_is_refused(shared_client: ApiClient, method: str, header: str, value: str) -> None:
    client = shared_client
    client.put(JOB, json=SPEC)
    body = None if method == "DELETE" else {**SPEC, "description": "new"}
    assert refused_fields(client.request(method, JOB, json=body, headers={header: value}))[0] == header
    assert client.get(JOB).headers["etag"] == '"1"'


def test_star_never_creates_a_job_and_a_weak_tag_means_its_version(client: httpx.Client) -> None:
    for method, path in (("PUT", "/api/v1/jobs/b"), ("POST", "/api/v1/jobs")):
        told = refusal(client.request(method, path, json=SPEC, headers={"If-Match": "*"}))
        assert told["errors"][0]["path"] == "If-Match"
    both = {"If-Match": '"1"', "If-None-Match": "*"}
    told = refusal(client.put("/api/v1/jobs/b", json=SPEC, headers=both))
    assert told["errors"][0]["remedy"] == "send one of the two"
    refusal(client.delete("/api/v1/jobs/b", headers={"If-Match": "*"}), HTTPStatus.NOT_FOUND)
    lost = client.put("/api/v1/jobs/b", json=SPEC, headers={"If-Match": '"1"'})
    [error] = refusal(lost, HTTPStatus.PRECONDITION_FAILED)["errors"]
    assert (error["path"], error["remedy"]) == ("If-Match", "leave it out")
    refusal(client.get("/api/v1/jobs/b"), HTTPStatus.NOT_FOUND)
    assert patched(client, OTHER_BODY, If_Match='W/"1"').headers["etag"] == '"2"'
    assert patched(client, OTHER_BODY, If_Match="*").json()["unchanged"]
    assert client.delete(JOB, headers={"If-Match": "*"}).status_code == HTTPStatus.OK


def test_idempotency_keys_of_tenants_are_apart_and_a_refusal_names_the_header(client: ApiClient) -> None:
    client.database.execute("INSERT INTO tenants (tenant) VALUES ('acme')")
    for tenant in ("default", "acme"):
        made = client.put(f"/api/v1/jobs/b?tenant={tenant}", json={**SPEC, "description": tenant}, headers=ONCE)
        assert made.status_code == HTTPStatus.CREATED
    told = refusal(client.put("/api/v1/jobs/b", json=SPEC, headers=ONCE), HTTPStatus.CONFLICT)
    assert [each["path"] for each in told["errors"]] == ["Idempotency-Key"]


def test_repeated_bulk_gets_the_first_results_and_another_body_conflicts_by_job(client: httpx.Client) -> None:
    jobs = [{"key": "b", **SPEC}, {"key": "c", "schedule": "@every 1h"}, {"key": "d", **SPEC}]
    first, again = (client.post("/api/v1/jobs:bulk", json={"jobs": jobs}, headers=ONCE) for _ in range(2))
    assert (answer_of(first)["accepted"], again.json()) == (2, first.json())
    jobs[2] = {"key": "d", **SPEC, "description": "other"}
    results = answer_of(client.post("/api/v1/jobs:bulk", json={"jobs": jobs}, headers=ONCE))["results"]
    assert [each["accepted"] for each in results] == [True, False, False]
    assert results[2]["errors"][0]["path"] == "Idempotency-Key"
    long = {"Idempotency-Key": "k" * 252}
    assert refused_fields(client.post("/api/v1/jobs:bulk", json={"jobs": jobs}, headers=long))[0] == "Idempotency-Key"
