"""The tree of `--help`: what the command line prints of itself."""

import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.control.cli.command import NO_DATABASE, tidewheel
from tidewheel.control.cli.parser import root_command

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
