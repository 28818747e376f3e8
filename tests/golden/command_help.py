"""The tree of `--help`, and the table of docstrings that it prints."""

import inspect
import json
import re
from collections.abc import Iterator
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

import pytest
from typer.models import ArgumentInfo, OptionInfo

from tests.control.cli.command import NO_DATABASE, tidewheel
from tidewheel import nouns
from tidewheel.control.cli.commands import every_command
from tidewheel.control.cli.parser import root_command
from tidewheel.doors.cli import command

_COLUMNS = "100"


def help_tree() -> str:
    """Return the help of every command, hidden ones too, each after its command line."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", _COLUMNS)
        return "\n".join(_helps((), root_command()))


def _helps(words: tuple[str, ...], command: Any) -> Iterator[str]:  # noqa: ANN401 - click's own types are private
    """Yield the help of a command, and that of the commands below it."""
    done = tidewheel(NO_DATABASE, *words, "--help")
    assert (done.code, done.err) == (0, ""), (words, done)
    hidden = "  (hidden)" if command.hidden else ""
    usage = re.sub(r"^Usage: .*?tidewheel", "Usage: tidewheel", done.out)  # by the name of the program under test
    yield f"$ {' '.join(('tidewheel', *words))} --help{hidden}\n{usage}"
    for name, below in getattr(command, "commands", {}).items():
        yield from _helps((*words, name), below)


def docstrings() -> str:
    """Return the first line of the docstring of each command, by module and function, as JSON."""
    modules = {each.path for _, each in every_command()}
    modules |= {f"tidewheel.nouns.{each.name}.commands" for each in iter_modules(nouns.__path__) if each.ispkg}
    found = {name: dict(_commands_of(name)) for name in sorted(modules)}
    return json.dumps(found, indent=1, ensure_ascii=False) + "\n"


def _commands_of(module: str) -> Iterator[tuple[str, str]]:
    for name, function in vars(import_module(module)).items():
        is_own = isinstance(function, command) or getattr(function, "__module__", None) == module
        if is_own and not name.startswith("_") and callable(function):
            parameters = inspect.signature(function).parameters.values()
            if parameters and all(map(_is_of_command, parameters)):
                yield name, (inspect.getdoc(function) or "").partition("\n")[0]


def _is_of_command(parameter: inspect.Parameter) -> bool:
    parts = getattr(parameter.annotation, "__metadata__", ())
    return any(isinstance(each, ArgumentInfo | OptionInfo) for each in parts)
