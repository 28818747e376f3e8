"""The shapes of the tide line."""

from datetime import UTC, datetime

import pytest

from tidewheel.control.console.axis import Window, axis
from tidewheel.control.console.tide import WIDE, Counts, sentence, tide

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


def test_lozenge_hides_no_failure_of_its_bin() -> None:
    drawn = tide(HOUR, bins(b3=Counts(failed=1, skipped=1), b4=Counts(skipped=1)), WIDE, nowhere)
    raised, on_axis = (column.diamond for column in drawn.columns)
    assert raised is not None
    assert raised[1] + 4.5 < drawn.size.above < drawn.columns[0].bars[0].y
    assert on_axis is not None
    assert on_axis[1] == drawn.size.above


def test_nothing_draws_nothing_but_the_axis() -> None:
    drawn = tide(HOUR, EMPTY, WIDE, nowhere)
    assert (drawn.columns, drawn.top) == ([], None)
    assert drawn.ticks


def test_a_full_plot_has_at_most_400_shapes() -> None:
    full = [Counts(9, 9, 9, 9, 9)] * 120 + [Counts(coming=9)] * 30
    drawn = tide(HOUR, full, WIDE, nowhere)
    shapes = sum(len(each.bars) for each in drawn.columns) + len(drawn.ticks)
    assert shapes + 120 + 1 <= 400


def test_sentence_names_the_most_and_when_failures_began() -> None:
    counts = bins(b10=Counts(succeeded=112), b80=Counts(succeeded=5, failed=7), b90=Counts(timed_out=10, skipped=3))
    counts[130] = Counts(coming=312)
    assert sentence(HOUR, counts) == (
        "Runs by half minute, last hour: 117 succeeded, most 112 at 21:21; 17 failed, all after 21:56; 3 skipped or"
        " cancelled. Upcoming: 312 jobs until 22:31."
    )
    assert sentence(HOUR, EMPTY) == "Runs by half minute, last hour: none ended."
    assert "Upcoming: 0+ jobs" in sentence(HOUR, EMPTY, coming_at_least=True)
