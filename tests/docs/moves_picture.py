"""Draw docs/images/moves-of-a-run.svg: a row for each move, a column for each state.

`python -m tests.docs.run_states` writes it beside the page.
"""

from collections.abc import Iterator
from pathlib import Path

from tidewheel.runs import FINAL, MOVES, Move, RunState

PICTURE = Path(__file__).parents[2] / "docs" / "images" / "moves-of-a-run.svg"

_LEFT, _TOP, _COLUMN, _ROW = 120, 92, 28, 26
_WIDTH, _HEIGHT = 480, _TOP + _ROW * len(Move) + 12
_DOT, _TIP = 4, 9  # radius of a source, length of an arrow's head
_STATES = tuple(RunState)
_STYLE = """\
<style>
  .paper { fill: #fafaf9; } .end { fill: #eceeee; } .row { stroke: #dfe2e2; }
  text { fill: #15191d; font: 13px system-ui, sans-serif; } .q { fill: #566069; }
  .line { stroke: #0a5cae; stroke-width: 2; } .dot, .tip { fill: #0a5cae; }
  @media (prefers-color-scheme: dark) {
    .paper { fill: #0e1114; } .end { fill: #1f252b; } .row { stroke: #2b3137; }
    text { fill: #eceff1; } .q { fill: #b4bcc4; }
    .line { stroke: #83bdff; } .dot, .tip { fill: #83bdff; }
  }
</style>"""


def picture() -> str:
    """Return the picture as SVG."""
    first = _LEFT + _COLUMN * min(_STATES.index(state) for state in FINAL)
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}"'
            f' height="{_HEIGHT}" role="img">',
            "<title>All moves of a run: from each state with a dot to the state at the arrow's head</title>",
            _STYLE,
            f'<rect class="paper" width="{_WIDTH}" height="{_HEIGHT}" rx="8"/>',
            f'<rect class="end" x="{first}" y="{_TOP}" width="{_COLUMN * len(FINAL)}" height="{_HEIGHT - _TOP - 12}"/>',
            *(_head(state) for state in _STATES),
            *(line for number, move in enumerate(Move) for line in _row(number, move)),
            "</svg>",
            "",
        )
    )


def _head(state: RunState) -> str:
    x = _x(state) + 4
    return f'<text class="q" transform="translate({x} {_TOP - 8}) rotate(-60)">{state}</text>'


def _row(number: int, move: Move) -> Iterator[str]:
    """Yield a name, a dot for each source, and a line to the target from each side with a source."""
    y, end = _TOP + _ROW * number + _ROW // 2, _x(MOVES[move].target)
    places = [_x(state) for state in _STATES if state in MOVES[move].sources]
    yield f'<path class="row" d="M12 {y + _ROW // 2}H{_WIDTH - 12}"/><text x="14" y="{y + 4}">{move}</text>'
    for start, step in ((min(places), 1), (max(places), -1)):
        if (end - start) * step > 0:
            yield f'<path class="line" d="M{start} {y}H{end - _TIP * step}"/>'
            yield f'<path class="tip" d="M{end} {y}l{-_TIP * step} -5v10z"/>'
    yield "".join(f'<circle class="dot" cx="{x}" cy="{y}" r="{_DOT}"/>' for x in places)


def _x(state: RunState) -> int:
    """Return the middle of a state's column."""
    return _LEFT + _COLUMN * _STATES.index(state) + _COLUMN // 2
