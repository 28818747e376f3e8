"""The baselines of bare libraries do all of their calls, and as many at once as they may."""

import pytest

from tidewheel.bench import bare


def test_awaiting_coroutines_overlap() -> None:
    assert 500 < bare.awaited(200, at_once=50, seconds=0.01) <= 5000


def test_blocking_functions_overlap_on_threads() -> None:
    assert 200 < bare.on_threads(80, threads=8, seconds=0.01) <= 800


@pytest.mark.process
def test_processes_answer_each_message() -> None:
    assert bare.in_processes(100, processes=2, message=b"x" * 200) > 0
