"""Runs, dead letters and the fleet over HTTP."""

from datetime import timedelta
from http import HTTPStatus
from uuid import uuid4

import httpx
import pytest

from tests.control.api.answering import ApiClient, answer_of, enter, every_page, refusal, refused_fields
from tests.control.client.test_dead_letters import fail, work_off
from tests.fixtures.database import Database
from tidewheel.nouns.dead_letters import operations as dead_letters
from tidewheel.nouns.runs import reads as reads
from tidewheel.runs import AttemptOutcome
from tidewheel.scheduler.cancels import BulkCancel

_PURGE = "/api/v1/dead-letters:purge"


@pytest.fixture
def client(client: ApiClient) -> ApiClient:
    client.database.submit("job", labels={"team": "billing"})
    client.database.submit("other", lane="batch")
    return client


def ids(answer: httpx.Response) -> list[str]:
    return [run["run_id"] for run in answer_of(answer)["runs"]]


def failed(database: Database) -> str:
    return str(fail(database))


def test_each_filter_lists_its_runs(client: httpx.Client, database: Database) -> None:
    bad = failed(database)
    done = database.begun()
    database.succeed(done)
    batch = str(database.trigger("other"))
    asked = {
        "status=failed": [bad],
        "status=succeeded": [str(done.run_id)],
        "status=queued": [batch],
        "status=skipped": [],
        "lane=batch": [batch],
        "queue=default&job=other": [batch],
        "job=job&label=team=billing": [str(done.run_id), bad],
        "cause=timer": [],
        "since=2999-01-01T00:00:00Z": [],
    }
    for query, wanted in asked.items():
        assert sorted(ids(client.get(f"/api/v1/runs?{query}"))) == sorted(wanted), query
    assert ids(client.get("/api/v1/jobs/other/runs")) == [batch]


def test_list_goes_on_where_its_page_has_looked_at_its_share(
    client: httpx.Client, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reads, "LOOKED_AT", 4)
    wanted = str(database.trigger("other"))
    for _ in range(9):
        database.succeed(database.begun())
    pages = list(every_page(client, "/api/v1/runs", lane="batch"))
    assert [run["run_id"] for page in pages for run in page["runs"]] == [wanted]
    assert [page["at_least"] for page in pages[:-1]] == [True, True]


def test_pages_hold_each_run_once(client: httpx.Client, database: Database) -> None:
    runs = {str(database.trigger()) for _ in range(5)}
    for path in ("/api/v1/runs", "/api/v1/jobs/job/runs"):
        pages = list(every_page(client, path, limit=2))
        assert {(page["total"], page["at_least"]) for page in pages} == {(5, False)}
        seen = [run["run_id"] for page in pages for run in page["runs"]]
        assert (len(seen), set(seen)) == (5, runs)


def test_run_shows_its_attempts_result_and_output(client: httpx.Client, database: Database) -> None:
    run_id = database.trigger()
    executor = enter(client)
    executor.claim(run_id)
    assert executor.finish(run_id, "succeeded", result={"rows": 7}, output="done\n") == "recorded"
    path = f"/api/v1/runs/{run_id}"
    run = answer_of(client.get(path))
    assert (run["status"], run["result"], run["labels"]) == ("succeeded", {"rows": 7}, {"team": "billing"})
    [attempt] = answer_of(client.get(f"{path}/attempts"))["attempts"]
    assert (attempt["outcome"], attempt["result"]) == ("succeeded", {"rows": 7})
    [log] = answer_of(client.get(f"{path}/logs"))["logs"]
    assert (log["output"], log["dropped_bytes"]) == ("done\n", 0)
    assert refused_fields(client.get(f"{path}/logs?attempt=2"))[0] == "attempt"


