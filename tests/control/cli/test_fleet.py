"""Executors, shards and tenants in lists, the same by the command line and by REST."""

from typing import Any

from tests.control.api.answering import answer_of, answering
from tests.control.cli.command import json_output, tidewheel
from tests.control.reads.test_waits import executor
from tests.fixtures.database import Database
from tests.transitions.acts import HANDLER


def test_executors_are_listed_with_state_and_handlers(database: Database) -> None:
    assert tidewheel(database, "admin", "executors").lines == ["no executors"]
    executor(database, HANDLER)
    executor(database, "other", queue="reports", silent="1 h")
    heading, *rows = tidewheel(database, "admin", "executors").lines
    assert heading.split() == ["executor", "name", "state", "heartbeat", "slots", "queues", "handlers"]
    found = {tuple(row.split()[2::2]) for row in rows}
    assert found == {("alive", "4", HANDLER), ("dead", "4", "other")}


def test_pages_of_executors_are_consecutive(database: Database) -> None:
    for _ in range(3):
        executor(database, HANDLER)
    first = json_output(database, "admin", "executors", "-n", 2)
    second = json_output(database, "admin", "executors", "-n", 2, "--after", first["next_cursor"])
    assert len({each["executor_id"] for each in [*first["executors"], *second["executors"]]}) == 3
    assert second["next_cursor"] is None
    *_, last = tidewheel(database, "admin", "executors", "-n", 2).lines
    assert last == f"more: add --after {first['next_cursor']}"


def test_every_shard_is_listed_without_a_scheduler_too(database: Database) -> None:
    heading, *rows = tidewheel(database, "admin", "shards", "list").lines
    assert heading.split() == ["shard", "scheduler", "heartbeat"]
    assert [row.split() for row in rows] == [
        [str(number), "no", "scheduler"] for number in range(database.installation.shards)
    ]


def test_tenants_are_listed(database: Database) -> None:
    database.execute("INSERT INTO tenants (tenant) VALUES ('acme')")
    assert [row.split()[0] for row in tidewheel(database, "admin", "tenant", "list").lines] == [
        "tenant",
        "acme",
        "default",
    ]
    first = json_output(database, "admin", "tenant", "list", "-n", 1)
    assert (
        json_output(database, "admin", "tenant", "list", "--after", first["next_cursor"])["tenants"][0]["tenant"]
        == "default"
    )


def test_rest_has_the_same_lists(database: Database) -> None:
    executor(database, HANDLER)
    with answering(database) as client:
        for noun, words in (("executors", "executors"), ("shards", "shards list"), ("tenants", "tenant list")):
            found: Any = answer_of(client.get(f"/api/v1/{noun}"))
            assert found == json_output(database, "admin", *words.split())
