"""The shapes of the tide line."""

from datetime import UTC, datetime

import pytest

from tidewheel.control.console.axis import Window, axis
from tidewheel.control.console.tide import WIDE, Counts, tide

pytestmark = pytest.mark.unit

HOUR = axis(Window.HOUR, datetime(2026, 11, 21, 22, 16, 10, tzinfo=UTC))
EMPTY = [Counts()] * 150


def bins(**at: Counts) -> list[Counts]:
    """Return the counts of the hour, by `b` and the number of the bin."""
    return [at.get(f"b{number}", Counts()) for number in range(150)]


def nowhere(begin: datetime, end: datetime) -> str | None:
    return f"/runs?since={begin:%H:%M:%S}&until={end:%H:%M:%S}"


def test_one_beside_thousands_is_seen() -> None:
    drawn = tide(HOUR, bins(b0=Counts(succeeded=4000), b1=Counts(succeeded=1), b2=Counts(failed=1)), WIDE, nowhere)
    assert [bar.height >= 3 for column in drawn.columns for bar in column.bars] == [True, True, True]
    assert drawn.top == (HOUR.begin, "4,000")


def test_lozenge_stands_where_no_bar_stands() -> None:
    drawn = tide(HOUR, bins(b3=Counts(failed=1, skipped=1), b4=Counts(skipped=1)), WIDE, nowhere)
    beside_failure, alone = (column.diamond for column in drawn.columns)
    assert beside_failure is None
    assert alone is not None
