"""The output of an attempt: numbered and coloured lines, lines that follow, and bytes."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from itertools import islice
from typing import ClassVar, NamedTuple
from uuid import UUID

from fastapi.security import SecurityScopes
from markupsafe import Markup
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from tidewheel.api_keys import Scope
from tidewheel.control.api.answers import call
from tidewheel.control.api.authorization import Caller, caller
from tidewheel.control.api.request_input import TenantQuery, Whole, read_query
from tidewheel.control.api.workers import Workers
from tidewheel.control.client.connection import Connection
from tidewheel.control.console.rendering import HEADERS
from tidewheel.control.console.urls import Urls
from tidewheel.control.console.view import View, in_snapshot
from tidewheel.control.console.words import boxed
from tidewheel.executor.log_lines import read_log_line
from tidewheel.ids import read_uuid
from tidewheel.jobs.validation import shown
from tidewheel.nouns.runs.detail import read_logs, show_run
from tidewheel.nouns.runs.model import LogPiece, RunDetail
from tidewheel.runs import FINAL

LONGEST = 2_000
"""Characters of a line beyond which it is folded."""
COLOURS: Mapping[int, str] = {1: "red", 2: "green", 3: "yellow", 4: "blue", 5: "magenta", 6: "cyan"}
"""The classes by the numbers of ANSI; black and white are the page's ink."""

_FAMILIES = ("", "trouble", "bad")  # by the level of a line
_LINES = 1_000  # in a page: the last ones
_BOXES = 500  # control characters drawn with their numbers; further ones are drawn as one character
# Source: ECMA-48: CSI sequences, OSC and other strings up to their terminator, and escapes of two characters.
_ESCAPE = re.compile(
    r"\x1b\[(?P<parameters>[0-?]*)[ -/]*(?P<final>[@-~])|\x1b[\]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\)?|\x1b[ -/]*[0-~]?"
)
_PARAMETERS = 32  # of one sequence: more are ignored


class Line(NamedTuple):
    """A line, numbered from the first byte that is stored; open while the attempt may still add to it.

    Args:
        family: The colour family of a warning or an error; empty for others.
    """

    number: int
    text: Markup
    rest: Markup
    folded: int
    is_open: bool
    family: str


class Log(NamedTuple):
    """The output of an attempt, or what it has written since a part of it was read.

    Args:
        dropped_bytes: How many bytes before the lines are no longer stored.
        left_out: How many lines before these are left out.
        end: The number of bytes before the next part, in all that the attempt has written.
        next_line: The number of the line with which the next part begins.
    """

    attempt: int
    lines: Sequence[Line]
    dropped_bytes: int
    left_out: int
    end: int
    next_line: int


def log_of(piece: LogPiece, *, after: int = 0, first: int = 1, is_over: bool = True) -> Log:
    """Return the lines of an attempt's output.

    Args:
        after: The bytes that were read before.
        first: The number of the first line after them.
        is_over: True if the attempt writes no more.
    """
    dropped, output = piece.dropped_bytes, piece.output
    text = output.decode(errors="replace").replace("\r\n", "\n")
    given = text.split("\n")
    last = given.pop()  # the text after the last break
    if last:
        given.append(last)
    is_open = bool(last) and not is_over
    left_out = max(len(given) - _LINES, 0)
    boxes, lines = _Boxes(), list[Line]()
    for number, line in enumerate(islice(given, left_out, None), first + left_out):
        line = line.rpartition("\r")[2]  # as a terminal shows the progress of a download
        lines.append(_line(number, line, boxes, is_open=is_open and number == first + len(given) - 1))
    end = after + dropped + (output.rfind(b"\n") + 1 if is_open else len(output))
    return Log(piece.attempt, lines, dropped, left_out, end, first + len(given) - is_open)


class Span(NamedTuple):
    """Text in one colour; None is the page's ink."""

    text: str
    colour: str | None = None


def spans(line: str, colour: str | None = None) -> Iterator[Span]:
    r"""Yield the parts of a line, each in one colour.

    >>> list(spans("\x1b[1;31mfailed\x1b[0m: \x1b]0;title\x07no\x1b[2K disk"))
    [Span(text='failed', colour='red'), Span(text=': no disk', colour=None)]
    """
    at, text = 0, ""
    for found in _ESCAPE.finditer(line):
        text += line[at : found.start()]
        at = found.end()
        if found["final"] == "m" and (following := _selected(found["parameters"], colour)) != colour:
            if text:
                yield Span(text, colour)
            text, colour = "", following
    if text := text + line[at:]:
        yield Span(text, colour)


class _Boxes:
    """Draws control characters, and counts them."""

    def __init__(self) -> None:
        self._left = _BOXES

    def drawn(self, text: str) -> Markup:
        if text.isprintable():
            return boxed(text, kept="\t")
        controls = sum(not char.isprintable() for char in text)
        if controls > self._left:
            text = "".join(char if char.isprintable() or char == "\t" else "\u25af" for char in text)
        self._left = max(self._left - controls, 0)
        return boxed(text, kept="\t")


