"""docs/run-states.md equals tidewheel/runs.py."""

from tests.docs.run_states import PAGE, page, sentences
from tidewheel.runs import RunState


def test_page_equals_the_code() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run `python -m tests.docs.run_states`"


def test_docstring_of_two_lines_becomes_one_row() -> None:
    source = 'class RunState(StrEnum):\n    QUEUED = "queued"\n    """Waits for\n    an executor."""\n'
    assert sentences(RunState, source) == {"queued": "Waits for an executor."}
