"""docs/run-states.md equals tidewheel/runs.py."""

from tests.docs.run_states import PAGE, page


def test_page_equals_the_code() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run `python -m tests.docs.run_states`"
