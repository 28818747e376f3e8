"""How every command answers: text for people, JSON for scripts.

JSON shows the same facts as the text: instants in RFC 3339, durations and ids as text. Sentences are readable at 100
columns, also where standard output is no terminal; there a row of a table is one line.
"""

import json
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import date, datetime, timedelta
from enum import Enum, StrEnum
from typing import Annotated, Any, cast
from uuid import UUID

import typer
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tidewheel.control.cli.time_options import rfc3339
from tidewheel.jobs.strict_json import Json
from tidewheel.jobs.values import format_duration

COLUMNS = 100


class Output(StrEnum):
    """How a command answers."""

    TEXT = "text"
    JSON = "json"


Answer = Annotated[Output, typer.Option("--output", help="How to answer.")]


def say(lines: Iterable[str], document: object, output: Output) -> None:
    """Answer with lines of text, or with what they tell as one JSON document."""
    if output is Output.JSON:
        say_json(document)
    else:
        for line in lines:
            typer.echo(line)


def say_json(document: object) -> None:
    """Answer with one JSON document, on one line."""
    typer.echo(json.dumps(as_json(document), ensure_ascii=False))


def as_json(value: object) -> Json:
    """What JSON shows of a value: of a dataclass its fields, of an instant, a duration or an id its text."""
    if value is None or type(value) in (bool, int, float, str):
        return cast("Json", value)
    for kind, show in _TEXTS:
        if isinstance(value, kind):
            return show(value)
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: as_json(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(name): as_json(part) for name, part in cast("Mapping[object, object]", value).items()}
    return [as_json(part) for part in cast("Iterable[object]", value)]


def wrapped(text: str, indent: str = "") -> str:
    """A sentence, broken at the width of the terminal; lines after the first are indented."""
    return textwrap.fill(text, width(), subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def print_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print rows in columns, without lines around them; the last column takes what is left.

    Where standard output is no terminal every row is one line, however long, for other programs to read.
    """
    if not sys.stdout.isatty():
        _print_lines([list(headings), *([" ".join(cell.splitlines()) for cell in row] for row in rows)])
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for heading in headings:
        table.add_column(heading, overflow="fold", no_wrap=heading != headings[-1] and heading not in _MAY_WRAP)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    Console(width=width(), highlight=False, emoji=False).print(table)


def print_facts(facts: Iterable[tuple[str, str | None]]) -> None:
    """Print names with their values, one each; those without a value are left out."""
    known = [(name, value) for name, value in facts if value]
    longest = max((len(name) for name, _ in known), default=0)
    for name, value in known:
        first, *others = value.splitlines()
        typer.echo(f"{name:<{longest}}  {first}")
        for other in others:
            typer.echo(f"{'':<{longest}}  {other}")


def _print_lines(rows: Sequence[Sequence[str]]) -> None:
    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell + " " * (wide - cell_len(cell)) for cell, wide in zip(row, widths, strict=True))
        typer.echo("  ".join(cells).rstrip())


def width() -> int:
    """How many columns there are: the terminal's, or as many as are readable in a file."""
    return Console().width if sys.stdout.isatty() else COLUMNS


_MAY_WRAP = frozenset({"key", "schedule"})

_TEXTS: tuple[tuple[type, Callable[[Any], str]], ...] = (
    (Enum, lambda value: str(value.value)),
    (datetime, lambda value: value.isoformat() if value.utcoffset() else rfc3339(value)),
    (date, date.isoformat),
    (timedelta, format_duration),
    (UUID, str),
    (bytes, lambda value: value.decode(errors="replace")),
)
