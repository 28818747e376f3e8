"""The lines of lateness as shapes."""

import re
from datetime import UTC, datetime

import pytest

from tidewheel.control.console.axis import Window, axis
from tidewheel.control.console.overview import LATENESS_WIDTH, lateness_lines

pytestmark = pytest.mark.unit

HOUR = axis(Window.HOUR, datetime(2026, 11, 21, 22, 16, 10, tzinfo=UTC))
NONE: list[float | None] = [None] * HOUR.behind


def test_line_ends_at_now_and_a_bin_without_runs_interrupts_it() -> None:
    values = [0.02, *NONE[1:-2], 0.5, 2.0]
    drawn = lateness_lines(HOUR, values, values)
    assert drawn.p50.count("M") == 2
    assert max(float(x) for x in re.findall(r"[MH]([\d.]+)", drawn.p50)) == LATENESS_WIDTH
    assert all(0 <= float(y) <= drawn.height for y in re.findall(r"V([\d.]+)", drawn.p50))


def test_nothing_and_zero_have_a_plot() -> None:
    assert (lateness_lines(HOUR, NONE, NONE).p50, len(lateness_lines(HOUR, NONE, NONE).rules) >= 3) == ("", True)
    assert lateness_lines(HOUR, [0.0, *NONE[1:]], NONE).p50.startswith("M0.0")