def _line(number: int, text: str, boxes: _Boxes, *, is_open: bool) -> Line:
    head, rest, room = list[Span](), list[Span](), LONGEST
    for span in spans(text):
        if room > 0:
            head.append(Span(span.text[:room], span.colour))
        if len(span.text) > room:
            rest.append(Span(span.text[room:], span.colour))
        room = max(room - len(span.text), 0)
    found, folded = read_log_line(text), sum(len(each.text) for each in rest)
    family = _FAMILIES[found.level] if found else ""
    return Line(number, _markup(head, boxes), _markup(rest, boxes), folded, is_open, family)


def _markup(parts: Sequence[Span], boxes: _Boxes) -> Markup:
    made = (
        boxes.drawn(each.text)
        if each.colour is None
        else Markup('<span class="ansi-{}">{}</span>').format(each.colour, boxes.drawn(each.text))
        for each in parts
    )
    return Markup("").join(made)


def _selected(parameters: str, colour: str | None) -> str | None:
    """Return the colour after a sequence that selects one."""
    codes = [int(each) if re.fullmatch("[0-9]{1,3}", each) else 0 for each in re.split("[;:]", parameters)]
    codes = codes[:_PARAMETERS]
    at = 0
    while at < len(codes):
        code = codes[at]
        if code in {38, 48}:  # a colour of 256 or of 16 million, of the text or of the ground
            is_short = codes[at + 1 : at + 2] == [5]
            if code == 38:
                number = codes[at + 2] if is_short and at + 2 < len(codes) else 0
                colour = COLOURS.get(number % 8) if number < 16 else None
            at += 3 if is_short else 5
            continue
        if code in {0, 39}:
            colour = None
        elif code // 10 in {3, 9}:
            colour = COLOURS.get(code % 10)
        at += 1
    return colour


class LogQuery(TenantQuery):
    """Query of the output of an attempt."""

    attempt: Whole
    after: Whole | None = None  # the bytes that the reader has
    line: Whole | None = None  # the number of the line that comes next


def run_id_of(request: Request) -> UUID:
    """Return the run that an address names, or answer 404."""
    try:
        return read_uuid(str(request.path_params["run_id"]))
    except ValueError:
        raise HTTPException(
            HTTPStatus.NOT_FOUND,
            f"{shown(request.path_params['run_id'])} is not the id of a run. A run id is a UUID. "
            "Search for it, or look into the list of runs.",
        ) from None


def is_over(run: RunDetail, attempt: int) -> bool:
    """Return True if an attempt writes no more."""
    return run.summary.status in FINAL or attempt < run.summary.attempt or run.summary.status == "retrying"


def read_log(connection: Connection, run: RunDetail, attempt: int) -> Log | None:
    """Return the lines of an attempt; None if none of its output is stored."""
    pieces = read_logs(connection, run.summary.run_id, attempt)
    return log_of(pieces[0], is_over=is_over(run, attempt)) if pieces else None


def attempts_with_logs(run: RunDetail) -> Sequence[int]:
    """Return the attempts whose output may be stored, the newest first."""
    found = {each.attempt for each in run.attempts if each.output is not None}
    if run.summary.attempt and run.summary.finished_at is None:
        found.add(run.summary.attempt)
    return sorted(found, reverse=True)


class RunLines:
    """The lines that an attempt has written since the last look: a part of the page of its run."""

    template: ClassVar[str] = "parts/lines.html"

    def read(self, connection: Connection, caller: Caller, request: Request, urls: Urls) -> View:
        """Read the lines after those that the reader has."""
        query, run_id = read_query(request, LogQuery), run_id_of(request)
        run = in_snapshot(connection, show_run, caller.tenant, run_id)
        over, after = is_over(run, query.attempt), query.after or 0
        pieces = read_logs(connection, run_id, query.attempt, after=after)
        piece = pieces[0] if pieces else LogPiece(query.attempt, None, 0, b"")
        log = log_of(piece, after=after, first=query.line or 1, is_over=over)
        return View({"log": log, "more": None if over else more_of(urls, run_id, log)})


def more_of(urls: Urls, run_id: UUID, log: Log) -> str:
    """Return the address of the lines after those of a log."""
    return urls("run_lines", run_id=run_id, attempt=log.attempt, after=log.end, line=log.next_line)


@dataclass(frozen=True, slots=True)
class RawLog:
    """The stored output of an attempt, byte for byte."""

    reads: Workers

    async def get(self, request: Request) -> Response:
        """Return it as a file."""
        found = await caller(request, SecurityScopes([Scope.READ]))
        query, run_id = read_query(request, LogQuery), run_id_of(request)
        pieces = await call(self.reads, found, lambda each: read_logs(each, run_id, query.attempt))
        name = f"{run_id}-{query.attempt}.log"
        headers = {**HEADERS, "Content-Disposition": f'attachment; filename="{name}"'}
        return Response(b"".join(each.output for each in pieces), headers=headers, media_type="text/plain")
