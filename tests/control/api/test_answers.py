"""JSON that is encoded element by element is that of the whole value."""

import json
from datetime import UTC, datetime

import pytest

from tidewheel.control.api.answers import encoded
from tidewheel.control.reads.json_form import as_json
from tidewheel.nouns.operation import Page
from tidewheel.nouns.runs.model import RunPage
from tidewheel.runs import RunState

AT = datetime(2026, 11, 28, tzinfo=UTC)


@pytest.mark.parametrize(
    "value",
    [
        None, "ü\ud800", 1.5, AT, RunState.QUEUED, [], [AT, None], {}, {"a": []}, {"a": ["ü", 1], "b": {"c": [AT]}},
        {"runs": Page([{"x": (1,)}, {}], None), "next_cursor": None}, {1: (AT, [RunState.QUEUED])},
        {"a": b"\xff", "b": ""}, RunPage((), None, 0, False),  # noqa: FBT003 - a record
    ],
    ids=repr,
)  # fmt: skip
def test_parts_of_an_answer_are_the_json_of_the_whole(value: object) -> None:
    whole = json.dumps(as_json(value), ensure_ascii=False, separators=(",", ":"))
    assert encoded(value) == whole.encode("utf-8", "replace")
