"""Rows are done together, or one by one if one of them fails."""

from collections.abc import Sequence

import pytest

from tidewheel.errors import Unavailable
from tidewheel.scheduler.set_aside import SetAside


def test_row_that_fails_is_left_out_alone() -> None:
    def count(rows: Sequence[int]) -> int:
        if 2 in rows:
            raise ValueError(rows)
        return len(rows)

    aside = SetAside[int]()
    assert aside.together([1, 2, 3], count, "count row") == 2
    assert aside.current() == {2}


@pytest.mark.parametrize("error", [MemoryError(), Unavailable("the database is away")])
def test_error_of_no_row_leaves_no_row_out(error: Exception) -> None:
    def fail(_: Sequence[int]) -> int:
        raise error

    aside = SetAside[int]()
    with pytest.raises(type(error)):
        aside.together([1, 2], fail, "count row")
    with pytest.raises(type(error)), aside.alone(1, "count row"):
        raise error
    assert aside.current() == set()
