"""`tidewheel explain`, on a real database with a stopped clock."""

from datetime import UTC, datetime, timedelta

import pytest

from tests.control.cli.command import json_output, tidewheel
from tests.fixtures.database import ClockedDatabase
from tests.scheduler.firing import fire_due

BERLIN = ("--tz", "Europe/Berlin")


@pytest.fixture
def nightly(clocked: ClockedDatabase) -> ClockedDatabase:
    """A job that is due in a night in which its time does not exist."""
    clocked.stop_clock(datetime(2026, 3, 28, 23, tzinfo=UTC))
    done = tidewheel(clocked, "job", "create", "nightly", "--cron", "30 2 * * *", *BERLIN, "--handler", "send-email")
    assert done.code == 0, done.err
    return clocked


def explained(database: ClockedDatabase, at: str) -> list[str]:
    return tidewheel(database, "explain", "nightly", "--at", at, *BERLIN).lines


def test_future_occurrence_is_explained_with_its_clock_change(nightly: ClockedDatabase) -> None:
    lines = explained(nightly, "2026-03-29T03:00")
    assert lines[0] == "nightly at 2026-03-29T01:00:00Z  Sun 2026-03-29T03:00:00+02:00 CEST: scheduled"
    assert any(line.startswith("! 2026-03-29 02:30 does not exist") for line in lines)
    found = json_output(nightly, "explain", "nightly", "--at", "2026-03-29T01:00:00Z")
    for same in ("2026-03-29T01:00Z", "2026-03-29T03:00+02:00"):
        assert json_output(nightly, "explain", "nightly", "--at", same) == found
    assert (found["outcome"], found["at"]) == ("scheduled", "2026-03-29T01:00:00Z")
    assert (found["local"], found["zone"]) == ("2026-03-29T03:00:00+02:00", "Europe/Berlin")
    assert found["version"]["number"] == 1


@pytest.mark.landing
@pytest.mark.parametrize("at", ["2026-03-30T02:30", "30 Mar 2026 2:30"])
def test_a_time_without_an_offset_is_one_of_the_zone_of_the_job(nightly: ClockedDatabase, at: str) -> None:
    same = json_output(nightly, "explain", "nightly", "--at", "2026-03-30T00:30Z")
    assert same["outcome"] == "scheduled"
    assert json_output(nightly, "explain", "nightly", "--at", at) == same
    done = tidewheel(nightly, "job", "skip", "nightly", "--at", at)
    assert done.lines[0].startswith("nightly: skips 2026-03-30T00:30:00Z")
    assert tidewheel(nightly, "job", "unskip", "nightly", "--at", at).code == 0
    done = tidewheel(nightly, "job", "move", "nightly", "--at", at, "--to", "2026-03-30T04:00")
    assert "moves 2026-03-30T00:30:00Z" in done.lines[0]
    assert "to 2026-03-30T02:00:00Z" in done.lines[0]


def test_key_alone_explains_the_last_due_instant_and_the_next(nightly: ClockedDatabase) -> None:
    first = tidewheel(nightly, "explain", "nightly", *BERLIN).lines
    assert first[0].startswith("nightly at 2026-03-29T01:00:00Z"), "nothing was due before the job was created"
    nightly.advance(timedelta(hours=3))
    fire_due(nightly)
    found = json_output(nightly, "explain", "nightly")
    assert (found["last"]["at"], found["last"]["outcome"]) == ("2026-03-29T01:00:00Z", "fired")
    assert (found["next"]["at"], found["next"]["outcome"]) == ("2026-03-30T00:30:00Z", "scheduled")
    lines = tidewheel(nightly, "explain", "nightly").lines
    assert [line.rpartition(": ")[2] for line in lines if line.startswith("nightly at ")] == ["fired", "scheduled"]


def test_time_without_an_occurrence_differs_from_one_in_which_all_fired(nightly: ClockedDatabase) -> None:
    def lines(key: str) -> list[str]:
        return tidewheel(nightly, "explain", key, "--last", "24h").lines

    none, following = lines("nightly")
    assert none == "the job has had no occurrence since 2026-03-27T23:00:00Z"
    assert following.startswith("the next is 2026-03-29T01:00:00Z")
    assert tidewheel(nightly, "job", "create", "by-hand", "--manual", "--handler", "h").code == 0
    nightly.advance(timedelta(seconds=1))
    assert lines("by-hand")[1:] == ["The job's schedule is manual: triggers create its runs. It never fires by itself."]
    nightly.advance(timedelta(hours=3))
    fire_due(nightly)
    assert lines("nightly") == ["every occurrence since 2026-03-28T02:00:01Z fired"]


def test_everything_that_did_not_fire_is_listed_with_its_reason(nightly: ClockedDatabase) -> None:
    def unfired(*flags: object) -> list[tuple[str, str]]:
        found = json_output(nightly, "explain", "nightly", "--last", *flags)
        return [(each["at"], each["reason"]) for each in found["unfired"]]

    assert unfired("24h") == []
    assert tidewheel(nightly, "job", "skip", "nightly", "--at", "2026-03-29T01:00:00Z").code == 0
    nightly.advance(timedelta(days=1))
    fire_due(nightly)
    assert unfired("24h") == [("2026-03-29T01:00:00Z", "manual")]
    assert tidewheel(nightly, "job", "pause", "nightly").code == 0
    nightly.advance(timedelta(days=2))
    fire_due(nightly)
    assert unfired("48h") == [("2026-03-30T00:30:00Z", "paused")]
    assert tidewheel(nightly, "job", "resume", "nightly").code == 0
    fire_due(nightly)
    assert unfired("72h") == [("2026-03-30T00:30:00Z", "paused"), ("2026-03-29T01:00:00Z", "manual")]
    lines = tidewheel(nightly, "explain", "nightly", "--last", "72h", *BERLIN).lines
    assert lines[0].startswith("2026-03-30T00:30:00Z  Mon 2026-03-30T02:30:00+02:00 CEST")
    assert tidewheel(nightly, "explain", "nightly", "--last", "1d", "--at", "now").refusal.startswith("--last: ")
