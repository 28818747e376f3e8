"""Tables of every list, at any width of the terminal: ids and keys are never cut or broken.

A table that is too wide folds its sentences at spaces, then leaves out empty columns and those that its list can spare.
One that is still too wide has the sentences below their rows. Else it becomes records: each row is a block of lines,
with a heading and a value on each. A value longer than the line is left whole: the terminal continues it on the next
line, and a copy of it has no break.

Without a terminal each row is one line of any length, for other programs to read.
"""

import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias

from tidewheel.control.words import printable
from tidewheel.jobs.values import format_second

Cell: TypeAlias = str | datetime | None

_GAP = 2
_LEAST_FOLDED = 16  # columns of a folded sentence: below it, records are easier to read
_FOLDED = frozenset({"schedule", "why", "error", "changed", "reason", "problem", "description", "handlers", "apply"})
_STATES = frozenset({"state", "status", "last run", "outcome"})
_SENTENCES = _FOLDED | {"status", "remedy", "attempts"}  # of facts
_DAY_SECONDS = 86_400
_UNITS = ((3600, "h"), (60, "min"), (1, "s"))

_GREEN, _YELLOW, _RED, _CYAN, _DIM = "32", "33", "31", "36", "2"
_COLOURS = {
    **dict.fromkeys(("succeeded", "finished", "active", "fired", "ok", "alive"), _GREEN),
    **dict.fromkeys(("running", "queued", "scheduled", "cancelling"), _CYAN),
    **dict.fromkeys(
        ("retrying", "paused", "buffered", "waiting", "waits", "blocked", "released", "snoozed", "given", "stopping"),
        _YELLOW,
    ),
    **dict.fromkeys(("failed", "timed_out", "quarantined", "lost", "invalid", "stopped", "dead"), _RED),
    **dict.fromkeys(("cancelled", "skipped"), _DIM),
}


def table_lines(
    headings: Sequence[str],
    rows: Iterable[Sequence[Cell]],
    *,
    columns: int | None = None,
    now: datetime | None = None,
    colour: bool = False,
    spare: Sequence[str] = (),
) -> Iterator[str]:
    """Yield the lines of a table.

    Args:
        rows: The cells; an instant is shown in whole seconds.
        columns: The terminal's width; None where there is no terminal.
        now: If given, instants of the day before and after are shown relative to it.
        spare: Headings of columns that a narrow terminal may go without, the first one first.

    >>> list(table_lines(("key", "state"), [("daily", "active")], columns=80))
    ['key    state', 'daily  active']
    >>> list(table_lines(("key", "state"), [("daily-report", "active")], columns=16))
    ['key    daily-report', 'state  active']
    """
    texts = [[cell_text(cell, now) for cell in row] for row in rows]
    room = sys.maxsize if columns is None else columns
    for below in (False, True):
        for places in _selections(headings, texts, spare):
            layout = _layout(headings, texts, places, room, below=below)
            if layout is not None:
                yield from _table(headings, texts, layout, room, colour=colour)
                return
    for number, row in enumerate(texts):
        yield from [""] if number else []
        yield from fact_lines(zip(headings, row, strict=True), columns=columns, colour=colour)


def cell_text(cell: Cell, now: datetime | None = None) -> str:
    """Return a printable cell on one line; an instant relative to `now` if it is given.

    >>> from datetime import UTC
    >>> cell_text(datetime(2026, 3, 6, 9, 0, 1, 250_000, tzinfo=UTC))
    '2026-03-06T09:00:01Z'
    """
    if isinstance(cell, datetime):
        return format_second(cell) if now is None else relative_text(cell, now)
    return printable(" ".join((cell or "").splitlines()).replace("\t", " "))


def relative_text(at: datetime, now: datetime) -> str:
    """Return the distance of an instant within a day of `now`, else the instant.

    >>> from datetime import UTC, timedelta
    >>> now = datetime(2026, 3, 6, 9, tzinfo=UTC)
    >>> [relative_text(now + timedelta(seconds=each), now) for each in (-3.2, 0, 90, 7300, 90_000)]
    ['3 s ago', 'now', 'in 1 min', 'in 2 h', '2026-03-07T10:00:00Z']
    """
    seconds = int((at - now).total_seconds())
    if abs(seconds) >= _DAY_SECONDS:
        return format_second(at)
    size, unit = next((each for each in _UNITS if abs(seconds) >= each[0]), _UNITS[-1])
    if not seconds:
        return "now"
    few = f"{abs(seconds) // size} {unit}"
    return f"in {few}" if seconds > 0 else f"{few} ago"


