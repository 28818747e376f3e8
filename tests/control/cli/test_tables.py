"""Tables: ids and keys whole at any width, colour and relative times on a terminal only."""

import io
import json
import re
from contextlib import redirect_stdout
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.control.cli.command import Terminal, json_output, tidewheel
from tests.fixtures.acts import ending
from tests.fixtures.database import Database
from tidewheel.clock import SystemClock
from tidewheel.control.cli.output import print_table
from tidewheel.control.cli.tables import Cell, table_lines
from tidewheel.runs import RunState

HEADINGS = ("run", "key", "status", "scheduled", "why")
NOW = datetime(2026, 3, 6, 9, tzinfo=UTC)
RUN = "0199c0de-1234-7abc-8def-0123456789ab"
KEYS = st.text("abcdefghijklmnop.-_/:", min_size=1, max_size=255)
SENTENCES = st.lists(st.text("abcdefgh", min_size=1, max_size=12), max_size=40).map(" ".join)


def printed(monkeypatch: pytest.MonkeyPatch, rows: list[tuple[Cell, ...]], **environment: str) -> str:
    """Return the text that a terminal receives."""
    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"COLUMNS": "120", **environment}.items():
        monkeypatch.setenv(name, value)
    with redirect_stdout(Terminal()) as out:
        print_table(HEADINGS, rows)
    return out.getvalue()


@given(
    columns=st.sampled_from([40, 80, 100, 120, 160]), rows=st.lists(st.tuples(KEYS, SENTENCES), min_size=1, max_size=5)
)
def test_ids_and_keys_are_whole_at_any_width(columns: int, rows: list[tuple[str, str]]) -> None:
    lines = list(table_lines(HEADINGS, [(RUN, key, "failed", NOW, why) for key, why in rows], columns=columns))
    words = [word for line in lines for word in line.split()]
    assert words.count(RUN) == len(rows)
    for key, why in rows:
        assert key in words
        assert not set(why.split()) - set(words)
    longest = max(len(RUN), *(len(key) for key, _ in rows)) + len("scheduled  ")
    assert all(len(line) <= max(columns, longest) for line in lines)


def test_a_narrow_table_of_ordinary_rows_has_its_sentences_below_them() -> None:
    why = "no live executor of queue default has handler send-email"
    rows = [(RUN, "daily-report", "queued", NOW, why), (RUN, "daily", "succeeded", NOW, "")]
    lines = list(table_lines(HEADINGS, rows, columns=80, now=NOW))
    assert lines[0].split() == ["run", "key", "status", "scheduled"]
    assert [line.split()[0] for line in lines[1:]] == [RUN, "why:", RUN]
    assert lines[2] == f"  why: {why}"
    assert max(map(len, lines)) <= 80


HOSTILE = "red \x1b[31mtext\x07 \x9b2J\r\nnext \u202e\tline"


