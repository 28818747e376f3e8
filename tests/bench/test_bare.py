"""The baselines of bare libraries do all of their calls, and as many at once as they may."""

import pytest

from tidewheel.bench import bare


def test_awaiting_coroutines_overlap() -> None:
    # The quickest of three: a busy machine slows down all of one.
    assert 500 < max(bare.awaited(200, at_once=50, seconds=0.01) for _ in range(3)) <= 5000


def test_blocking_functions_overlap_on_threads() -> None:
    assert 200 < max(bare.on_threads(80, threads=8, seconds=0.01) for _ in range(3)) <= 800


@pytest.mark.process
def test_processes_answer_each_message() -> None:
    assert bare.in_processes(100, processes=2, message=b"x" * 200) > 0
