"""Output of every command: text for readers, JSON and YAML for scripts, a bar for long work.

JSON and YAML show the same facts as the text: instants in RFC 3339, durations and ids as text. Text is wrapped at 100
columns where standard output is no terminal. A table row is one line there, without colour. Text has control characters
escaped: results, errors, logs and reasons are written by others.
"""

import json
import os
import shlex
import shutil
import sys
import textwrap
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, is_dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Annotated, Any, cast

import typer

from tidewheel.clock import SystemClock
from tidewheel.control.cli.options import place_text, utc_and_local
from tidewheel.control.cli.parser import COLUMNS, switch
from tidewheel.control.cli.tables import Cell, fact_lines, relative_text, table_lines
from tidewheel.control.reads.json_form import as_json
from tidewheel.control.words import printable, printable_lines
from tidewheel.jobs.values import format_duration, format_second
from tidewheel.nouns.operation import field_values

# Rich is imported where a progress bar is drawn: no list needs it.


class Output(StrEnum):
    """Form of a command's output."""

    TEXT = "table"
    JSON = "json"
    YAML = "yaml"


OutputOption = Annotated[Output, switch("Output format.", "--output", "-o")]


def print_result(lines: Iterable[str], document: object, output: Output) -> None:
    """Print lines of text, or the same facts as one document."""
    if output is Output.TEXT:
        for line in lines:
            typer.echo(printable_lines(line))
    else:
        print_document(document, output)


def print_document(document: object, output: Output) -> None:
    """Print one document: JSON on one line, or YAML."""
    if output is Output.YAML:
        from tidewheel.control.reads.yaml_form import as_yaml  # here: a list as a table needs none

        typer.echo(as_yaml(as_json(document), starts=True), nl=False)
    else:
        typer.echo(json.dumps(as_json(document), ensure_ascii=False))


def wrapped(text: str, indent: str = "") -> str:
    """Break a sentence at the terminal's width; lines after the first are indented."""
    return textwrap.fill(
        printable(" ".join(text.splitlines())),
        width(),
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def print_table(headings: Sequence[str], rows: Iterable[Sequence[Cell]], *, spare: Sequence[str] = ()) -> None:
    """Print rows in columns, or as records on a narrow terminal, which goes without `spare` columns first."""
    for line in table_lines(
        headings,
        rows,
        columns=width() if sys.stdout.isatty() else None,
        now=SystemClock().now() if sys.stdout.isatty() else None,
        colour=has_colour(),
        spare=spare,
    ):
        typer.echo(line, color=True)


def print_rows(
    headings: Sequence[str], rows: Sequence[Sequence[Cell]], document: object, output: Output, *, nothing: str = ""
) -> None:
    """Print a table, or `nothing` where it has no row, or the same facts as one document."""
    if output is not Output.TEXT:
        print_document(document, output)
    elif rows:
        print_table(headings, rows)
    else:
        typer.echo(nothing)


def print_record(facts: Iterable[tuple[str, str | None]], document: object, output: Output) -> None:
    """Print labels with their values, or the same facts as one document."""
    if output is Output.TEXT:
        print_facts(facts)
    else:
        print_document(document, output)


def print_facts(facts: Iterable[tuple[str, str | None]]) -> None:
    """Print labels with their values, one a line; a label without a value is left out."""
    for line in fact_lines(facts, columns=width() if sys.stdout.isatty() else None, colour=has_colour()):
        typer.echo(line, color=True)


def moment(at: datetime, zone: str | None) -> str:
    """Return an instant in whole seconds, in UTC and the zone; on a terminal also relative to the present."""
    text = utc_and_local(at.replace(microsecond=0), zone)
    if not sys.stdout.isatty():
        return text
    relative = relative_text(at, SystemClock().now())
    return text if relative == format_second(at) else f"{text}  ({relative})"


def has_colour() -> bool:
    """Return True if standard output is a terminal and NO_COLOR is not set."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def total_text(total: int, *, at_least: bool, shown: int, noun: str) -> str:
    """Return how many of something are shown, and how many match.

    >>> total_text(10_000, at_least=True, shown=50, noun="run"), total_text(1, at_least=False, shown=1, noun="run")
    ('50 of at least 10,000 runs', '1 of 1 run')
    """
    return f"{shown:,} of {'at least ' if at_least else ''}{count_text(total, noun)}"


def count_text(count: int, noun: str) -> str:
    """Return a number with its noun.

    >>> count_text(1, "run"), count_text(1200, "run")
    ('1 run', '1,200 runs')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def duration_text(duration: timedelta | None) -> str:
    """Return a duration: three digits below a minute, else whole seconds; empty for None.

    >>> [duration_text(timedelta(seconds=each)) for each in (0.00544, 0.25, 12.345, 90)]
    ['5.44 ms', '250 ms', '12.3 s', '1m30s']
    """
    if duration is None:
        return ""
    seconds = duration.total_seconds()
    if seconds < 1:
        return f"{seconds * 1000:.3g} ms"
    return f"{seconds:.3g} s" if seconds < 60 else format_duration(timedelta(seconds=round(seconds)))


@contextmanager
def progress_bar(title: str, total: int | None) -> Generator[Callable[[int], None]]:
    """Show a progress bar on standard error where that is a terminal.

    Yields a function that takes how many of `total` are done. `total` is None where it is unknown.
    """
    if not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(title, total=total)
        yield lambda done: progress.update(task, completed=done if total is None else min(done, total))


def width() -> int:
    """Return the width of the terminal, or 100 where standard output is none."""
    return shutil.get_terminal_size((COLUMNS, 24)).columns if sys.stdout.isatty() else COLUMNS


@dataclass(frozen=True, slots=True)
class Shown:
    """A result that a command shows."""

    found: Any
    arguments: Mapping[str, Any]
    options: Mapping[str, Any]  # all that was given, by the names of arguments and flags
    zone: str | None
    tenant: str
    output: Output


@dataclass(frozen=True, slots=True)
class Table:
    """The table of a noun's records."""

    noun: str
    headings: Sequence[str]
    row: Callable[[Any], tuple[Cell, ...]]

    def print(self, records: Sequence[object], *, spare: Sequence[str] = ()) -> None:
        """Print records in columns."""
        print_table(self.headings, map(self.row, records), spare=spare)

    def show(self, shown: Shown, *, nothing: str, spare: Sequence[str] = ()) -> None:
        """Print a list, or a page of one with the number of all and the place of the next."""
        found: Any = field_values(shown.found) if is_dataclass(cast("object", shown.found)) else shown.found
        records, after = next(iter(found.values())), found.get("next_cursor")
        if shown.output is not Output.TEXT:
            print_document(shown.found, shown.output)
            return
        if records:
            self.print(records, spare=spare)
            if "total" in found:
                typer.echo(total_text(found["total"], at_least=found["at_least"], shown=len(records), noun=self.noun))
        else:
            typer.echo(nothing if after is None else "none on this page")
        if after is not None:
            place = place_text(*cast("Any", after)) if isinstance(after, tuple) else str(after)
            typer.echo(f"more: add --after {shlex.quote(place)}")


def changed(noun: str, done: str, unchanged: str) -> Callable[[Shown], None]:
    """Return what shows a change of a thing, which its first argument names."""

    def show(shown: Shown) -> None:
        (name, thing), *_ = shown.arguments.items()
        text = done if shown.found else f"unchanged: {unchanged}"
        print_result([f"{noun} {thing}: {text}"], {name: thing, "unchanged": not shown.found}, shown.output)

    return show
