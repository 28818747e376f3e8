"""`tidewheel job backfill`, and `tidewheel work` for backfills, on a real database."""

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
    [listed] = json_output(hourly, "work", "list", "--job", "hourly")["works"]
    assert (listed["work_id"], listed["kind"], listed["state"]) == (backfill_id, "backfill", "running")
    given = [listed["filter"][name] for name in ("from", "to", "max_concurrent")]
    assert given == ["2026-03-28T11:00:00Z", "2026-03-29T10:00:00Z", 2]
    for verb, did in (("pause", "paused"), ("resume", "resumed"), ("cancel", "cancelled")):
        assert tidewheel(hourly, "work", verb, backfill_id).lines == [f"work {backfill_id}: {did}"]
        again = json_output(hourly, "work", verb, backfill_id)
        assert (again["unchanged"], again["status"]) == (True, "running" if verb == "resume" else did)
    for verb in ("pause", "resume"):
        too_late = tidewheel(hourly, "work", verb, backfill_id)
        said = f"work {backfill_id}: unchanged: the work is cancelled\n"
        assert (too_late.code, too_late.out) == (ExitCode.REFUSED, said)
    shown = tidewheel(hourly, "work", "show", backfill_id, "--tz", "Europe/Berlin").lines
    assert any(line.startswith("state ") and line.endswith("cancelled") for line in shown)
    assert any("2026-03-28T11:00:00Z  Sat 2026-03-28T12:00:00+01:00 CET" in line for line in shown)
    assert tidewheel(hourly, "work", "show", backfill_id, "--follow").code == ExitCode.FAILED
    [_, line] = tidewheel(hourly, "work", "list").lines
    assert line.split()[:3] == [backfill_id, "backfill", "hourly"]


def test_dry_run_only_counts(hourly: ClockedDatabase) -> None:
    assert tidewheel(hourly, "job", "backfill", "hourly", *RANGE, "--dry-run").lines == ["24 occurrences would be run"]
    made = json_output(hourly, "job", "backfill", "hourly", *RANGE, "--dry-run", "--what", "all")
    assert (made["backfill_id"], made["occurrences"]) == (None, 24)
    assert tidewheel(hourly, "work", "list").lines == ["no bulk work"]


def test_repeated_request_returns_the_same_backfill(hourly: ClockedDatabase) -> None:
    ask = ("job", "backfill", "hourly", *RANGE, "--request-id", "b-1")
    assert json_output(hourly, *ask)["backfill_id"] == json_output(hourly, *ask)["backfill_id"]


def test_invalid_backfill_request_is_refused(hourly: ClockedDatabase) -> None:
    ask = ("job", "backfill", "hourly")
    [refusal] = tidewheel(hourly, *ask, "--from", "2026-03-29T00:00:00Z", "--to", "2026-03-28T00:00:00Z").refusals
    assert refusal == "to: is before from; swap the two"
    [refusal] = tidewheel(hourly, *ask, *RANGE, "--what", "missing").refusals
    assert refusal.startswith("what: 'missing' is not valid; did you mean 'missing_only'?")
    for command in ("show", "pause", "resume", "cancel"):
        refusals = tidewheel(hourly, "work", command, uuid4()).refusals
        assert refusals[0].startswith("work_id: ")
        assert tidewheel(hourly, "work", command, "b-1").code == 2
    [refusal] = tidewheel(hourly, "work", "list", "--job", "nope").refusals
    assert refusal.startswith("--job: tenant 'default' has no job 'nope'")