def test_cancel_and_retry_answer_as_requests_of_intake(client: httpx.Client, database: Database) -> None:
    run_id = database.trigger()
    path = f"/api/v1/runs/{run_id}"
    assert refused_fields(client.post(f"{path}:retry"))[0] == "run_id"
    assert answer_of(client.post(f"{path}:cancel", json={"reason": "why not"}))["run_status"] == "queued"
    assert answer_of(client.get(path))["reason"] == "why not"
    again = client.post(f"{path}:retry", headers={"Idempotency-Key": "k"})
    assert again.status_code == HTTPStatus.CREATED
    assert client.post(f"{path}:retry", headers={"Idempotency-Key": "k"}).json() == again.json()
    assert answer_of(client.get(again.headers["location"]))["cause"] == "retry"


def test_retry_with_the_next_attempt_makes_it_due_and_a_second_one_changes_nothing(
    client: httpx.Client, database: Database
) -> None:
    started = database.begun()
    database.requeue(started, AttemptOutcome.FAILED, timedelta(hours=1))
    path = f"/api/v1/runs/{started.run_id}"
    answers = [client.post(f"{path}:retry", json={"attempt": 2}) for _ in range(2)]
    assert [each.status_code for each in answers] == [HTTPStatus.OK, HTTPStatus.OK]
    document = {"run_id": str(started.run_id), "run_status": "retrying"}
    assert [each.json() for each in answers] == [{**document, "unchanged": False}, {**document, "unchanged": True}]
    database.begin(started.run_id)
    assert client.post(f"{path}:retry", json={"attempt": 2}).json()["run_status"] == "running"
    assert refused_fields(client.post(f"{path}:retry", json={"attempt": 2, "delay": "1s"}))[0] == "delay"


def test_another_tenants_rows_are_not_seen(client: httpx.Client, database: Database) -> None:
    database.execute("INSERT INTO tenants (tenant) VALUES ('acme')")
    run_id, bad = database.trigger(), failed(database)
    number = database.value("SELECT id FROM dead_letters WHERE run_id = %s", [bad])
    for path in ("runs", "jobs", "dead-letters", "works", "cancellations"):
        answer = answer_of(client.get(f"/api/v1/{path}?tenant=acme"))
        assert answer[path.replace("-", "_")] == []
    for path in (
        f"runs/{run_id}",
        f"runs/{run_id}/attempts",
        f"runs/{run_id}/logs",
        "jobs/job",
        f"dead-letters/{number}",
    ):
        refusal(client.get(f"/api/v1/{path}?tenant=acme"), HTTPStatus.NOT_FOUND)
    refusal(client.post(f"/api/v1/runs/{run_id}:cancel?tenant=acme"), HTTPStatus.NOT_FOUND)


def test_unknown_ids_are_not_found(client: httpx.Client) -> None:
    ids = ("0", "7", "9223372036854775808", "99999999999999999999", "x")
    jobs = ("nope", "nope/next", "nope/versions", "nope/runs")
    paths = [
        f"runs/{uuid4()}",
        f"works/{uuid4()}",
        *(f"{list_}/{each}" for list_ in ("dead-letters", "cancellations") for each in ids),
    ]
    for path in (*paths, *(f"jobs/{each}" for each in jobs)):
        refusal(client.get(f"/api/v1/{path}"), HTTPStatus.NOT_FOUND)
    for number in ("0", "x", "9223372036854775808"):
        [error] = refusal(client.get(f"/api/v1/dead-letters/{number}"), HTTPStatus.NOT_FOUND)["errors"]
        assert (error["path"], error["problem"]) == ("id", "the URL has no valid dead letter id"), number


def test_purge_of_more_than_are_counted_deletes_all(
    client: httpx.Client, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters, "COUNTED", 1)
    for _ in range(2):
        failed(database)
    counted = answer_of(client.post(_PURGE, json={"all": True}))
    assert (counted["matched"], counted["at_least"]) == (1, True)
    work_off(database)
    assert database.count("dead_letters") == 0


