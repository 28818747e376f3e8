"""Lists of occurrences, executors, shards and tenants; unknown tenants, repeated keys and durations."""

from datetime import UTC, datetime, timedelta

import pytest

from tests.control.cli.command import json_output, tidewheel
from tests.control.reads.test_waits import executor
from tests.fixtures.acts import HANDLER
from tests.fixtures.database import ClockedDatabase, Database
from tests.scheduler.firing import fire_due


def next_of(database: Database, key: str) -> tuple[str | None, str | None]:
    """Return the next occurrence by `show`, and by `list`."""
    jobs = {job["key"]: job["next_at"] for job in json_output(database, "job", "list")["jobs"]}
    return json_output(database, "job", "show", key)["next_at"], jobs[key]


@pytest.mark.landing
def test_run_created_ahead_is_the_next_occurrence(clocked: ClockedDatabase) -> None:
    clocked.stop_clock(datetime(2026, 3, 6, 8, 59, 58, tzinfo=UTC))
    for key, schedule in (
        ("daily", ("--cron", "0 9 * * *")),
        ("last", ("--at", "2026-03-06T09:00:00Z")),
        ("weekdays", ("--cron", "0 9 * * *", "--exclude-calendar", "weekend")),
    ):
        tidewheel(clocked, "admin", "calendar", "put", "weekend", "--weekdays", "SAT,SUN")
        assert tidewheel(clocked, "job", "create", key, *schedule, "--handler", "h").code == 0
    fire_due(clocked, lookahead=timedelta(seconds=5))
    for key in ("daily", "last", "weekdays"):
        assert next_of(clocked, key) == ("2026-03-06T09:00:00Z",) * 2
    clocked.stop_clock(datetime(2026, 3, 6, 9, 0, 1, tzinfo=UTC))
    assert next_of(clocked, "daily") == ("2026-03-07T09:00:00Z",) * 2
    assert next_of(clocked, "last") == (None, None)
    assert next_of(clocked, "weekdays") == ("2026-03-09T09:00:00Z",) * 2, "the weekend is only looked at"


def test_lists_of_an_unknown_tenant_are_refused(database: Database) -> None:
    for noun in ("job", "admin calendar", "work"):
        [refusal] = tidewheel(database, *noun.split(), "list", "--tenant", "nobody").refusals
        assert refusal == "tenant: there is no tenant 'nobody'; name another tenant, or create this one"
        assert tidewheel(database, *noun.split(), "list").code == 0


def test_row_is_one_line_without_a_terminal(database: Database) -> None:
    key = "a-key-of-many-words-" * 8
    crons = ("--cron", "0 9 * * MON", "--cron", "30 14 * * TUE", "--cron", "45 16 * * WED")
    assert tidewheel(database, "job", "create", key, *crons, "--handler", "h").code == 0
    heading, row, total = tidewheel(database, "job", "list").lines
    assert total == "1 of 1 job"
    assert row.startswith(f"{key}  0 9 * * MON, 30 14 * * TUE, 45 16 * * WED  active  ")
    assert heading.index("state") == row.index("active")


def test_repeated_key_in_a_file_is_refused(database: Database) -> None:
    text = '{"key": "dup", "key": "dup2", "schedule": "manual", "target": "h"}'
    for command in ("create", "update", "preview"):
        [refusal] = tidewheel(database, "job", command, "-f", "-", stdin=text).refusals
        assert refusal.startswith("key: 'key' is given twice in one object; ")
    text = '{"key": "dup", "retry": {"max_attempts": 2}, "retry": {}, "schedule": "manual", "target": "h"}'
    [refusal] = tidewheel(database, "job", "create", "-f", "-", "--max-attempts", 3, stdin=text).refusals
    assert refusal.startswith("retry: 'retry' is given twice")
    assert database.count("jobs") == 0


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
