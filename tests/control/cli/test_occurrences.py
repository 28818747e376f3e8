"""`tidewheel job`: changes of occurrences, versions, backfills and releases, on a database."""

from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest

from tests.control.cli.command import json_output, tidewheel
from tests.fixtures.acts import submission
from tests.fixtures.database import ClockedDatabase, Database
from tests.scheduler.firing import fire_due
from tidewheel.control.cli.exit_codes import ExitCode
from tidewheel.postgres.faults import MAX_ALIKE

NEXT = "2099-07-01T06:00:00Z"
BERLIN = ("--tz", "Europe/Berlin")
RANGE = ("--from", "2026-03-28T12:00", "--to", "2026-03-29T12:00", "--tz", "Europe/Berlin")


@pytest.fixture
def yearly(database: Database) -> Database:
    """A job that fires at eight on the first of July, from 2099."""
    done = tidewheel(
        database, "job", "create", "yearly", "--cron", "0 8 1 7 *", *BERLIN, "--start-at", "2099-01-01T00:00",
        "--handler", "send-email",
    )  # fmt: skip
    assert done.code == 0, done.err
    return database


def test_one_future_occurrence_is_skipped_and_unskipped(yearly: Database) -> None:
    done = tidewheel(yearly, "job", "skip", "yearly", "--at", "2099-07-01T08:00", *BERLIN, "--reason", "a holiday")
    assert done.lines == [
        "yearly: skips 2099-07-01T06:00:00Z  Wed 2099-07-01T08:00:00+02:00 CEST, version 1; next "
        "2100-07-01T06:00:00Z  Thu 2100-07-01T08:00:00+02:00 CEST"
    ]
    again = json_output(yearly, "job", "skip", "yearly", "--at", NEXT, "--reason", "a holiday")
    assert (again["unchanged"], again["version"], again["next_run_at"]) == (True, 1, "2100-07-01T06:00:00Z")
    back = json_output(yearly, "job", "unskip", "yearly", "--at", NEXT)
    assert (back["unchanged"], back["next_run_at"]) == (False, NEXT)
    assert tidewheel(yearly, "job", "unskip", "yearly", "--at", NEXT).code in (ExitCode.DONE, ExitCode.REFUSED)


def test_instants_of_a_skip_are_parsed_before_any_query(yearly: Database) -> None:
    [refusal] = tidewheel(yearly, "job", "move", "yearly", "--at", NEXT, "--to", "noon").refusals
    assert refusal.startswith("--to: 'noon' is not a time; write 04:03, 3am, yesterday")
    assert tidewheel(yearly, "job", "move", "yearly", "--at", NEXT).code == 2


@pytest.fixture
def edited(database: Database) -> Database:
    """A job of three versions."""
    for command in (
        ("create", "a", "--cron", "0 8 * * *", "--handler", "h", "--payload", "1"),
        ("update", "a", "--cron", "0 9 * * *"),
        ("update", "a", "--label", "team=stock", "--payload", "2"),
    ):
        assert tidewheel(database, "job", *command).code == 0
    return database


def test_two_versions_are_compared(edited: Database) -> None:
    assert tidewheel(edited, "job", "diff", "a", 1, 2).lines == ['schedule.cron: ["0 8 * * *"] -> ["0 9 * * *"]']
    found = json_output(edited, "job", "diff", "a", 2)
    assert (found["from"], found["to"]) == (2, 3)
    assert found["changes"][0] == {"path": "labels.team", "before": None, "after": "stock"}
    assert 'labels.team: unset -> "stock"' in tidewheel(edited, "job", "diff", "a", 2, 3).lines
    assert tidewheel(edited, "job", "diff", "a", 2, 2).lines == ["no differences"]


def test_unknown_version_is_refused(edited: Database) -> None:
    [refusal] = tidewheel(edited, "job", "diff", "a", 1, 9).refusals
    assert refusal == "version: job 'a' has no version 9; write 1 to 3"
    for command in (("versions", "b"), ("diff", "b", 1)):
        assert tidewheel(edited, "job", *command).refusal.startswith("key: tenant 'default' has no job 'b'")


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


@pytest.mark.landing
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
    assert refusal.startswith("key: tenant 'default' has no job 'nope'")


@pytest.fixture
def held(clocked: ClockedDatabase) -> ClockedDatabase:
    """Two quarantined jobs."""
    clocked.stop_clock()
    clocked.apply_batch(*(submission(key, schedule="@every 10s") for key in ("one", "two")))
    clocked.execute("UPDATE job_versions SET lane = 'nonsense'")
    clocked.advance(timedelta(seconds=10))
    fire_due(clocked)
    return clocked


def test_jobs_are_released_by_key_by_error_or_all(held: ClockedDatabase) -> None:
    assert tidewheel(held, "job", "release").refusal.startswith("KEY: no job is selected")
    found = json_output(held, "job", "release", "--error", "CheckViolation", "--dry-run")
    assert (found["matched"], found["released"], [job["key"] for job in found["first"]]) == (2, 0, ["one", "two"])
    lines = tidewheel(held, "job", "release", "--all", "--dry-run").lines
    assert lines[0] == "jobs that would be released: 2"
    assert lines[2].split()[0] == "one"
    assert tidewheel(held, "job", "release", "one").lines[0] == "jobs released: 1"
    assert tidewheel(held, "job", "release", "--error", "CheckViolation").lines[0] == "jobs released: 1"
    assert json_output(held, "job", "release", "--all")["released"] == 0


def test_quarantined_job_is_found_with_its_error(held: ClockedDatabase) -> None:
    held.apply_batch(submission("sound", schedule="@every 10s"))
    found = json_output(held, "job", "list", "--quarantined")["jobs"]
    assert [(job["key"], job["hold_reason"]) for job in found] == [("one", "quarantine"), ("two", "quarantine")]
    assert "CheckViolation" in json_output(held, "job", "show", "one")["error"]
    text = tidewheel(held, "job", "show", "one").out
    assert "CheckViolation" in text
    assert "tidewheel job release one" in text
    assert json_output(held, "job", "show", "sound")["error"] is None
    tidewheel(held, "job", "release", "one")
    assert [job["key"] for job in json_output(held, "job", "list", "--quarantined")["jobs"]] == ["two"]
    assert json_output(held, "job", "show", "one")["error"] is None


def test_postponed_job_is_shown_with_its_next_try_and_remedy(clocked: ClockedDatabase) -> None:
    clocked.stop_clock()
    keys = [f"job-{number}" for number in range(MAX_ALIKE + 1)]
    clocked.apply_batch(*(submission(key, schedule="@every 10s") for key in keys))
    assert json_output(clocked, "job", "show", keys[0])["postponed_until"] is None
    clocked.execute("UPDATE job_versions SET lane = 'nonsense'")
    clocked.advance(timedelta(seconds=10))
    fire_due(clocked)
    for key in keys:
        shown = json_output(clocked, "job", "show", key)
        until, due = (datetime.fromisoformat(shown[name]) for name in ("postponed_until", "next_at"))
        assert until > clocked.now() == due
        text = tidewheel(clocked, "job", "show", key).out
        assert f"postponed until {shown['postponed_until']}" in text
        assert "correct the cause" in text
    rows = [line for line in tidewheel(clocked, "job", "list").lines if line.startswith("job-")]
    assert len(rows) == len(keys)
    assert all("postponed until" in row for row in rows)
