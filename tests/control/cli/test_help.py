"""`--help` of every command, and the modules that a command imports."""

import inspect
import os
import subprocess
import sys
from importlib import import_module

import pytest

from tests.control.cli.command import NO_DATABASE, tidewheel
from tests.fixtures.database import Database
from tidewheel.control.cli.commands import COMMANDS, Command, Group

ALL: dict[tuple[str, ...], Command] = {}
for _name, _entry in COMMANDS.items():
    if isinstance(_entry, Command):
        ALL[_name,] = _entry
    else:
        ALL.update({(_name, _inner): _command for _inner, _command in _entry.commands.items()})

SERVICES = {"intake", "scheduler", "relay", "executor", "api"}
NEVER_FOR_LISTS = (
    "tidewheel.control.client",
    "tidewheel.intake",
    "tidewheel.jobs.requests",
    "tidewheel.executor",
    "tidewheel.schemas",
    "confluent_kafka",
    "uvicorn",
    "fastavro",
)
NEVER_FOR_HELP = (*NEVER_FOR_LISTS, "tidewheel.settings", "pydantic_settings", "psycopg", "rich.console")


@pytest.mark.parametrize("words", ALL, ids=" ".join)
def test_every_command_has_help_and_json_output(words: tuple[str, ...]) -> None:
    done = tidewheel(NO_DATABASE, *words, "--help")
    assert (done.code, done.err) == (0, "")
    if words[0] not in SERVICES | {"demo"}:
        assert "--output <text|json>" in done.out
    assert not [line for line in done.out.splitlines() if len(line) > 100]


@pytest.mark.parametrize("words", ALL, ids=" ".join)
def test_help_line_of_the_table_is_the_docstring_of_the_command(words: tuple[str, ...]) -> None:
    command = ALL[words]
    function = getattr(import_module(f"tidewheel.control.cli.{command.module}"), command.function)
    assert command.help == (inspect.getdoc(function) or "").partition("\n")[0]


@pytest.mark.parametrize("group", [(), *((name,) for name, entry in COMMANDS.items() if isinstance(entry, Group))])
def test_lists_of_commands_are_complete_and_not_cut_off(group: tuple[str, ...]) -> None:
    listed = tidewheel(NO_DATABASE, *group, "--help").out.partition("Commands:")[2]
    assert "..." not in listed
    names = [words[len(group)] for words in ALL if words[: len(group)] == group]
    assert [line.split()[0] for line in listed.splitlines() if line[:2] == "  " != line[2:4]] == list(
        dict.fromkeys(names)
    )


@pytest.mark.process
def test_version_and_help_import_no_command() -> None:
    assert imported("--version") == ("tidewheel 0.1.0\n", [])
    out, modules = imported("--help")
    assert "Show this message and exit." in out
    assert not [name for name in modules if below(name, (*NEVER_FOR_HELP, "pydantic"))]
    out, modules = imported("job", "--help")  # typer parses a group's options by pydantic
    assert "Show this message and exit." in out
    assert not [name for name in modules if below(name, NEVER_FOR_HELP)]


@pytest.mark.process
@pytest.mark.parametrize(("group", "printed"), [("job", "no jobs match\n"), ("run", "no runs match\n")])
def test_a_list_imports_no_service(database: Database, group: str, printed: str) -> None:
    out, modules = imported(group, "list", TIDEWHEEL_DATABASE_URL=database.url)
    assert out == printed
    assert not [name for name in modules if below(name, NEVER_FOR_LISTS)]


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


def imported(*arguments: str, **environment: str) -> tuple[str, list[str]]:
    """Run a command in a process; return its output and the names of the imported modules."""
    code = (
        "import atexit, sys; from tidewheel.control.cli.main import main; "
        "atexit.register(lambda: sys.stderr.write(' '.join(sys.modules))); main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    if "--version" in arguments:
        return done.stdout, [
            name for name in done.stderr.split() if below(name, (*NEVER_FOR_HELP, "pydantic", "typer"))
        ]
    return done.stdout, done.stderr.split()


def below(name: str, packages: tuple[str, ...]) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)
