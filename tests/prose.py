"""Check the prose of code, SQL and pages: ``python -m tests.prose [PATH…]``.

It prints every finding in these paths, or in all that is checked. One finding is enough for exit code 1.
"""

import ast
import io
import os
import re
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import typer

from tests.strict_types import LINKED, ROOT

FIRST_LINE = 100
SENTENCE = 40

_FOLDERS = ("tidewheel", *LINKED, "tools", "tests", "examples", "sdk", "docs", "compose")
# Written by a generator from texts that are checked themselves.
_LEFT_OUT = (
    "schemas/generated",
    "schemas/released",
    "docs/settings.md",
    "docs/metrics.md",
    "docs/messages.md",
    "docs/messages-requests.md",
    "docs/errors.md",
)
_OPENING = re.compile(r"(?:What|Whether|Where|How|Of|Who|Which|When)\b")
_WORD = re.compile(r"\b(?:somebody|nobody|anybody|whoever|told|asked|stands)\b", re.IGNORECASE)
_QUOTED = re.compile(r"``.+?``|`[^`]+`|\"[^\"]*\"|“[^”]*”", re.DOTALL)
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_FENCE = re.compile(r"\s*(```|~~~)")
_ITEM = re.compile(r"^\s*(?:[-*+]|\d+[.)])\s+")
_SENTENCE_END = re.compile(r"(?<=[.!?])(?<!e\.g\.)(?<!i\.e\.)[)*_]*\s+")


class Finding(NamedTuple):
    """One offence against the rules of prose."""

    file: str
    line: int
    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.kind}: {self.text}"


class _Text(NamedTuple):
    line: int
    text: str


def main(arguments: list[str]) -> int:
    """Print the findings and the counts; return the exit code."""
    paths = [Path(argument).resolve() for argument in arguments]
    findings = [finding for file in prose_files() if _is_below(file, paths) for finding in check_file(file)]
    for finding in findings:
        typer.echo(finding)
    kinds = Counter(finding.kind for finding in findings)
    listed = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
    typer.echo(f"prose: {len(findings)} findings{f': {listed}' if listed else ''}")
    return int(bool(findings))


def prose_files() -> Iterator[Path]:
    """Yield every Python, SQL and Markdown file whose prose is checked; links are not followed."""
    yield from sorted(ROOT.glob("*.md"))
    for folder in _FOLDERS:
        for place, folders, names in os.walk(ROOT / folder):
            folders[:] = sorted(name for name in folders if name not in ("__pycache__", "node_modules"))
            for name in sorted(names):
                path = Path(place) / name
                if path.suffix in (".py", ".sql", ".md") and not _relative(path).startswith(_LEFT_OUT):
                    yield path


def check_file(path: Path) -> list[Finding]:
    """Return the findings of one file, by line."""
    file, text = _relative(path), path.read_text()
    if path.suffix == ".py":
        found = check_python(file, text)
    elif path.suffix == ".sql":
        found = check_sql(file, text)
    else:
        found = check_markdown(file, text)
    return sorted(found, key=lambda finding: finding.line)


def check_python(file: str, text: str) -> Iterator[Finding]:
    """Check docstrings and comments; in product code the strings that a user may read too."""
    tree = ast.parse(text)
    docstrings = list(_docstrings(tree))
    for docstring in docstrings:
        opening, _, _ = docstring.text.partition("\n")
        if _OPENING.match(opening):
            yield Finding(file, docstring.line, "opening", opening)
        if len(opening) > FIRST_LINE:
            yield Finding(file, docstring.line, "long first line", opening)
    if not _WORD.search(text):
        return
    for docstring in docstrings:
        yield from _words(file, _without_examples(docstring))
    if any(_WORD.search(line.partition("#")[2]) for line in text.splitlines()):
        yield from (finding for comment in _comments(text) for finding in _words(file, comment))
    if not file.startswith("tests/"):
        yield from (finding for string in _strings(tree) for finding in _words(file, string))


