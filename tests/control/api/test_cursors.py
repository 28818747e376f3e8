"""Cursors of lists: each belongs to its list, and pages lose and repeat nothing."""

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from http import HTTPStatus
from typing import Any

import pytest

from tests.control.api.answering import ApiClient, answer_of, every_page, refused_fields
from tests.fixtures.acts import submission
from tests.fixtures.database import Database


def pages(client: ApiClient, path: str, noun: str, name: str) -> list[str]:
    """Return the names of all pages of two."""
    return [each[name] for page in every_page(client, path, limit=2) for each in page[noun]]


def test_page_of_jobs_ends_where_its_labels_have_a_million_characters(client: ApiClient, database: Database) -> None:
    keys, labels = [f"{number:03}" for number in range(300)], {f"{number:02}": "x" * 255 for number in range(64)}
    database.apply_batch(*(submission(key, labels=labels) for key in keys))
    first = answer_of(client.get("/api/v1/jobs?limit=1000"))
    rest = answer_of(client.get(f"/api/v1/jobs?limit=1000&cursor={first['next_cursor']}"))
    pages = [[each["key"] for each in page["jobs"]] for page in (first, rest)]
    assert (pages[0] + pages[1], len(pages[0]), rest["next_cursor"]) == (keys, 250, None)


def test_list_of_the_longest_keys_pages_to_its_end(client: ApiClient, database: Database) -> None:
    keys = [f"{number}{letter * 254}" for number in range(2) for letter in ("a", "\u00fc", "\U0001f600")]
    database.apply_batch(*(submission(key) for key in keys))
    assert sorted(pages(client, "/api/v1/jobs", "jobs", "key")) == sorted(keys)


def test_runs_of_one_instant_are_on_one_page_each(client: ApiClient, database: Database) -> None:
    database.submit()
    at = database.now().isoformat()
    made = {str(database.trigger(run_at=at)) for _ in range(7)}
    for path in ("/api/v1/runs", "/api/v1/runs?job=job", "/api/v1/jobs/job/runs", "/api/v1/runs?status=queued"):
        found = pages(client, path, "runs", "run_id")
        assert (len(found), set(found)) == (7, made), path


def test_run_that_ends_between_two_pages_is_on_one_of_them(client: ApiClient, database: Database) -> None:
    database.submit()
    runs = [database.trigger() for _ in range(4)]
    for path, ends in (("/api/v1/runs", runs[::3]), ("/api/v1/jobs/job/runs", runs[1:3])):
        first = answer_of(client.get(f"{path}?limit=2"))
        for run_id in ends:
            database.succeed(database.begin(run_id))
        rest = answer_of(client.get(f"{path}?limit=2&cursor={first['next_cursor']}"))
        seen = [each["run_id"] for page in (first, rest) for each in page["runs"]]
        assert (sorted(seen), first["total"], rest["total"]) == (sorted(map(str, runs)), 4, 4), path


def test_cursor_of_another_list_filter_or_tenant_is_refused(client: ApiClient, database: Database) -> None:
    database.execute("INSERT INTO tenants (tenant) VALUES ('acme')")
    for number in range(3):
        database.submit(f"job{number}")
        database.trigger(f"job{number}")
        database.trigger("job0")
    runs = answer_of(client.get("/api/v1/runs?limit=1"))["next_cursor"]
    jobs = answer_of(client.get("/api/v1/jobs?limit=1&prefix=job"))["next_cursor"]
    of_job = answer_of(client.get("/api/v1/jobs/job0/runs?limit=1"))["next_cursor"]
    for path, cursor in (
        ("/api/v1/jobs?", runs),
        ("/api/v1/runs?status=queued", runs),
        ("/api/v1/runs?tenant=acme", runs),
        ("/api/v1/runs?job=job0", runs),
        ("/api/v1/executors?", runs),
        ("/api/v1/jobs/job1/runs?", of_job),
        ("/api/v1/jobs?prefix=j", jobs),
        ("/api/v1/jobs?prefix=job&label=a=b", jobs),
        ("/api/v1/audit-log?", runs),
    ):
        assert refused_fields(client.get(f"{path}&cursor={cursor}"))[0] == "cursor", path
    for same in (f"/api/v1/runs?tenant=default&limit=7&cursor={runs}", f"/api/v1/jobs?prefix=job&cursor={jobs}"):
        assert client.get(same).status_code == HTTPStatus.OK


@pytest.mark.parametrize(
    ("path", "part"),
    [
        ("/api/v1/jobs", "\x00"),
        ("/api/v1/jobs", 1),
        ("/api/v1/jobs", ["a"]),
        ("/api/v1/runs", "x"),
        ("/api/v1/runs", "0001-01-01T00:00:00Z"),
        ("/api/v1/jobs/job0/runs", "9999-12-31T23:59:59.999999Z"),
        ("/api/v1/jobs/job0/versions", 10**30),
        ("/api/v1/jobs/job0/versions", "-1"),
        ("/api/v1/audit-log", "9" * 200),
    ],
)
def test_tampered_cursor_is_refused(shared_client: ApiClient, path: str, part: object) -> None:
    client, database = shared_client, shared_client.database
    for number in range(2):
        database.submit(f"job{number}")
        database.submit("job0", description=str(number))
        database.trigger("job0")
    given = str(answer_of(client.get(f"{path}?limit=1"))["next_cursor"])
    parts: list[Any] = json.loads(urlsafe_b64decode(given + "=" * (-len(given) % 4)))
    parts[1] = part
    forged = urlsafe_b64encode(json.dumps(parts).encode()).decode()
    for cursor in (forged, given[:-2], f"{given[:4]}!!!!{given[4:]}", "*", "W10", "bnVsbA", "e30", "A" * 3000):
        assert refused_fields(client.get(path, params={"cursor": cursor}))[0] in {"cursor", "after"}, cursor
