"""What `--help` says of every command."""

import os
import subprocess
import sys

import pytest
import typer

from tests.control.cli.command import NOBODY, tidewheel
from tidewheel.control.cli.main import app


def commands(group: typer.Typer, *names: str) -> list[tuple[str, ...]]:
    """Every command there is, as its words."""
    found: list[tuple[str, ...]] = []
    for command in group.registered_commands:
        name = command.name or getattr(command.callback, "__name__", "")
        found.append((*names, name))
    for inner in group.registered_groups:
        assert inner.typer_instance is not None
        found += commands(inner.typer_instance, *names, str(inner.name))
    return found


ALL = commands(app)


@pytest.mark.parametrize("words", ALL, ids=" ".join)
def test_every_command_says_what_it_does_and_answers_in_json(words: tuple[str, ...]) -> None:
    done = tidewheel(NOBODY, *words, "--help")
    assert (done.code, done.err) == (0, "")
    if words[0] not in {"demo", "intake", "scheduler", "relay", "executor", "api"}:
        assert "--output <text|json>" in done.out
    assert not [line for line in done.out.splitlines() if len(line) > 100]


def test_lists_of_commands_are_not_cut_off() -> None:
    for words in ((), *{words[:-1] for words in ALL}):
        assert "..." not in tidewheel(NOBODY, *words, "--help").out.partition("Commands:")[2]


@pytest.mark.process
def test_a_wider_terminal_is_used() -> None:
    def longest(columns: str) -> int:
        shown = subprocess.run(
            [sys.executable, "-c", "from tidewheel.control.cli.main import main; main()", "--help"],
            env={**os.environ, "COLUMNS": columns},
            capture_output=True,
            text=True,
            check=True,
        )
        return max(map(len, shown.stdout.splitlines()))

    assert longest("80") <= 80 < longest("100") <= 100
