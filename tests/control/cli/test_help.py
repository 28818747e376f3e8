"""`--help` of every command, and the modules that a command imports."""

import inspect
import os
import shlex
import subprocess
import sys
from importlib import import_module
from importlib.metadata import version

import pytest

from tests.control.cli.command import NO_DATABASE, find_command, tidewheel
from tests.fixtures.database import Database
from tidewheel.control.cli.commands import Command, every_command
from tidewheel.control.cli.exit_codes import ExitCode
from tidewheel.control.cli.parser import EXAMPLES
from tidewheel.distribution import PROTOCOL
from tidewheel.local.stack import StackInfo
from tidewheel.migrations.runner import migrations
from tidewheel.nouns.works.operations import WORKS

ALL: dict[tuple[str, ...], Command] = {tuple(words.split()): command for words, command in every_command()}

NEVER_FOR_LISTS = (
    "tidewheel.control.client",
    "tidewheel.intake",
    "tidewheel.jobs.requests",
    "tidewheel.executor",
    "tidewheel.schemas",
    "confluent_kafka",
    "uvicorn",
    "fastavro",
    "aiohttp",
    "botocore",
    "fastapi",
    "opentelemetry",
    "psutil",
    "rich.console",
    "yaml",
)
NEVER_FOR_HELP = (*NEVER_FOR_LISTS, "tidewheel.settings", "pydantic_settings", "psycopg", "rich.console")


def test_help_line_of_the_table_is_the_docstring_of_the_command() -> None:
    for words, command in ALL.items():
        function = getattr(import_module(command.path), command.function)
        assert command.help == (inspect.getdoc(function) or "").partition("\n")[0], words


@pytest.mark.parametrize("words", ALL, ids=" ".join)
def test_command_with_several_options_shows_examples_that_it_accepts(words: tuple[str, ...]) -> None:
    name = " ".join(words)
    command, _ = find_command(words)
    shown = command.make_context(name, ["--"], resilient_parsing=True).command.params
    own = [each for each in shown if each.opts[0][0] == "-" and not {*each.opts} & {"--help", "--tenant", "--output"}]
    examples = EXAMPLES.get(name, ())
    assert len(own) <= 2 or examples
    printed = tidewheel(NO_DATABASE, *words, "--help").out
    for example in examples:
        assert f"  {example}\n" in printed
        _, *arguments = shlex.split(example.removeprefix('eval "$(').removesuffix(')"'))
        found, rest = find_command(arguments)
        assert found.name == command.name
        found.make_context(name, list(rest))


def test_every_example_is_one_of_a_command() -> None:
    assert set(EXAMPLES) <= {" ".join(words) for words in ALL}


@pytest.mark.process
def test_version_and_help_import_no_command() -> None:
    last = migrations()[-1].name.removesuffix(".sql")
    assert imported("--version") == (f"tidewheel {version('tidewheel')}\nschema {last}\nprotocol {PROTOCOL}\n", [])
    assert WORKS.startswith(f"/api/v{PROTOCOL}/"), "the paths of the API have the protocol's version"
    out, modules = imported("--help")
    assert "Show this message and exit." in out
    assert not [name for name in modules if below(name, (*NEVER_FOR_HELP, "pydantic"))]
    out, modules = imported("job", "--help")  # typer parses a group's options by pydantic
    assert "Commands:" in out
    assert not [name for name in modules if below(name, NEVER_FOR_HELP)]


@pytest.mark.landing
@pytest.mark.process
@pytest.mark.parametrize(("group", "printed"), [("job", "no jobs\n"), ("run", "no runs\n")])
def test_a_list_imports_no_service(database: Database, group: str, printed: str) -> None:
    out, modules = imported(group, "list", TIDEWHEEL_DATABASE_URL=database.url)
    assert out == printed
    assert not [name for name in modules if below(name, NEVER_FOR_LISTS)]


@pytest.mark.process
def test_a_look_for_the_local_stack_imports_no_service(info: StackInfo) -> None:
    code = (
        "import sys; from pathlib import Path; from tidewheel.local.stack import running_stack; "
        "print(running_stack(Path(sys.argv[1])).bootstrap, *sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(info.data_dir)], capture_output=True, text=True, check=True)
    bootstrap, *modules = done.stdout.split()
    assert bootstrap == info.bootstrap
    assert not [name for name in modules if below(name, NEVER_FOR_LISTS)]


def test_a_wider_terminal_is_used() -> None:
    def longest(columns: int) -> int:
        return max(map(len, tidewheel(NO_DATABASE, "--help", columns=columns).lines))

    assert longest(80) <= 80 < longest(100) <= 100


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


@pytest.mark.process
def test_exit_codes_tell_not_found_refused_and_unavailable_apart(database: Database) -> None:
    assert tidewheel(database, "job", "show", "none").code == ExitCode.NOT_FOUND
    assert tidewheel(database, "run", "list", "--since", "soon").code == ExitCode.REFUSED
    assert tidewheel(NO_DATABASE, "job", "list").code == ExitCode.UNAVAILABLE
    assert tidewheel(database, "job", "list", "--no-such-flag").code == ExitCode.USAGE


@pytest.mark.landing
@pytest.mark.process
def test_a_closed_pipe_ends_quietly(database: Database) -> None:
    command = "from tidewheel.control.cli.main import main; main()"
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-c", command, "job", "list"],
        env={**os.environ, "TIDEWHEEL_DATABASE_URL": database.url},
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (ExitCode.CLOSED_PIPE, "")


@pytest.mark.landing
@pytest.mark.process
@pytest.mark.parametrize(
    ("words", "target"),
    [(words, "> /dev/full") for words in ("--version", "--help", "job list", "job list -o json", "status")]
    + [(words, ">&-") for words in ("job list", "job list --help")],
)
def test_output_that_cannot_be_written_ends_with_one_sentence(database: Database, words: str, target: str) -> None:
    script = f"from tidewheel.control.cli.main import main; main()' {words} {target}"
    done = subprocess.run(
        ["/bin/sh", "-c", f"{sys.executable} -c '{script}"],
        env={**os.environ, "TIDEWHEEL_DATABASE_URL": database.url},
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert done.returncode == ExitCode.NO_OUTPUT
    assert done.stderr.startswith("tidewheel: standard output ")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(("words", "offered"), [("job li", "list"), ("run list --st", "--status")])
def test_the_shell_completes_commands_and_their_options(words: str, offered: str) -> None:
    assert offered in completed(words, NO_DATABASE)


def completed(words: str, database_url: str) -> list[str]:
    """Return what bash offers after some words."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.modules["__main__"], "__package__", None)  # else the command's name is pytest's
        patch.setenv("_TIDEWHEEL_COMPLETE", "complete_bash")
        patch.setenv("COMP_WORDS", f"tidewheel {words}")
        patch.setenv("COMP_CWORD", str(len(words.split())))
        done = tidewheel(database_url)
    assert not done.err, done
    return done.out.split()


def test_h_is_help() -> None:
    for words in ((), ("job",), ("job", "list")):
        done = tidewheel(NO_DATABASE, *words, "-h")
        assert done.code == 0
        assert done == tidewheel(NO_DATABASE, *words, "--help")
