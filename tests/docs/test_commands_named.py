"""Every `tidewheel …` of a page, a message, a manifest or an alert is a command."""

import re
import subprocess
from collections.abc import Iterator

import pytest

from tests.strict_types import ROOT
from tidewheel.control.cli.commands import COMMANDS, Command, Group

pytestmark = pytest.mark.process

# Not after an apostrophe: a text of SQL names a lock.
_NAMED = re.compile(r"(?<![\w.@/='-])(?<!import )(?<!from )tidewheel((?: [a-z][a-z-]*){1,3})(?![\w.:/(])")
_TEXTS = ("*.md", "*.py", "*.sql", "*.yaml", "*.yml", "*.html", "*.json", "*.toml", "Makefile")
_OLD = ("CHANGELOG.md", "docs/adr/", "migrations/", "tests/", "build/")  # what was, and what is refused
_PROSE = {"another", "capacity", "header", "idempotency", "the", "x"}  # what follows the name in a sentence


def _unknown(words: list[str]) -> str | None:
    """Return the first word that is no command of its group."""
    below: Command | Group | None = Group("", COMMANDS)
    for word in words:
        if not isinstance(below, Group):
            return None
        if word not in below.commands:
            return word if below.by_flags is None or below.commands is COMMANDS else None
        below = below.commands[word]
    return None


def _named() -> Iterator[tuple[str, str]]:
    found = subprocess.run(["git", "ls-files", *_TEXTS], cwd=ROOT, capture_output=True, text=True, check=True)  # noqa: S607
    for path in found.stdout.splitlines():
        if not path.startswith(_OLD):
            for match in _NAMED.finditer((ROOT / path).read_text(encoding="utf-8")):
                yield path, match[1]


def test_every_command_that_a_text_names_exists() -> None:
    named = [(path, text.split()) for path, text in _named()]
    assert len(named) > 500
    assert [(path, " ".join(words)) for path, words in named if {_unknown(words)} - {None} - _PROSE] == []
