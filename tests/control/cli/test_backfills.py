"""`tidewheel job backfill` and `tidewheel backfill`, on a real database."""

from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from tests.control.cli.command import json_output, tidewheel
from tests.fixtures.database import ClockedDatabase
from tests.scheduler.firing import fire_due
from tidewheel.control.cli.exit_codes import ExitCode

RANGE = ("--from", "2026-03-28T12:00", "--to", "2026-03-29T12:00", "--tz", "Europe/Berlin")


@pytest.fixture
def hourly(clocked: ClockedDatabase) -> ClockedDatabase:
    """An hourly job that nothing was made up for; its range holds a day of 23 hours."""
    clocked.stop_clock(datetime(2026, 3, 28, 10, tzinfo=UTC))
    done = tidewheel(
        clocked, "job", "create", "hourly", "--cron", "0 * * * *", "--tz", "Europe/Berlin", "--handler", "send-email",
        "--catch-up", "skip",
    )  # fmt: skip
    assert done.code == 0, done.err
    clocked.advance(timedelta(days=3))
    fire_due(clocked)
    return clocked


def test_a_past_range_is_backfilled_shown_paused_resumed_and_cancelled(hourly: ClockedDatabase) -> None:
    made = json_output(hourly, "job", "backfill", "hourly", *RANGE, "--max-concurrent", 2, "--reason", "an outage")
    backfill_id = made["backfill_id"]
    assert (made["key"], made["occurrences"], made["unchanged"]) == ("hourly", 24, False)
    [listed] = json_output(hourly, "backfill", "list", "hourly")["backfills"]
    assert (listed["backfill_id"], listed["state"], listed["max_concurrent"]) == (backfill_id, "running", 2)
    assert (listed["first_at"], listed["last_at"]) == ("2026-03-28T11:00:00Z", "2026-03-29T10:00:00Z")
    assert tidewheel(hourly, "backfill", "pause", backfill_id).lines == [f"backfill {backfill_id}: paused"]
    again = json_output(hourly, "backfill", "pause", backfill_id)
    assert (again["unchanged"], again["status"]) == (True, "paused")
    assert tidewheel(hourly, "backfill", "pause", backfill_id).lines == [
        f"backfill {backfill_id}: unchanged: the backfill is already paused"
    ]
    assert json_output(hourly, "backfill", "show", backfill_id)["state"] == "paused"
    assert not json_output(hourly, "backfill", "resume", backfill_id)["unchanged"]
    assert tidewheel(hourly, "backfill", "cancel", backfill_id, "--reason", "no need").lines == [
        f"backfill {backfill_id}: cancelled"
    ]
    for command in ("pause", "resume"):
        too_late = tidewheel(hourly, "backfill", command, backfill_id)
        assert (too_late.code, too_late.out) == (
            ExitCode.REFUSED,
            f"backfill {backfill_id}: unchanged: the backfill is cancelled\n",
        )
        assert '"status": "cancelled"' in tidewheel(hourly, "backfill", command, backfill_id, "--output", "json").out
    assert tidewheel(hourly, "backfill", "cancel", backfill_id).code == 0
    shown = tidewheel(hourly, "backfill", "show", backfill_id, "--tz", "Europe/Berlin").lines
    assert any(line.startswith("state ") and line.endswith("cancelled") for line in shown)
    assert any("2026-03-28T11:00:00Z  Sat 2026-03-28T12:00:00+01:00 CET" in line for line in shown)
    lines = tidewheel(hourly, "backfill", "list").lines
    assert lines[0].split() == ["id", "key", "state", "processed", "runs"]
    assert lines[1].split()[:3] == [backfill_id, "hourly", "cancelled"]


def test_show_follows_a_backfill_to_its_end(hourly: ClockedDatabase) -> None:
    backfill_id = json_output(hourly, "job", "backfill", "hourly", *RANGE)["backfill_id"]
    assert tidewheel(hourly, "backfill", "cancel", backfill_id).code == 0
    done = tidewheel(hourly, "backfill", "show", backfill_id, "--follow")
    assert done.code == ExitCode.FAILED
    assert ["state", "cancelled"] in [line.split() for line in done.out.splitlines()]


def test_dry_run_only_counts(hourly: ClockedDatabase) -> None:
    assert tidewheel(hourly, "job", "backfill", "hourly", *RANGE, "--dry-run").lines == ["24 occurrences would be run"]
    made = json_output(hourly, "job", "backfill", "hourly", *RANGE, "--dry-run", "--what", "all")
    assert (made["backfill_id"], made["occurrences"]) == (None, 24)
    assert tidewheel(hourly, "backfill", "list").lines == ["no backfills"]


def test_repeated_request_returns_the_same_backfill(hourly: ClockedDatabase) -> None:
    ask = ("job", "backfill", "hourly", *RANGE, "--request-id", "b-1")
    assert json_output(hourly, *ask)["backfill_id"] == json_output(hourly, *ask)["backfill_id"]


def test_invalid_backfill_request_is_refused(hourly: ClockedDatabase) -> None:
    ask = ("job", "backfill", "hourly")
    [refusal] = tidewheel(hourly, *ask, "--from", "2026-03-29T00:00:00Z", "--to", "2026-03-28T00:00:00Z").refusals
    assert refusal == "to: it lies before from; exchange the two"
    [refusal] = tidewheel(hourly, *ask, *RANGE, "--what", "missing").refusals
    assert refusal.startswith("what: 'missing' is not valid; did you mean 'missing_only'?")
    for command in ("show", "pause", "resume", "cancel"):
        refusals = tidewheel(hourly, "backfill", command, uuid4()).refusals
        assert refusals[0].startswith("backfill_id: ")
        assert tidewheel(hourly, "backfill", command, "b-1").code == 2


def test_list_of_an_unknown_job_or_tenant_is_refused(hourly: ClockedDatabase) -> None:
    [refusal] = tidewheel(hourly, "backfill", "list", "nope").refusals
    assert refusal.startswith("key: tenant 'default' has no job 'nope'")
    [refusal] = tidewheel(hourly, "backfill", "list", "--tenant", "nobody").refusals
    assert refusal.startswith("tenant: there is no tenant 'nobody'")
