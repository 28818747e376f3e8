"""Named SQL: every statement lies in a `queries.sql` beside the code that uses it.

A block starts with `-- name: claim_runs`, then a line that says what it does and one that names index and lock. Blocks
are read once, at import, so that a missing statement fails at start and not at three in the morning.
"""

import re
from functools import cache
from importlib import resources
from typing import LiteralString

_NAME = re.compile(r"^-- name: (?P<name>[a-z0-9_]+)\s*$", re.MULTILINE)


class Statements:
    """The statements of one package's `queries.sql`, by name."""

    def __init__(self, package: str) -> None:
        self._package = package
        self._blocks = _read(package)

    def __getitem__(self, name: str) -> LiteralString:
        """The statement of that name; KeyError names the file that lacks it."""
        try:
            return self._blocks[name]
        except KeyError:
            message = f"{self._package}/queries.sql has no block named {name!r}"
            raise KeyError(message) from None

    def names(self) -> list[str]:
        """All names in the file, in its order."""
        return list(self._blocks)


def trusted(text: str) -> LiteralString:
    """A text that is a file of this package, never input: the one place where a string becomes a statement."""
    return text  # pyright: ignore[reportReturnType]  # to mypy a LiteralString is a str


@cache
def _read(package: str) -> dict[str, LiteralString]:
    text = resources.files(package).joinpath("queries.sql").read_text(encoding="utf-8")
    heads = list(_NAME.finditer(text))
    blocks: dict[str, LiteralString] = {}
    for head, following in zip(heads, [*heads[1:], None], strict=True):
        body = text[head.end() : following.start() if following else len(text)].strip()
        if head["name"] in blocks:
            message = f"{package}/queries.sql names {head['name']!r} twice"
            raise ValueError(message)
        blocks[str(head["name"])] = trusted(body)
    return blocks
