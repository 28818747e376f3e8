"""`tidewheel job explain`, on a real database with a stopped clock."""

from datetime import UTC, datetime, timedelta

import pytest

from tests.control.cli.command import json_output, tidewheel
from tests.fixtures.database import ClockedDatabase
from tests.scheduler.firing import fire_due
from tests.transitions.acts import begin, end, ending, job_runs
from tidewheel.runs import RunState

BERLIN = ("--tz", "Europe/Berlin")


@pytest.fixture
def nightly(clocked: ClockedDatabase) -> ClockedDatabase:
    """A job that is due in a night in which its time does not exist."""
    clocked.stop_clock(datetime(2026, 3, 28, 23, tzinfo=UTC))
    done = tidewheel(clocked, "job", "create", "nightly", "--cron", "30 2 * * *", *BERLIN, "--handler", "send-email")
    assert done.code == 0, done.err
    return clocked


def explained(database: ClockedDatabase, at: str) -> list[str]:
    return tidewheel(database, "job", "explain", "nightly", "--at", at, *BERLIN).lines


def test_future_occurrence_is_explained_with_its_clock_change(nightly: ClockedDatabase) -> None:
    lines = explained(nightly, "2026-03-29T03:00")
    assert lines[0] == "nightly at 2026-03-29T01:00:00Z  Sun 2026-03-29T03:00:00+02:00 CEST: scheduled"
    assert any(line.startswith("! 2026-03-29 02:30 does not exist") for line in lines)
    found = json_output(nightly, "job", "explain", "nightly", "--at", "2026-03-29T01:00:00Z")
    for same in ("2026-03-29T01:00Z", "2026-03-29T03:00+02:00"):
        assert json_output(nightly, "job", "explain", "nightly", "--at", same) == found
    assert (found["outcome"], found["at"]) == ("scheduled", "2026-03-29T01:00:00Z")
    assert (found["local"], found["zone"]) == ("2026-03-29T03:00:00+02:00", "Europe/Berlin")
    assert found["version"]["number"] == 1


def test_fired_occurrence_is_explained_with_its_run_and_attempts(nightly: ClockedDatabase) -> None:
    nightly.advance(timedelta(hours=2))
    assert fire_due(nightly) == 1
    [run] = job_runs(nightly)
    end(nightly, ending(begin(nightly, run.run_id), RunState.FAILED, error_type="ValueError", error_message="no stamp"))
    found = json_output(nightly, "job", "explain", "nightly", "--at", "2026-03-29T03:00", *BERLIN)
    assert (found["outcome"], found["run"]["run_id"], found["run"]["state"]) == ("fired", str(run.run_id), "failed")
    assert found["run"]["attempts"][0]["error_message"] == "no stamp"
    lines = explained(nightly, "2026-03-29T03:00")
    assert lines[0].endswith(": fired")
    assert any(str(run.run_id) in line for line in lines)
    assert lines[-1].split()[:2] == ["1", "failed"]
    assert lines[-1].endswith("ValueError: no stamp")


def test_instant_without_an_occurrence_is_explained_with_its_neighbours(nightly: ClockedDatabase) -> None:
    lines = explained(nightly, "2026-03-30T12:00")
    assert lines[0].endswith(": no occurrence")
    assert any(line.startswith("after ") and "2026-03-31T02:30:00+02:00" in line for line in lines)


def test_unknown_job_is_refused(nightly: ClockedDatabase) -> None:
    [refusal] = tidewheel(nightly, "job", "explain", "weekly", "--at", "2026-03-30T12:00:00Z").refusals
    assert refusal.startswith("key: tenant 'default' has no job 'weekly'")
