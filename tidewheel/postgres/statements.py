"""Named SQL: the statements of a package lie in its `queries.sql`, beside the code that uses them.

A block begins with `-- name: claim_runs`. Its comment says what the statement returns or changes, its index and its
locks. Blocks are read once, at import. A test compares the names that modules use with those of the files.

A text that several statements share is written once, as a part: `-- part: names_run(run)`. A statement takes it over
with `{{names_run(o)}}`, which puts the alias `o` in place of `run`. A part takes over another one likewise. A part of
another package has that package's name in front: `{{tidewheel.transitions.names_run(o)}}`.

A head with two names is two statements, which read an index in opposite directions. The first has ASC for `{{up}}` and
DESC for `{{down}}`, the second the other way round.
"""

import re
from functools import cache
from importlib import resources
from typing import LiteralString, NamedTuple

_HEAD = re.compile(
    r"^-- (?P<kind>name|part): (?P<name>[a-z0-9_]+)(?:, (?P<turned>[a-z0-9_]+)|\((?P<alias>[a-z_]+)\))?\s*$",
    re.MULTILINE,
)
_SPLICE = re.compile(r"\{\{(?:(?P<package>[a-z_.]+)\.)?(?P<part>[a-z0-9_]+)\((?P<alias>[a-z_]+)\)\}\}")
_COMMENT = re.compile(r"\A(?:--.*\n)*")


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
            raise KeyError(f"{self._package}/queries.sql has no block named {name!r}") from None

    def names(self) -> list[str]:
        """All names in the file, in its order."""
        return list(self._blocks)


def trusted(text: str) -> LiteralString:
    """Mark a text of this package's files, never input, as a statement; the only such place."""
    return text  # pyright: ignore[reportReturnType]  # to mypy a LiteralString is a str


class _Block(NamedTuple):
    """A block as it is written; `alias` is the word of a part that a statement replaces by its own alias."""

    kind: str
    alias: str
    body: str
    up: str = "ASC"
    down: str = "DESC"


@cache
def _read(package: str) -> dict[str, LiteralString]:
    blocks = _blocks(package)
    return {
        name: trusted(_spliced(package, block.body).replace("{{up}}", block.up).replace("{{down}}", block.down))
        for name, block in blocks.items()
        if block.kind == "name"
    }


@cache
def _blocks(package: str) -> dict[str, _Block]:
    text = resources.files(package).joinpath("queries.sql").read_text(encoding="utf-8")
    heads = list(_HEAD.finditer(text))
    blocks: dict[str, _Block] = {}
    for head, following in zip(heads, [*heads[1:], None], strict=True):
        body = text[head.end() : following.start() if following else len(text)].strip()
        if head["name"] in blocks:
            raise ValueError(f"{package}/queries.sql names {head['name']!r} twice")
        blocks[head["name"]] = block = _Block(head["kind"], head["alias"] or "", body)
        if head["turned"]:
            blocks[head["turned"]] = block._replace(up=block.down, down=block.up)
    return blocks


def _spliced(package: str, body: str) -> str:
    """Return the body with the text of each part that it names, without the part's comment."""

    def text_of(splice: re.Match[str]) -> str:
        owner = splice["package"] or package
        part = _blocks(owner).get(splice["part"])
        if part is None or part.kind != "part":
            message = f"{package}/queries.sql names the part {splice['part']!r}, which {owner}/queries.sql lacks"
            raise ValueError(message)
        body = _spliced(owner, _COMMENT.sub("", part.body))
        return re.sub(rf"\b{part.alias}\.", f"{splice['alias']}.", body)

    return _SPLICE.sub(text_of, body)
