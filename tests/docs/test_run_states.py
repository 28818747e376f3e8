"""docs/run-states.md equals tidewheel/runs.py."""

import re

from tests.docs.run_states import PAGE, page, sentences
from tidewheel.runs import FINAL, MOVES, Move, RunState

ARROW = re.compile(r"^    (\w+) --> (\w+): (\w+)$", re.MULTILINE)


def test_page_equals_the_code() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run `python -m tests.docs.run_states`"


def test_docstring_of_two_lines_becomes_one_row() -> None:
    source = 'class RunState(StrEnum):\n    QUEUED = "queued"\n    """Waits for\n    an executor."""\n'
    assert sentences(RunState, source) == {"queued": "Waits for an executor."}


def test_diagram_has_exactly_the_rows_of_the_table() -> None:
    drawn = {(RunState(source), RunState(to), Move(move)) for source, to, move in ARROW.findall(page())}
    assert drawn == {(source, MOVES[move].target, move) for move in Move for source in MOVES[move].sources}


def test_every_state_is_drawn_and_explained() -> None:
    text = page()
    assert all(f"| `{state}` |" in text for state in RunState)
    assert {state for state in RunState if f"    {state} --> [*]" in text} == FINAL
