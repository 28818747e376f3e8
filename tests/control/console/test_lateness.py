"""The lines of lateness as shapes."""

import re
from datetime import UTC, datetime

import pytest

from tidewheel.control.console.axis import Window, axis
from tidewheel.control.console.overview import LATENESS_WIDTH, lateness_lines, lateness_sentence

pytestmark = pytest.mark.unit

HOUR = axis(Window.HOUR, datetime(2026, 11, 21, 22, 16, 10, tzinfo=UTC))
NONE: list[float | None] = [None] * HOUR.behind


def test_line_ends_at_now_and_a_bin_without_runs_interrupts_it() -> None:
    values = [0.02, *NONE[1:-2], 0.5, 2.0]
    drawn = lateness_lines(HOUR, values, values)
    assert drawn.p50.count("M") == 2
    assert max(float(x) for x in re.findall(r"[MH]([\d.]+)", drawn.p50)) == LATENESS_WIDTH
    assert all(0 <= float(y) <= drawn.height for y in re.findall(r"V([\d.]+)", drawn.p50))


def test_rules_are_powers_of_ten_around_the_values() -> None:
    drawn = lateness_lines(HOUR, [0.02, *NONE[1:]], [3.0, *NONE[1:]])
    assert [rule.text for rule in drawn.rules] == ["10 ms", "100 ms", "1 s", "10 s"]
    assert [rule.y for rule in drawn.rules] == sorted((rule.y for rule in drawn.rules), reverse=True)


def test_nothing_and_zero_have_a_plot() -> None:
    assert (lateness_lines(HOUR, NONE, NONE).p50, len(lateness_lines(HOUR, NONE, NONE).rules) >= 3) == ("", True)
    assert lateness_lines(HOUR, [0.0, *NONE[1:]], NONE).p50.startswith("M0.0")


def test_sentence_names_both_quantiles() -> None:
    assert lateness_sentence("due → claim", 0.0113, 1.2) == (
        "Lateness, due → claim: half of the runs within 11.3 ms, 99 of 100 within 1.2 s."
    )
    assert "no run in this window" in lateness_sentence("due → claim", None, None)
