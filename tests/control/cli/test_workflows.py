"""`tidewheel apply` loads a graph from one file, and `tidewheel workflow` shows its occurrences."""

from datetime import UTC, datetime
from pathlib import Path

from tests.control.cli.command import json_output, tidewheel
from tests.fixtures.database import Database
from tests.transitions.graphs import after, play, put
from tidewheel.control.cli.exit_codes import ExitCode
from tidewheel.runs import RunState

# Children first: `apply` sorts them.
GRAPH = """
- {key: report, schedule: {after: [load, {job: check, when: always}]}, target: report}
- {key: alarm, schedule: {after: [{job: check, when: failure}]}, target: alarm}
- {key: load, schedule: {after: extract}, target: load}
- {key: check, schedule: {after: [extract]}, target: check}
- {key: extract, schedule: "0 3 * * *", target: extract}
"""


def test_a_graph_of_one_file_is_applied_run_shown_resumed_and_pruned(database: Database, tmp_path: Path) -> None:
    file = tmp_path / "graph.yaml"
    file.write_text(GRAPH)
    *_, planned = tidewheel(database, "apply", file, "--dry-run").lines
    assert planned.endswith(": 5 created, 0 updated, 0 unchanged, 0 rejected")
    assert tidewheel(database, "apply", file).lines[-1].startswith("5 created")
    assert tidewheel(database, "apply", file).lines[-1].startswith("0 created, 0 updated, 5 unchanged")
    root = database.trigger("extract")
    play(database, lambda key: RunState.FAILED if key == "check" else RunState.SUCCEEDED)
    [listed] = json_output(database, "workflow", "list", "extract")["workflows"]
    assert (listed["root_run_id"], listed["state"], listed["failed"]) == (str(root), "failed", 1)
    shown = tidewheel(database, "workflow", "show", str(root))
    drawn = shown.lines[shown.lines.index("") + 1 :]
    assert {line.partition("(")[0].strip(" │├└─") for line in drawn} == {
        "+ extract  succeeded", "x check  failed", "+ alarm  succeeded", "+ load  succeeded", "+ report  succeeded",
    }  # fmt: skip
    assert any(line.endswith("└─ + alarm  succeeded  (on failure)") for line in drawn)
    states = {node["key"]: node["state"] for node in json_output(database, "workflow", "show", str(root))["nodes"]}
    assert states == dict.fromkeys(("extract", "load", "alarm", "report"), "succeeded") | {"check": "failed"}
    assert tidewheel(database, "workflow", "resume", str(root)).lines == [f"workflow {root}: resumed"]
    assert tidewheel(database, "workflow", "pause", str(root)).lines == [f"workflow {root}: paused"]
    assert tidewheel(database, "workflow", "cancel", str(root)).lines == [f"workflow {root}: cancelled"]
    file.write_text("- {key: extract, schedule: manual, target: extract}")
    assert tidewheel(database, "apply", file, "--prune", "--all").code == ExitCode.DONE
    assert database.rows("SELECT key FROM jobs WHERE deleted_at IS NULL") == [("extract",)]


def test_a_child_is_created_by_flags_previewed_and_found_by_its_kind(database: Database) -> None:
    flags = ("--after", "extract", "--after", "check=always", "--handler", "report")
    tidewheel(database, "job", "create", "extract", "--manual", "--handler", "h")
    tidewheel(database, "job", "create", "check", "--after", "extract=failure", "--handler", "h")
    previewed = tidewheel(database, "job", "preview", "report", *flags).out
    assert "After extract, check (always): one run for each occurrence of their root." in " ".join(previewed.split())
    assert tidewheel(database, "job", "create", "report", *flags).code == ExitCode.DONE
    assert "after extract, check (always)" in tidewheel(database, "job", "show", "report").out
    listed = json_output(database, "job", "list", "--kind", "after")["jobs"]
    assert [job["key"] for job in listed] == ["check", "report"]
    [refusal] = tidewheel(database, "job", "create", "x", "--manual", *flags).refusals
    assert "--after and --manual cannot be combined" in refusal


def test_occurrences_are_a_table_at_80_columns(database: Database) -> None:
    put(database, {"extract-orders": [], "b": after("extract-orders")})
    root = database.trigger("extract-orders")
    play(database, lambda key: RunState.FAILED if key == "b" else RunState.SUCCEEDED)
    heading, row = tidewheel(database, "workflow", "list", columns=80).out.splitlines()
    assert heading.replace("\x1b[1m", "").startswith("root run ")
    assert row.startswith(f"{root}  extract-orders  ")
    old = datetime(2026, 3, 6, 9, 0, 1, 250_000, tzinfo=UTC)
    database.execute("UPDATE workflows SET scheduled_at = %s, pending = 3", [old])
    assert len(tidewheel(database, "workflow", "list", columns=80).out.splitlines()) == 2


def test_pages_of_occurrences_follow_one_another(database: Database) -> None:
    put(database, {"a": [], "b": after("a")})
    roots = [database.trigger("a") for _ in range(3)]
    play(database)
    for of in ([], ["a"], ["--state", "succeeded"]):
        *_, more = tidewheel(database, "workflow", "list", *of, "-n", "2").lines
        *_, last = tidewheel(database, "workflow", "list", *of, *more.removeprefix("more: add ").split()).lines
        assert last.startswith(str(roots[0])), of
    assert tidewheel(database, "workflow", "list", "--state", "failed").lines == ["no workflows"]
    wrong = tidewheel(database, "workflow", "list", "--after", "2026-11-20T01:00:00.000Z/7")
    assert "is not a place in a list" in wrong.err


def test_an_unknown_occurrence_is_refused(database: Database) -> None:
    done = tidewheel(database, "workflow", "show", "01a1f89d-7409-8c4e-9632-26f1249891bd")
    assert done.code == ExitCode.NOT_FOUND
    assert "there is no workflow with the root run" in done.err
