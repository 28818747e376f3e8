"""docs/run-states.md says what tidewheel/runs.py says."""

import re

from tests.docs.run_states import PAGE, page
from tidewheel.runs import FINAL, MOVES, Move, RunState

ARROW = re.compile(r"^    (\w+) --> (\w+): (\w+)$", re.MULTILINE)


def test_the_page_is_what_the_code_says() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run `python -m tests.docs.run_states`"


def test_every_arrow_of_the_diagram_is_a_row_of_the_table_and_no_row_is_missing() -> None:
    drawn = {(RunState(source), RunState(to), Move(move)) for source, to, move in ARROW.findall(page())}
    assert drawn == {(source, MOVES[move].target, move) for move in Move for source in MOVES[move].sources}


def test_every_state_is_drawn_and_explained() -> None:
    text = page()
    assert all(f"| `{state}` |" in text for state in RunState)
    assert {state for state in RunState if f"    {state} --> [*]" in text} == FINAL
