"""Concurrency keys over HTTP and by the command line: their limits; blocked ordering keys."""

from datetime import timedelta
from uuid import UUID

from tests.control.api.answering import ApiClient, answer_of, every_page, refusal
from tests.control.cli.command import tidewheel
from tests.fixtures.acts import ending
from tests.fixtures.database import Database
from tests.scheduler.firing import fire_due
from tidewheel.ids import order_id
from tidewheel.runs import RunState


def test_limit_is_set_listed_and_removed_by_command(database: Database) -> None:
    database.submit(concurrency_key="api/acme")
    runs = [database.trigger() for _ in range(4)]
    database.claim(*runs)
    assert "1 of 1 are taken" in tidewheel(database, "run", "show", runs[3]).out
    set_it = tidewheel(database, "admin", "limit", "set", "api/*", "--at-once", 3)
    assert set_it.out.strip() == "set; 2 waiting runs get a place"
    listed = tidewheel(database, "admin", "limit", "list").out
    assert "api/*" in listed
    assert "api/acme" in tidewheel(database, "admin", "limit", "keys", "api/").out
    assert "(cli)" in tidewheel(database, "admin", "limit", "list", "-o", "json").out
    assert "api/acme" in tidewheel(database, "run", "show", runs[0]).out
    assert str(runs[1]) in tidewheel(database, "run", "list", "--concurrency-key", "api/acme").out
    assert tidewheel(database, "admin", "limit", "rm", "api/*").out.strip() == "removed"
    assert tidewheel(database, "admin", "limit", "rm", "api/*").out.startswith("unchanged")
    for words in (("admin", "limit", "list"), ("admin", "limit", "keys"), ("batch", "list")):
        [refused] = tidewheel(database, *words, "--tenant", "nobody").refusals
        assert "no tenant 'nobody'" in refused
    assert "pause their jobs" in tidewheel(database, "admin", "limit", "set", "api/*", "--at-once", 0).refusal


def test_explanation_names_the_key_that_an_occurrence_awaits(database: Database) -> None:
    database.submit("other", concurrency_key="acme")
    database.claim(database.trigger("other"))
    at = (database.now() + timedelta(hours=1)).replace(microsecond=0)
    database.submit(schedule={"once": at.isoformat()}, concurrency_key="acme")
    fire_due(database, lookahead=timedelta(hours=2))
    run_id = database.value("SELECT run_id FROM job_runs WHERE cause = 'timer'")
    database.execute("UPDATE job_runs SET publish_at = tidewheel_now() WHERE cause = 'timer'")
    assert database.claim(run_id).waiting == {run_id}
    explained = tidewheel(database, "explain", "job", "--at", at.isoformat(), "-o", "json").json
    assert explained["run"]["concurrency_key"] == "acme"
    assert "concurrency key 'acme'" in explained["words"]


def test_blocked_keys_are_listed_by_pages_and_unblocked(database: Database, client: ApiClient) -> None:
    database.submit()
    for key in ("a", "b", "c"):
        order = {"ordering_key": {"key": key}}
        first, _ = (client.post("/api/v1/jobs/job:trigger", json=order).json()["run_id"] for _ in range(2))
        database.end(ending(database.begin(UUID(first)), RunState.FAILED))
    found = [each for page in every_page(client, "/api/v1/ordering-keys", limit=2) for each in page["keys"]]
    assert [(each["key"], each["waiting"]) for each in found] == [("a", 1), ("b", 1), ("c", 1)]
    retried = answer_of(client.post("/api/v1/ordering-keys:unblock", json={"key": "a"}))
    assert database.open_run(UUID(retried["run_id"])).state == "queued"
    again = client.post("/api/v1/ordering-keys:unblock", json={"key": "a"})
    assert retried["run_id"] in refusal(again)["errors"][0]["problem"]
    skipped = answer_of(client.post("/api/v1/ordering-keys:unblock", json={"key": "b", "skip": True}))
    assert skipped == {"run_id": found[1]["blocked_by"], "skipped": True}
    left = answer_of(client.get("/api/v1/ordering-keys"))["keys"]
    assert [(each["key"], each["retried_by"]) for each in left] == [("a", retried["run_id"]), ("c", None)]
    entries = answer_of(client.get("/api/v1/audit-log?object=ordering_key/b"))["entries"]
    assert [entry["action"] for entry in entries] == ["ordering_key.skip"]


def test_pages_of_keys_blocked_at_a_damaged_time_end(database: Database, client: ApiClient) -> None:
    for key in ("a", "b", "c"):
        blocked = [order_id("default", key), key]
        database.execute(
            "INSERT INTO order_keys (key_id, tenant, key, blocked_by, blocked_at)"
            " VALUES (%s, 'default', %s, gen_random_uuid(), 'infinity')",
            blocked,
        )
    assert len(list(every_page(client, "/api/v1/ordering-keys", limit=1))) <= 4, "no page follows itself"
