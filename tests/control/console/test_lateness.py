"""The lines of lateness as shapes."""

import re
from datetime import UTC, datetime

import pytest

from tidewheel.control.console.axis import Window, axis
from tidewheel.control.console.overview import LATENESS_WIDTH, lateness_lines

pytestmark = pytest.mark.unit

HOUR = axis(Window.HOUR, datetime(2026, 11, 21, 22, 16, 10, tzinfo=UTC))
NONE: list[float | None] = [None] * HOUR.behind


def test_each_bin_with_runs_has_its_median_and_the_last_one_ends_at_now() -> None:
    values = [0.02, *NONE[1:-2], 0.5, 2.0]
    drawn = lateness_lines(HOUR, values, values)
    assert (drawn.p50.count("M"), drawn.p99.count("M")) == (3, 3)
    [*_, (last, width)] = re.findall(r"M([\d.]+) [\d.]+h([\d.]+)", drawn.p50)
    assert float(last) + float(width) == pytest.approx(LATENESS_WIDTH, abs=0.2)
    assert all(0 <= float(y) <= drawn.height for y in re.findall(r"V([\d.]+)", drawn.p99))


def test_nothing_and_zero_have_a_plot() -> None:
    assert (lateness_lines(HOUR, NONE, NONE).p50, len(lateness_lines(HOUR, NONE, NONE).rules) >= 3) == ("", True)
    assert lateness_lines(HOUR, [0.0, *NONE[1:]], NONE).p50.startswith("M0.0")
