"""Draw docs/images/trace.svg, the trace of one request: `python -m tests.docs.trace_picture`.

The command runs the test that follows a request through real services, which export their spans to it. The test draws
them, and compares the picture in the tree with them: names, parents, services, errors and links, not the times.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

PICTURE = Path(__file__).parents[2] / "docs" / "images" / "trace.svg"
VARIABLE = "TIDEWHEEL_WRITE_TRACE_PICTURE"
TEST = "tests/system/test_traces.py::test_request_with_a_traceparent_is_one_trace_up_to_its_completion"

_WIDTH, _NAMES, _ROW, _TOP = 960, 420, 24, 56
_COLOURS = {"intake": "#7b61a8", "relay": "#2f7f6f", "executor": "#2f6fa8"}
_ERROR, _GREY = "#b3362b", "#666666"
_STYLE = "font-family='ui-monospace, Menlo, Consolas, monospace' font-size='12'"
_GROUP = re.compile(r"<g class='span' data-shape='([^']*)'>")


@dataclass(frozen=True, slots=True)
class Drawn:
    """A span to draw.

    Args:
        span_id: Its id.
        parent_id: That of its parent, in this trace or not.
        name: Its name.
        service: The process that exported it, without `tidewheel-`.
        began: Nanoseconds since 1970.
        ended: Likewise.
        error: The type of its error; none if empty.
        links: The ids of the spans that it links to.
    """

    span_id: bytes
    parent_id: bytes
    name: str
    service: str
    began: int
    ended: int
    error: str = ""
    links: tuple[bytes, ...] = ()


def draw(spans: Sequence[Drawn]) -> str:
    """Return the picture of a trace: a row for each span, below its parent, by time."""
    rows = [*_rows(spans)]
    places = {span.span_id: number for number, (span, _) in enumerate(rows)}
    first, last = min(span.began for span in spans), max(span.ended for span in spans)
    scale = (_WIDTH - _NAMES - 90) / max(last - first, 1)
    height = _TOP + len(rows) * _ROW + 12
    size = f"viewBox='0 0 {_WIDTH} {height}' width='{_WIDTH}' height='{height}'"
    lines = [
        f"<svg xmlns='http://www.w3.org/2000/svg' {size} {_STYLE}>",
        "<title>One trace, from the request to the completion</title>",
        f"<rect width='{_WIDTH}' height='{height}' fill='white'/>",
        *_legend(spans, (last - first) / 1e6),
    ]
    for number, (span, depth) in enumerate(rows):
        top, left, width = _TOP + number * _ROW, (span.began - first) * scale, (span.ended - span.began) * scale
        text = span.name + (f": {span.error}" if span.error else "")
        lines += [
            f"<g class='span' data-shape='{_shape(span, spans)}'>",
            _text(12 + 18 * depth, top + 16, text, "#000000"),
            *_bar(span, _NAMES + left, top, max(width, 2.0)),
            "</g>",
            *(_arrow(number, places[link]) for link in span.links if link in places),
        ]
    return "\n".join([*lines, "</svg>", ""])


def structure(picture: str) -> list[str]:
    """Return what a picture shows without its times, in an order that does not depend on them."""
    return sorted(_GROUP.findall(picture))


def _rows(spans: Sequence[Drawn]) -> Iterator[tuple[Drawn, int]]:
    """Yield each span with its depth, parents first."""
    known = {span.span_id for span in spans}

    def below(parent: bytes | None, depth: int) -> Iterator[tuple[Drawn, int]]:
        chosen = [span for span in spans if (span.parent_id if span.parent_id in known else None) == parent]
        for span in sorted(chosen, key=lambda span: (span.began, span.name)):
            yield span, depth
            yield from below(span.span_id, depth + 1)

    yield from below(None, 0)


def _shape(span: Drawn, spans: Sequence[Drawn]) -> str:
    names: Mapping[bytes, str] = {each.span_id: each.name for each in spans}
    links = " ".join(names.get(link, "another trace") for link in span.links)
    parent = names.get(span.parent_id, "the client")
    return escape(f"{parent} / {span.name} / {span.service} / {span.error} / {links}", quote=True)


def _legend(spans: Sequence[Drawn], milliseconds: float) -> Iterator[str]:
    yield _text(
        12, 20, f"One trace: {milliseconds:.0f} ms. The client's span is the parent of the first rows.", "#000000"
    )
    at = 12
    for service in sorted({span.service for span in spans}):
        yield f"<rect x='{at}' y='32' width='10' height='10' fill='{_COLOURS.get(service, _GREY)}'/>"
        yield _text(at + 16, 41, service, _GREY)
        at += 32 + 8 * len(service)
    yield f"<rect x='{at}' y='32' width='10' height='10' fill='{_ERROR}'/>"
    yield _text(at + 16, 41, "ended with an error", _GREY)
    yield f"<path d='M{at + 170} 37 h24' stroke='{_GREY}' stroke-dasharray='3 2'/>"
    yield _text(at + 200, 41, "link to the attempt before", _GREY)


def _bar(span: Drawn, left: float, top: int, width: float) -> Iterator[str]:
    colour = _ERROR if span.error else _COLOURS.get(span.service, _GREY)
    yield f"<rect x='{left:.1f}' y='{top + 5}' width='{width:.1f}' height='14' rx='2' fill='{colour}'/>"
    yield _text(left + width + 6, top + 16, f"{(span.ended - span.began) / 1e6:.1f} ms", _GREY)


def _arrow(row: int, linked: int) -> str:
    """Return the dashed line from a row to the row of the span that it links to, left of the bars."""
    start, end = (_TOP + number * _ROW + 12 for number in (row, linked))
    return f"<path d='M{_NAMES - 6} {start} h-14 V{end} h14' fill='none' stroke='{_GREY}' stroke-dasharray='3 2'/>"


def _text(x: float, y: float, text: str, colour: str) -> str:
    return f"<text x='{x:.1f}' y='{y}' fill='{colour}'>{escape(text)}</text>"


def main() -> int:
    """Run the test, which writes the picture."""
    environment = {**os.environ, VARIABLE: "1"}
    return subprocess.run([sys.executable, "-m", "pytest", "-q", TEST], env=environment, check=False).returncode


if __name__ == "__main__":
    raise SystemExit(main())