def fact_lines(
    facts: Iterable[tuple[str, str | None]], *, columns: int | None = None, colour: bool = False
) -> Iterator[str]:
    """Yield labels with their values, one a line; a label without a value is left out.

    Args:
        facts: The labels and values; a value may have several lines.
        columns: The terminal's width, at which sentences are folded; None where there is no terminal.

    >>> list(fact_lines([("error", "no such account here"), ("result", None)], columns=20))
    ['error  no such account', '       here']
    """
    known = [(name, value) for name, value in facts if value]
    longest = max((len(name) for name, _ in known), default=0)
    room = max(columns - longest - _GAP, _LEAST_FOLDED) if columns else 0
    for name, value in known:
        label = name
        for line in map(printable, value.splitlines()):
            for part in _fold(line, room) if room and name in _SENTENCES else [line]:
                shown = state_text(part, colour=colour) if name in _STATES and label else part
                yield f"{label:<{longest}}{'':<{_GAP}}{shown}"
                label = ""


def state_text(text: str, *, colour: bool) -> str:
    """Return a state in its colour; other text as it is."""
    code = _COLOURS.get(text.partition(" ")[0]) if colour else None
    return f"\x1b[{code}m{text}\x1b[0m" if code else text


def text_width(text: str) -> int:
    """Return the columns that a text takes on a terminal."""
    if text.isascii():
        return len(text)
    from rich.cells import cell_len  # here: most text is ASCII, and needs no tables of widths

    return cell_len(text)


def _selections(
    headings: Sequence[str], texts: Sequence[Sequence[str]], spare: Sequence[str]
) -> Iterator[Sequence[int]]:
    """Yield the columns to show: all, those with a value, and then with one more left out each time."""
    places = list(range(len(headings)))
    yield places
    places = [place for place in places if any(row[place] for row in texts)]
    yield places
    for heading in spare:
        places = [place for place in places if headings[place] != heading]
        yield places


@dataclass(frozen=True, slots=True)
class _Layout:
    """A table that fits: some sentences stand below their rows."""

    places: Sequence[int]
    widths: Sequence[int]
    below: Sequence[int]


def _layout(
    headings: Sequence[str], texts: Sequence[Sequence[str]], places: Sequence[int], columns: int, *, below: bool
) -> _Layout | None:
    """Return a layout, with sentences below their rows if wanted; None if it does not fit."""
    sentences = [place for place in places if headings[place].lower() in _FOLDED] if below else []
    shown = [place for place in places if place not in sentences]
    found = [max([len(headings[place]), *(text_width(row[place]) for row in texts)]) for place in shown]
    widths = _folded_widths([headings[place] for place in shown], found, columns)
    return None if widths is None else _Layout(shown, widths, sentences)


def _folded_widths(headings: Sequence[str], widths: Sequence[int], columns: int) -> list[int] | None:
    """Return the width of each column; None if ids, keys and short sentences do not fit."""
    over = sum(widths) + _GAP * (len(widths) - 1) - columns
    found = list(widths)
    foldable = [place for place, heading in enumerate(headings) if heading.lower() in _FOLDED]
    # The widest sentence gives up its columns first.
    while over > 0:
        widest = max(foldable, key=lambda place: found[place], default=None)
        if widest is None or found[widest] <= max(_LEAST_FOLDED, len(headings[widest])):
            return None
        found[widest] -= 1
        over -= 1
    return found


def _table(
    headings: Sequence[str], texts: Sequence[Sequence[str]], layout: _Layout, columns: int, *, colour: bool
) -> Iterator[str]:
    """Yield the lines of a table that fits."""
    shown = [headings[place] for place in layout.places]
    rows = [
        [_fold(row[place], width) for place, width in zip(layout.places, layout.widths, strict=True)] for row in texts
    ]
    widths = [
        max([len(heading), *(text_width(line) for row in rows for line in row[column])])
        for column, heading in enumerate(shown)
    ]
    yield _heading(shown, widths, colour=colour)
    for row, cells in zip(texts, rows, strict=True):
        for each in range(max(map(len, cells))):
            parts = [cell[each] if each < len(cell) else "" for cell in cells]
            yield _line(parts, widths, shown if colour else None)
        for place in layout.below:
            if not row[place]:
                continue
            label = f"{' ' * _GAP}{headings[place]}: "
            first, *rest = _fold(row[place], max(columns - len(label), _LEAST_FOLDED))
            yield label + first
            yield from (" " * len(label) + line for line in rest)


def _heading(headings: Sequence[str], widths: Sequence[int], *, colour: bool) -> str:
    line = _line(headings, widths)
    return f"\x1b[1m{line}\x1b[0m" if colour else line


def _line(cells: Sequence[str], widths: Sequence[int], coloured: Sequence[str] | None = None) -> str:
    padded = [cell + " " * (width - text_width(cell)) for cell, width in zip(cells, widths, strict=True)]
    last = max((place for place, cell in enumerate(cells) if cell), default=0)
    padded = [*padded[:last], cells[last]]
    if coloured:
        padded = [
            state_text(cells[place], colour=True) + cell[len(cells[place]) :] if coloured[place] in _STATES else cell
            for place, cell in enumerate(padded)
        ]
    return (" " * _GAP).join(padded)


def _fold(text: str, width: int) -> list[str]:
    """Return a sentence as lines of a width; a text that fits, and a single word, stay as they are."""
    if text_width(text) <= width:
        return [text]
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False) or [""]
