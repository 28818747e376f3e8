r"""The colours of a line of a log: six classes of ANSI, without the other escapes."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

COLOURS: Mapping[int, str] = {1: "red", 2: "green", 3: "yellow", 4: "blue", 5: "magenta", 6: "cyan"}
"""The classes by the numbers of ANSI; black and white are the page's ink."""

# Source: ECMA-48: CSI sequences, OSC and other strings up to their terminator, and escapes of two characters.
_ESCAPE = re.compile(
    r"\x1b\[(?P<parameters>[0-?]*)[ -/]*(?P<final>[@-~])|\x1b[\]PX^_][^\x07\x1b\n]*(?:\x07|\x1b\\)?|\x1b[ -/]*[0-~]?"
)
_PARAMETERS = 32  # of one sequence: more are ignored


@dataclass(frozen=True, slots=True)
class Span:
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


def _selected(parameters: str, colour: str | None) -> str | None:
    """Return the colour after a sequence that selects one."""
    codes = [int(each) if each.isdecimal() and len(each) < 4 else 0 for each in re.split("[;:]", parameters)]
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