def check_sql(file: str, text: str) -> Iterator[Finding]:
    """Check the comments of an SQL file."""
    for number, line in enumerate(text.splitlines(), 1):
        _, dashes, comment = line.partition("--")
        if dashes:
            yield from _words(file, _Text(number, comment))


def check_markdown(file: str, text: str) -> Iterator[Finding]:
    """Check the words of a page outside code, and the length of its sentences outside tables."""
    for block in _blocks(text):
        yield from _words(file, block)
        if not block.text.lstrip().startswith("|"):
            yield from _long_sentences(file, block)


def _docstrings(node: ast.AST) -> Iterator[_Text]:
    """Yield the docstrings of a tree; expressions, most of a tree, are not visited."""
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        docstring = ast.get_docstring(node)
        if docstring:
            yield _Text(node.body[0].lineno, docstring)
    if not isinstance(node, ast.expr):
        for child in ast.iter_child_nodes(node):
            yield from _docstrings(child)


def _without_examples(docstring: _Text) -> _Text:
    """Blank the docstring's doctest blocks."""
    kept: list[str] = []
    example = False
    for line in docstring.text.split("\n"):
        example = line.lstrip().startswith(">>>") or (example and bool(line.strip()))
        kept.append("" if example else line)
    return _Text(docstring.line, "\n".join(kept))


def _comments(text: str) -> Iterator[_Text]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield _Text(token.start[0], token.string)


def _strings(tree: ast.Module) -> Iterator[_Text]:
    """Yield the string constants that hold a space: messages, help, names of things that a user sees."""
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        text = node.value if isinstance(node, ast.Constant) and id(node) not in docstrings else None
        if isinstance(node, ast.Constant) and isinstance(text, str) and " " in text:
            yield _Text(node.lineno, text)


def _blocks(text: str) -> Iterator[_Text]:
    """Yield a page's paragraphs, list items, headings and table rows, without code blocks and comments."""
    block: list[str] = []
    start = 0
    fenced = False
    for number, line in enumerate([*text.splitlines(), ""], 1):
        if _FENCE.match(line):
            fenced = not fenced
        alone = line.lstrip().startswith(("|", "#", "<!--"))
        ends = fenced or alone or not line.strip() or _FENCE.match(line) or _ITEM.match(line)
        if block and ends:
            yield _Text(start, "\n".join(block))
            block = []
        if fenced or _FENCE.match(line) or not line.strip() or line.lstrip().startswith("<!--"):
            continue
        if alone:
            yield _Text(number, line)
            continue
        start = start if block else number
        block.append(_ITEM.sub("", line, count=1))


def _words(file: str, text: _Text) -> Iterator[Finding]:
    """Yield a finding for each word that names no actor, outside quotations."""
    bare = _QUOTED.sub(lambda match: "\n" * match[0].count("\n"), text.text)
    for match in _WORD.finditer(bare):
        line = bare.count("\n", 0, match.start())
        yield Finding(file, text.line + line, f"'{match[0].lower()}'", bare.split("\n")[line].strip())


def _long_sentences(file: str, block: _Text) -> Iterator[Finding]:
    """Yield a finding for each sentence of too many words; a quotation counts as one."""
    bare = _QUOTED.sub(_one_word, _LINK.sub(r"\1", block.text))
    start = 0
    for end in [*(match.end() for match in _SENTENCE_END.finditer(bare)), len(bare)]:
        sentence = bare[start:end]
        words = [word for word in sentence.split() if re.search(r"\w", word)]
        if len(words) > SENTENCE:
            shown = f"{len(words)} words: {' '.join(words[:12])} …"
            yield Finding(file, block.line + bare.count("\n", 0, start), "long sentence", shown)
        start = end


def _one_word(quotation: re.Match[str]) -> str:
    end = quotation[0][-2] if quotation[0][-2] in ".!?" else ""
    return "Q" + "\n" * quotation[0].count("\n") + end


def _relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def _is_below(file: Path, paths: list[Path]) -> bool:
    return not paths or any(file.is_relative_to(path) for path in paths)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
