"""`tidewheel freeze | thaw | freezes`: scopes, operators and reasons, and refusals with what works."""

from tests.control.cli.command import json_output, tidewheel
from tests.fixtures.database import Database


def test_freeze_is_listed_with_author_reason_and_what_waits(database: Database) -> None:
    database.submit(queue="reports")
    database.trigger()
    frozen = tidewheel(database, "freeze", "--queue", "reports", "--reason", "printer swap", "--by", "anna")
    assert frozen.lines == ["frozen"]
    assert tidewheel(database, "freeze", "--queue", "reports").lines == ["unchanged: this scope is already frozen"]
    [found] = json_output(database, "freeze", "list")["freezes"]
    freeze = found["freeze"]
    assert (freeze["tenant"], freeze["queue"], freeze["by"], freeze["reason"]) == (
        "default", "reports", "anna", "printer swap",
    )  # fmt: skip
    assert (found["waiting"], found["held"], found["jobs"]) == (1, 0, None)
    [heading, row] = tidewheel(database, "freeze", "list").lines
    assert heading.split("  ")[0] == "scope"
    assert row.startswith("queue reports of tenant default")
    assert tidewheel(database, "thaw", "--queue", "reports").lines == ["thawed"]
    assert tidewheel(database, "freeze", "list").lines == ["nothing is frozen"]


def test_scopes_that_fit_nothing_or_everything_are_refused(database: Database) -> None:
    assert tidewheel(database, "freeze", "--reason", "none").refusals == [
        "scope: is missing; write --fleet, --all, --queue, --label or --key-prefix; "
        "`tidewheel job pause KEY` holds one job"
    ]
    [both] = tidewheel(database, "freeze", "--fleet", "--label", "a=b").refusals
    assert both.startswith("labels: labels and keys belong to the jobs of one tenant")
    [unknown] = tidewheel(database, "thaw", "--all").refusals
    assert unknown == "scope: no freeze in force has this scope; copy the exact scope from the list of freezes"


def test_freeze_of_the_fleet_needs_a_yes_where_nobody_can_answer(database: Database) -> None:
    [refusal] = tidewheel(database, "freeze", "--fleet").refusals
    assert refusal == "--yes: is missing: hold the new runs of all tenants?; add --yes"
    assert json_output(database, "freeze", "list")["freezes"] == []
    assert tidewheel(database, "freeze", "--fleet", "--yes").lines == ["frozen"]


def test_thaw_shows_first_what_it_would_do_and_is_repeatable_by_its_id(database: Database) -> None:
    assert tidewheel(database, "freeze", "--label", "team=billing", "--label", "tier=1").lines == ["frozen"]
    scope = ("--label", "team=billing", "--label", "tier=1")
    assert tidewheel(database, "thaw", *scope, "--dry-run").lines == ["No occurrence came due during the freeze."]
    for _ in range(2):
        assert tidewheel(database, "thaw", *scope, "--request-id", "once").lines == ["thawed"]
