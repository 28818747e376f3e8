"""Ordering keys over HTTP: list and unblock those that a failed run blocks."""

from http import HTTPStatus
from uuid import UUID

from tests.control.api.answering import answer_of, answering, every_page, refusal
from tests.fixtures.database import Database
from tests.transitions.acts import begin, end, ending, open_run, submit
from tidewheel.ids import order_id
from tidewheel.runs import RunState


def test_blocked_keys_are_listed_by_pages_and_unblocked(database: Database) -> None:
    submit(database)
    with answering(database) as client:
        for key in ("a", "b", "c"):
            order = {"ordering_key": {"key": key}}
            first, _ = (client.post("/api/v1/jobs/job:trigger", json=order).json()["run_id"] for _ in range(2))
            end(database, ending(begin(database, UUID(first)), RunState.FAILED))
        found = [each for page in every_page(client, "/api/v1/ordering-keys", limit=2) for each in page["keys"]]
        assert [(each["key"], each["waiting"]) for each in found] == [("a", 1), ("b", 1), ("c", 1)]
        retried = answer_of(client.post("/api/v1/ordering-keys:unblock", json={"key": "a"}))
        assert open_run(database, UUID(retried["run_id"])).state == "queued"
        again = client.post("/api/v1/ordering-keys:unblock", json={"key": "a"})
        assert retried["run_id"] in refusal(again, HTTPStatus.UNPROCESSABLE_ENTITY)["errors"][0]["problem"]
        skipped = answer_of(client.post("/api/v1/ordering-keys:unblock", json={"key": "b", "skip": True}))
        assert skipped == {"run_id": found[1]["blocked_by"], "skipped": True}
        left = answer_of(client.get("/api/v1/ordering-keys"))["keys"]
        assert [(each["key"], each["retried_by"]) for each in left] == [("a", retried["run_id"]), ("c", None)]
        entries = answer_of(client.get("/api/v1/audit-log?object=ordering_key/b"))["entries"]
        assert [entry["action"] for entry in entries] == ["ordering_key.skip"]


def test_pages_of_keys_blocked_at_a_damaged_time_end(database: Database) -> None:
    for key in ("a", "b", "c"):
        blocked = [order_id("default", key), key]
        database.execute(
            "INSERT INTO order_keys (key_id, tenant, key, blocked_by, blocked_at)"
            " VALUES (%s, 'default', %s, gen_random_uuid(), 'infinity')",
            blocked,
        )
    with answering(database) as client:
        assert len(list(every_page(client, "/api/v1/ordering-keys", limit=1))) <= 4, "no page follows itself"