@pytest.mark.landing
@pytest.mark.parametrize("columns", [None, 80])
def test_text_of_handlers_and_clients_cannot_steer_a_terminal(
    database: Database, monkeypatch: pytest.MonkeyPatch, columns: int | None
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    database.submit(pause_on_failure=3, retry={"max_attempts": 1})
    started = database.begun(labels={"team": "a\u202eb"})
    failure = ending(
        started, RunState.FAILED, error_type="ValueError", error_message=HOSTILE, trace=HOSTILE, output=HOSTILE.encode()
    )
    database.end(failure)
    done = database.begun()
    database.end(ending(done, RunState.SUCCEEDED, result=json.dumps(HOSTILE, ensure_ascii=False).encode()))
    run_id, other = str(started.run_id), str(done.run_id)
    letter = json_output(database, "dlq", "list")["dead_letters"][0]["id"]
    for command in (
        ("run", "list"), ("run", "show", run_id), ("run", "attempts", run_id), ("run", "logs", run_id),
        ("run", "show", other), ("run", "attempts", other),
        ("dlq", "list"), ("dlq", "show", letter), ("job", "show", "job"),
        ("explain", "job"),
    ):  # fmt: skip
        shown = tidewheel(database, *command, columns=columns)
        assert shown.code == 0, shown
        assert not [char for char in shown.out if not char.isprintable() and char not in "\n\t"], (command, shown.out)
    assert "red \\x1b[31mtext\\x07 \\x9b2J\nnext" in tidewheel(database, "run", "logs", run_id, columns=columns).out
    [attempt] = json_output(database, "run", "attempts", run_id)["attempts"]
    assert attempt["error_message"] == HOSTILE


def test_commands_on_a_terminal_of_40_columns_cut_nothing(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line of a list is longer only if one word is; facts and help are left to the terminal to wrap."""
    monkeypatch.setenv("NO_COLOR", "1")
    key = "a-long-key.of-many/parts-" * 3
    database.submit(key, labels={"team": "billing"})
    run_id = str(database.trigger(key))
    lists: dict[tuple[str, ...], str] = {
        ("job", "list"): key, ("run", "list"): run_id, ("admin", "changes"): f"job/{key}",
        ("job", "versions", key): "1", ("dlq", "list"): "no", ("admin", "api-key", "list"): "no",
    }  # fmt: skip
    facts = {
        ("job", "show", key): key, ("run", "show", run_id): run_id, ("explain", key): key,
        ("run", "list", "--help"): "--status",
    }  # fmt: skip
    for command, word in (lists | facts).items():
        done = tidewheel(database, *command, columns=40)
        assert (done.code, done.err) == (0, ""), (command, done)
        assert word in done.out.split(), (command, done.out)
        longest = max(map(len, done.out.split())) + len("scheduled  ")
        wide = [line for line in done.out.splitlines() if len(line.rstrip()) > max(40, longest)]
        assert command in facts or wide == [], command


def test_a_narrow_table_goes_without_empty_columns_and_those_it_can_spare_before_it_becomes_records() -> None:
    headings = ("run", "key", "cause", "duration", "why")
    row = (RUN, "daily", "trigger", "5 ms", "")
    shown = {
        width: next(table_lines(headings, [row], columns=width, spare=("duration", "cause"))).split()
        for width in (80, 62, 58, 48, 42)
    }
    assert shown == {
        80: list(headings),
        62: ["run", "key", "cause", "duration"],
        58: ["run", "key", "cause"],
        48: ["run", "key"],
        42: ["run", RUN],
    }


def test_a_terminal_gets_colour_and_relative_times(monkeypatch: pytest.MonkeyPatch) -> None:
    row: tuple[Cell, ...] = (RUN, "daily", "failed", SystemClock().now() - timedelta(seconds=3.5), "")
    shown = printed(monkeypatch, [row])
    assert "\x1b[31mfailed\x1b[0m" in shown
    assert re.search(r"\d s ago", shown)
    for name, value in (("NO_COLOR", "1"), ("TERM", "dumb")):
        assert "\x1b" not in printed(monkeypatch, [row], **{name: value})


def test_a_pipe_gets_plain_lines_in_whole_seconds() -> None:
    with redirect_stdout(io.StringIO()) as out:
        print_table(HEADINGS, [(RUN, "k" * 255, "failed", NOW + timedelta(microseconds=1), "x\ny")])
    heading, row = out.getvalue().splitlines()
    assert heading.split() == list(HEADINGS)
    assert row.split() == [RUN, "k" * 255, "failed", "2026-03-06T09:00:00Z", "x", "y"]


def test_a_listing_is_json_yaml_or_a_table(database: Database) -> None:
    assert tidewheel(database, "job", "create", "a", "--every", "1h", "--handler", "h").code == 0
    assert '{"jobs": [{"key": "a"' in tidewheel(database, "job", "list", "-o", "json").out
    assert tidewheel(database, "job", "list", "-o", "yaml").out.startswith("---\njobs:\n- key: a\n")
    assert tidewheel(database, "job", "list", "-o", "table").lines[1].startswith("a    every 1h  active")
