"""Run the `tidewheel` command in tests: as a process, or faster by its entry point in this one."""

import io
import json
import subprocess
import sys
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from typing import Any

import pytest

from tests.fixtures.database import Database
from tidewheel.control.cli.exit_codes import ExitCode
from tidewheel.control.cli.main import main
from tidewheel.control.cli.parser import root_command

NO_DATABASE = "postgresql://127.0.0.1:1/none"


@dataclass(frozen=True)
class Done:
    """Exit code and output of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:  # noqa: ANN401 - as json.loads
        """Its answer, which is one line of JSON and nothing else."""
        assert (self.code, self.err, self.out.count("\n")) == (0, "", 1), self
        return json.loads(self.out)

    @property
    def lines(self) -> list[str]:
        """Its answer in text, of which no line is wider than a page."""
        assert (self.code, self.err) == (0, ""), self
        return self.out.splitlines()

    @property
    def refusals(self) -> list[str]:
        """The lines of a refusal, each after the command's name."""
        assert self.code in {ExitCode.FAILED, ExitCode.NOT_FOUND, ExitCode.REFUSED, ExitCode.UNAVAILABLE}, self
        assert not self.out, self
        return [line.removeprefix("tidewheel: ") for line in self.err.splitlines()]

    @property
    def refusal(self) -> str:
        """The only line of a refusal."""
        [line] = self.refusals
        return line


def find_command(words: Sequence[str]) -> tuple[Any, Sequence[str]]:
    """Return the command that some words name, and its arguments."""
    command: Any = root_command()
    while words and words[0] in getattr(command, "commands", ()):
        command, words = command.commands[words[0]], words[1:]
    return command, words


def process(*arguments: str) -> Done:
    """Run the command as a process of its own."""
    command = [sys.executable, "-c", "from tidewheel.control.cli.main import main; main()", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return Done(done.returncode, done.stdout, done.stderr)


class Terminal(io.StringIO):
    """Standard output that is a terminal."""

    def isatty(self) -> bool:
        return True


def tidewheel(database: Database | str | None, *arguments: object, stdin: str = "", columns: int | None = None) -> Done:
    """Run the command's entry point on a database, on what an URL names, or on none.

    With `columns` its output is a terminal.
    """
    out, err, code = io.StringIO() if columns is None else Terminal(), io.StringIO(), 0
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        if database is None:
            patch.delenv("TIDEWHEEL_DATABASE_URL", raising=False)
        else:
            patch.setenv("TIDEWHEEL_DATABASE_URL", database if isinstance(database, str) else database.url)
        if columns is not None:
            patch.setenv("COLUMNS", str(columns))
        patch.setattr(sys, "argv", ["tidewheel", *map(str, arguments)])
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        try:
            main()
        except SystemExit as stop:
            code = int(stop.code or 0)
    return Done(code, out.getvalue(), err.getvalue())


def json_output(database: Database, *arguments: object, stdin: str = "") -> Any:  # noqa: ANN401 - as json.loads
    """Return the JSON output of a command."""
    return tidewheel(database, *arguments, "--output", "json", stdin=stdin).json
