"""`tidewheel batch` submits the batch of a file, draws it, and adds to it."""

from pathlib import Path

import pytest

from tests.control.cli.command import json_output, tidewheel
from tests.fixtures.database import Database
from tests.transitions.graphs import play
from tidewheel.control.cli.exit_codes import ExitCode
from tidewheel.runs import RunState

BATCH = """
open: true
runs:
  - {ref: load, key: job, payload: {n: 1}}
  - {ref: check, key: bad, after: [load]}
  - {ref: report, key: job, after: [load, {ref: check, when: failure}]}
on:
  failed: {key: job, payload: {channel: ops}}
"""


def test_a_batch_of_a_file_is_submitted_drawn_extended_and_closed(database: Database, tmp_path: Path) -> None:
    database.submit()
    database.submit("bad", retry={"max_attempts": 1})
    file = tmp_path / "batch.yaml"
    file.write_text(BATCH)
    batch = json_output(database, "batch", "submit", "-f", file)["batch_id"]
    assert tidewheel(database, "batch", "submit", "-f", file, "--request-id", "r-1").lines[0].endswith(": submitted")
    play(database, lambda key: RunState.FAILED if key == "bad" else RunState.SUCCEEDED)
    drawn = tidewheel(database, "batch", "show", batch).lines
    assert drawn[drawn.index("") + 1 :] == [
        "+ load  succeeded",
        "└─ x check  failed",
        "   └─ + report  succeeded  (on failure, and load)",
    ]
    more = tmp_path / "more.json"
    more.write_text('{"runs": [{"ref": "more", "key": "job", "after": ["report"]}]}')
    assert tidewheel(database, "batch", "add", batch, "-f", more).lines == [f"batch {batch}: runs added"]
    assert "unchanged" in tidewheel(database, "batch", "add", batch, "-f", more).lines[0]
    assert tidewheel(database, "batch", "close", batch).lines == [f"batch {batch}: closed"]
    play(database)
    shown = json_output(database, "batch", "show", batch)
    assert (shown["summary"]["state"], shown["summary"]["total"], shown["summary"]["failed"]) == ("failed", 4, 1)
    assert {run["ref"]: run["state"] for run in shown["runs"]}["more"] == "succeeded"
    listed = json_output(database, "batch", "list")["batches"]
    assert [one["state"] for one in listed] == ["open", "failed"]
    assert json_output(database, "workflow", "list")["workflows"] == []
    assert tidewheel(database, "batch", "resume", batch).lines == [f"batch {batch}: resumed"]
    assert tidewheel(database, "batch", "resume", batch).lines == [f"batch {batch}: unchanged: the batch is open"]
    play(database)
    listed = json_output(database, "batch", "list")["batches"]
    assert [(one["state"], one["succeeded"], one["failed"]) for one in listed] == [("open", 2, 1), ("succeeded", 4, 0)]
    assert "1 time" in tidewheel(database, "batch", "show", batch).out
    done = tidewheel(database, "batch", "resume", batch)
    assert (done.code, "no run of the batch failed" in done.err) == (ExitCode.REFUSED, True)
    other = listed[0]["batch_id"]
    assert tidewheel(database, "batch", "cancel", other).lines == [f"batch {other}: cancelled"]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("runs: []", "runs: is empty"),
        ("run: []", "has no field 'run'"),
        ("runs: [{ref: a, key: gone}]", "runs.0.key: tenant 'default' has no job 'gone'"),
        ("runs: [{ref: a, key: a, after: [a]}]", "the runs form a cycle: a → a"),
        ("[]", "write an object with runs, on, open"),
    ],
)
def test_a_file_that_is_no_batch_is_refused(database: Database, tmp_path: Path, text: str, found: str) -> None:
    file = tmp_path / "batch.yaml"
    file.write_text(text)
    done = tidewheel(database, "batch", "submit", "-f", file)
    assert done.code != ExitCode.DONE
    assert found in done.err


def test_an_unknown_batch_is_not_found(database: Database) -> None:
    for command in ("show", "close", "resume", "cancel"):
        done = tidewheel(database, "batch", command, "01a1f89d-7409-8c4e-9632-26f1249891bd")
        assert done.code == ExitCode.NOT_FOUND
        assert "there is no batch" in done.err
