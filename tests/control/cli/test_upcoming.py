"""`tidewheel job next | preview`, on a real database with a stopped clock."""

from datetime import UTC, datetime

import pytest

from tests.control.cli.command import json_output, tidewheel
from tests.fixtures.database import ClockedDatabase

BERLIN = ("--tz", "Europe/Berlin")
NIGHTLY = ("--cron", "30 2 * * *", *BERLIN)
SUNDAY = "2026-03-29T01:00:00Z  Sun 2026-03-29T03:00:00+02:00 CEST"
MONDAY = "2026-03-30T00:30:00Z  Mon 2026-03-30T02:30:00+02:00 CEST"
MISSING = "    ! 2026-03-29 02:30 does not exist: fires at 03:00 instead (DST gap 02:00 to 03:00)"


@pytest.fixture
def spring(clocked: ClockedDatabase) -> ClockedDatabase:
    """A database on the eve of a clock change."""
    clocked.stop_clock(datetime(2026, 3, 28, 23, tzinfo=UTC))
    return clocked


def test_next_occurrences_are_shown_with_every_effect_of_clock_changes(spring: ClockedDatabase) -> None:
    assert tidewheel(spring, "job", "create", "nightly", *NIGHTLY, "--handler", "h").code == 0
    assert tidewheel(spring, "job", "next", "nightly", "-n", 2).lines == [SUNDAY, MISSING, MONDAY]
    found = json_output(spring, "job", "next", "nightly", "-n", 2)
    assert (found["key"], found["zone"], found["now"]) == ("nightly", "Europe/Berlin", "2026-03-28T23:00:00Z")
    assert [each["at"] for each in found["occurrences"]] == ["2026-03-29T01:00:00Z", "2026-03-30T00:30:00Z"]
    assert [each["local"][11:] for each in found["occurrences"]] == ["03:00:00+02:00", "02:30:00+02:00"]
    assert found["occurrences"][0]["notes"] == [MISSING.partition("! ")[2]]


def test_skipped_and_moved_occurrences_are_shown(spring: ClockedDatabase) -> None:
    tidewheel(spring, "job", "create", "nightly", *NIGHTLY, "--handler", "h")
    tidewheel(spring, "job", "skip", "nightly", "--at", "2026-03-29T01:00:00Z")
    tidewheel(spring, "job", "move", "nightly", "--at", "2026-03-30T00:30:00Z", "--to", "2026-03-30T12:00:00Z")
    lines = " ".join(tidewheel(spring, "job", "next", "nightly", "-n", 1).lines)
    assert f"{SUNDAY}  skipped manually" in lines
    assert "moved, fires 2026-03-30T12:00:00Z" in " ".join(lines.split())
    assert json_output(spring, "job", "show", "nightly")["next_at"] == "2026-03-30T12:00:00Z"
    [listed] = json_output(spring, "job", "list")["jobs"]
    assert listed["next_at"] == "2026-03-30T12:00:00Z"


def test_reason_for_no_occurrences_is_shown(spring: ClockedDatabase) -> None:
    tidewheel(spring, "job", "create", "manual", "--manual", "--handler", "h")
    [line] = tidewheel(spring, "job", "next", "manual").lines
    assert "triggers" in line
    tidewheel(spring, "job", "create", "nightly", *NIGHTLY, "--handler", "h")
    tidewheel(spring, "job", "pause", "nightly")
    lines = tidewheel(spring, "job", "next", "nightly", "-n", 1).lines
    assert "CEST paused" in " ".join(" ".join(lines).split())
    assert lines[-2].startswith("The job is paused")
    assert tidewheel(spring, "job", "next", "weekly").refusal.startswith("key: tenant 'default' has no job 'weekly'")


def test_unsaved_job_is_previewed_and_not_saved(spring: ClockedDatabase) -> None:
    lines = tidewheel(spring, "job", "preview", *NIGHTLY, "--handler", "h", "-n", 2).lines
    assert lines[-3:] == [SUNDAY, MISSING, MONDAY]
    assert lines[0].startswith("30 2 * * *: at 02:30, every day, in time zone Europe/Berlin.")
    assert all(len(line) <= 100 for line in lines)
    found = json_output(
        spring, "job", "preview", "nightly", *NIGHTLY, "--handler", "h", "--begin-after", "2026-10-24T12:00", "-n", 1
    )
    assert (found["key"], found["version"]) == ("nightly", 1)
    assert found["occurrences"][0]["local"] == "2026-10-25T02:30:00+02:00"
    assert "occurs twice" in found["occurrences"][0]["notes"][0]
    assert spring.count("jobs") == 0


def test_preview_applies_flags_to_the_stored_job(spring: ClockedDatabase) -> None:
    tidewheel(spring, "job", "create", "nightly", *NIGHTLY, "--handler", "h")
    found = json_output(spring, "job", "preview", "nightly", "--cron", "0 8 * * *", "-n", 1)
    assert (found["version"], found["zone"], found["occurrences"][0]["local"]) == (
        2, "Europe/Berlin", "2026-03-29T08:00:00+02:00",
    )  # fmt: skip
    assert json_output(spring, "job", "show", "nightly")["version"] == 1
    text = '{"schedule": {"once": "2026-04-01T00:00:00Z"}, "target": "h"}'
    lines = tidewheel(spring, "job", "preview", "-f", "-", stdin=text).lines
    assert lines[-2:] == ["2026-04-01T00:00:00Z", "no further occurrences"]
