"""Next occurrences and unknown tenants in lists; repeated keys and durations in files and flags."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

from tests.control.cli.command import json_output, tidewheel
from tests.fixtures.database import ClockedDatabase, Database
from tests.scheduler.firing import fire_due
from tidewheel.control.cli.run_output import run_row
from tidewheel.nouns.runs.model import RunSummary


def next_of(database: Database, key: str) -> tuple[str | None, str | None]:
    """Return the next occurrence by `show`, and by `list`."""
    jobs = {job["key"]: job["next_at"] for job in json_output(database, "job", "list")["jobs"]}
    return json_output(database, "job", "show", key)["next_at"], jobs[key]


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


def test_bare_number_is_seconds(database: Database) -> None:
    made = ("job", "create", "a", "--every", "10", "--window", "90.5", "--jitter", "2", "--start-to-close", "30")
    assert tidewheel(database, *made, "--handler", "h").code == 0
    job = json_output(database, "job", "show", "a")
    assert job["schedule"]["interval_us"] == 10_000_000
    assert tidewheel(database, "job", "update", "a", "--fixed-delay", "2.5").code == 0
    assert json_output(database, "job", "show", "a")["schedule"]["interval_us"] == 2_500_000


def test_repeated_key_in_a_file_is_refused(database: Database) -> None:
    text = '{"key": "dup", "key": "dup2", "schedule": "manual", "target": "h"}'
    for command in ("create", "update", "preview"):
        [refusal] = tidewheel(database, "job", command, "-f", "-", stdin=text).refusals
        assert refusal.startswith("key: 'key' is given twice in one object; ")
    text = '{"key": "dup", "retry": {"max_attempts": 2}, "retry": {}, "schedule": "manual", "target": "h"}'
    [refusal] = tidewheel(database, "job", "create", "-f", "-", "--max-attempts", 3, stdin=text).refusals
    assert refusal.startswith("retry: 'retry' is given twice")
    assert database.count("jobs") == 0


def test_error_that_is_its_own_reason_is_shown_once() -> None:
    now = datetime(2026, 3, 6, tzinfo=UTC)
    run = RunSummary(
        UUID(int=1), "job", UUID(int=2), 1, "failed", "trigger", "default", "standard", 1, now, now, None, now, now,
        "unknown_outcome", "unknown_outcome", None, None,
    )  # fmt: skip
    assert run_row(run)[-1] == "unknown_outcome"
    assert run_row(replace(run, reason="max_lost", error_type="Lost"))[-1] == "Lost: max_lost"
