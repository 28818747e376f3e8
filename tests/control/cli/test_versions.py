"""`tidewheel job versions | diff`, on a real database."""

import pytest

from tests.control.cli.command import json_output, tidewheel
from tests.fixtures.database import Database


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


def test_versions_are_listed_with_their_changes(edited: Database) -> None:
    found = json_output(edited, "job", "versions", "a")
    assert found["key"] == "a"
    assert [version["number"] for version in found["versions"]] == [3, 2, 1]
    assert [change["path"] for change in found["versions"][1]["changes"]] == ["schedule.cron"]
    assert found["versions"][0]["until"] is None
    assert found["versions"][1]["until"] == found["versions"][0]["effective_at"]
    lines = tidewheel(edited, "job", "versions", "a").lines
    assert [line.split()[0] for line in lines] == ["version", "3", "2", "1"]
    assert lines[1].endswith("labels.team, payload")
    assert all(len(line) <= 100 for line in lines)
    assert [
        each["number"] for each in json_output(edited, "job", "versions", "a", "-n", 1, "--before", 3)["versions"]
    ] == [2]


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
        [refusal] = tidewheel(edited, "job", *command).refusals
        assert refusal.startswith("key: tenant 'default' has no job 'b'")