def test_dead_letters_are_grouped_by_cause_with_the_versions_that_failed(
    client: httpx.Client, database: Database
) -> None:
    for _ in range(2):
        failed(database)
    database.submit(retry={"max_attempts": 1}, labels={"team": "billing", "tier": "1"})
    failed(database)
    path = "/api/v1/dead-letters/groups"
    found = answer_of(client.get(path))
    [group] = found["groups"]
    assert (found["looked_at"], found["at_least"], group["count"], group["kind"]) == (3, False, 3, "run")
    assert (group["key"], group["status"], group["current_version"]) == ("job", "failed", max(group["versions"]))
    assert len(group["versions"]) == 2
    assert group["first_at"] <= group["last_at"]
    assert answer_of(client.get(path, params={"redriven": "true"}))["groups"] == []
    assert answer_of(client.get(path, params={"since": "2999-01-01T00:00:00Z"}))["groups"] == []


def test_fleet_is_listed(client: httpx.Client, database: Database) -> None:
    executor = enter(client)
    [listed] = answer_of(client.get("/api/v1/executors"))["executors"]
    assert (listed["executor_id"], listed["slots"]) == (executor.executor_id, 4)
    assert [each["tenant"] for each in answer_of(client.get("/api/v1/tenants"))["tenants"]] == ["default"]
    shards = answer_of(client.get("/api/v1/shards"))["shards"]
    assert ([each["shard"] for each in shards], shards[0]["owner"]) == (list(range(64)), None)
    database.execute(
        "INSERT INTO members SELECT gen_random_uuid(), 'scheduler', 's', 1, n, n FROM tidewheel_now() AS n"
    )
    assert {each["owner"]["name"] for each in answer_of(client.get("/api/v1/shards"))["shards"]} == {"s"}


def test_server_that_returned_is_used_at_once(client: httpx.Client, database: Database) -> None:
    """Connections that were idle meanwhile are replaced: neither a read nor a write answers 503."""
    calls = (lambda: client.get("/api/v1/runs"), lambda: client.post("/api/v1/jobs/job:trigger"))
    for call in calls * 8:
        assert call().is_success
    cut = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = 'tidewheel-api'"
    assert len(database.rows(f"{cut} AND datname = current_database()")) >= len(calls)
    assert {call().is_success for call in calls * 8} == {True}


def test_dead_letters_are_changed_by_a_filter_or_all_on_request(client: httpx.Client, database: Database) -> None:
    failed(database)
    for path in ("/api/v1/dead-letters:redrive", _PURGE):
        for body in ({}, {"reason": "clean up"}, {"all": False}):
            refused = client.post(path, json=body)
            assert refused.status_code == HTTPStatus.UNPROCESSABLE_ENTITY, path
            assert [error["path"] for error in refused.json()["errors"]] == ["ids"], path
        assert database.count("dead_letters") == 1, path
        assert answer_of(client.post(path, json={"all": True}))["matched"] == 1, path


def test_runs_are_cancelled_by_filter_with_a_dry_run_and_the_progress(client: httpx.Client, database: Database) -> None:
    runs = {str(database.trigger()) for _ in range(3)}
    path, body = "/api/v1/runs:cancel", {"key": "job", "reason": "wrong data"}
    planned = answer_of(client.post(path, json={**body, "dry_run": True}))
    assert (planned["cancellation_id"], planned["matched"], planned["at_least"]) == (None, 3, False)
    assert answer_of(client.get("/api/v1/cancellations"))["cancellations"] == []
    accepted = client.post(path, json=body, headers={"Idempotency-Key": "once"})
    assert accepted.status_code == HTTPStatus.ACCEPTED
    assert client.post(path, json=body, headers={"Idempotency-Key": "once"}).json() == accepted.json()
    [listed] = answer_of(client.get("/api/v1/cancellations"))["cancellations"]
    assert (listed["key"], listed["named_count"], listed["cancelled_count"]) == ("job", len(runs), 0)
    assert answer_of(client.get(accepted.headers["location"])) == listed
    cancelling = BulkCancel(database.session(), database.installation)
    while database.value("SELECT count(*) FROM cancellations WHERE finished_at IS NULL"):
        cancelling.step()
    shown = answer_of(client.get(accepted.headers["location"]))
    assert (shown["cancelled_count"], shown["reason"]) == (3, "wrong data")
    assert shown["finished_at"]
