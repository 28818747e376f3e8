"""Lines of logs: colours, folded lines, control characters, what follows a part that was read."""

import html
import re

from hypothesis import given
from hypothesis import strategies as st

from tidewheel.control.console.run_log import COLOURS, LONGEST, Line, Log, Span, log_of, spans
from tidewheel.nouns.runs.model import LogPiece


def piece(output: bytes, dropped: int = 0) -> LogPiece:
    return LogPiece(1, None, dropped, output)


def text_of(line: Line) -> str:
    """Return the text of a line as a reader sees it."""
    return html.unescape(re.sub(r"<[^>]+>", "", f"{line.text}{line.rest}"))


@given(st.text(st.characters(exclude_characters="\x1b\n", exclude_categories=["Cs"])))
def test_text_without_escapes_is_one_span(text: str) -> None:
    assert list(spans(text)) == ([Span(text)] if text else [])


@given(
    st.lists(st.one_of(st.text("ab;0123456789[]m"), st.sampled_from(["\x1b", "\x1b[", "\x1b[31m", "\x1b]0;", "\x9b"])))
)
def test_no_escape_is_left_and_every_colour_is_one_of_six(parts: list[str]) -> None:
    for span in spans("".join(parts)):
        assert "\x1b" not in span.text
        assert span.colour is None or span.colour in COLOURS.values()


def test_colours_are_basic_bright_and_those_of_256_that_are_named() -> None:
    coloured = {"31": "red", "92": "green", "1;33": "yellow", "38;5;12": "blue", "35;0;36": "cyan"}
    plain = dict.fromkeys(("38;5;200", "38;2;1;31;3", "48;5;1", "37", ""))
    for code, colour in (coloured | plain).items():
        assert [each.colour for each in spans(f"\x1b[{code}mx")] == [colour], code
    assert list(spans("\x1b[31ma\x1b[mb")) == [Span("a", "red"), Span("b")]


def test_long_lines_are_folded_and_nothing_of_them_is_lost() -> None:
    log = log_of(piece(b"x" * 10_000 + b"\nshort"))
    long, short = log.lines
    assert (len(long.text), long.folded, len(long.rest)) == (LONGEST, 8_000, 8_000)
    assert (short.number, short.text, short.folded) == (2, "short", 0)


def test_control_characters_are_drawn_and_bounded() -> None:
    [line] = log_of(piece("a\u202eb<i>\x07".encode())).lines
    assert line.text == 'a<span class="box">U+202E</span>b&lt;i&gt;<span class="box">U+0007</span>'
    many = log_of(piece(b"\x01" * 65_536))
    assert sum(len(each.text) + len(each.rest) for each in many.lines) < 70_000


def test_only_the_last_thousand_lines_are_in_a_page() -> None:
    log = log_of(piece(b"\n" * 5_000))
    assert (len(log.lines), log.left_out, log.lines[-1].number) == (1_000, 4_000, 5_000)


def test_a_progress_line_shows_its_last_state() -> None:
    [line] = log_of(piece(b"10 %\r20 %\r30 %\n")).lines
    assert line.text == "30 %"


@given(st.lists(st.sampled_from([b"a", b"b\n", "\u00e9\n".encode(), b"\n", b"cc"]), max_size=30))
def test_parts_that_follow_each_other_are_the_whole(writes: list[bytes]) -> None:
    """A reader that reads at any moments has in the end what one has that reads once."""
    whole, after, first, shown = b"", 0, 1, dict[int, str]()
    for write in writes:
        whole += write
        log = log_of(piece(whole[after:]), after=after, first=first, is_over=False)
        shown |= {each.number: text_of(each) for each in log.lines}
        after, first = log.end, log.next_line
    last = log_of(piece(whole), is_over=True)
    assert shown == {each.number: text_of(each) for each in last.lines}


def test_bytes_that_went_before_they_were_read_are_counted() -> None:
    log: Log = log_of(piece(b"late\n", dropped=60), after=40, first=7)
    assert (log.dropped_bytes, log.lines[0].number, log.end) == (60, 7, 105)
