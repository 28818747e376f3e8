"""`tidewheel job skip | move | unskip | rollback`, on a real database."""

import pytest

from tests.control.cli.command import json_output, tidewheel
from tests.fixtures.database import Database
from tidewheel.control.cli.exit_codes import ExitCode

NEXT = "2099-07-01T06:00:00Z"
BERLIN = ("--tz", "Europe/Berlin")


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


def test_one_future_occurrence_is_moved(yearly: Database) -> None:
    moved = json_output(yearly, "job", "move", "yearly", "--at", NEXT, "--to", "2099-07-02T08:00", *BERLIN)
    assert (moved["key"], moved["next_run_at"]) == ("yearly", "2099-07-02T06:00:00Z")
    assert "moves 2099-07-01T06:00:00Z to 2099-07-03T06:00:00Z" in (
        tidewheel(yearly, "job", "move", "yearly", "--at", NEXT, "--to", "2099-07-03T06:00:00Z").out
    )


def test_instant_without_an_occurrence_is_refused_with_the_nearest(yearly: Database) -> None:
    for command in (("skip",), ("move", "--to", NEXT)):
        refusals = tidewheel(yearly, "job", command[0], "yearly", "--at", "2099-07-01T07:00:00Z", *command[1:]).refusals
        assert any("2099-07-01T06:00:00" in line for line in refusals)


def test_instants_of_a_skip_are_parsed_before_any_query(yearly: Database) -> None:
    [refusal] = tidewheel(yearly, "job", "move", "yearly", "--at", NEXT, "--to", "noon").refusals
    assert refusal.startswith("--to: 'noon' is not a time; write 04:03, 3am, yesterday")
    assert tidewheel(yearly, "job", "move", "yearly", "--at", NEXT).code == 2


def test_a_job_is_rolled_back(yearly: Database) -> None:
    first = json_output(yearly, "job", "show", "yearly")["job"]
    assert json_output(yearly, "job", "update", "yearly", "--cron", "0 9 1 7 *", "--payload", "1")["version"] == 2
    done = tidewheel(yearly, "job", "rollback", "yearly", "1", "--if-version", "2").lines
    assert done[0].startswith("yearly: rolled back to version 1 (saved as version 3); next 2099-07-01T06:00:00Z")
    assert json_output(yearly, "job", "show", "yearly")["job"] == first
    refusals = tidewheel(yearly, "job", "rollback", "yearly", "2", "--if-version", "2").refusals
    assert any(line.startswith("if_version: ") for line in refusals)
    refusals = tidewheel(yearly, "job", "rollback", "yearly", "9").refusals
    assert any(line.startswith("version: ") for line in refusals)
