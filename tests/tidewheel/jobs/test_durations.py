"""Spans of time as people write them."""

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidewheel.jobs.invalid import InvalidValue
from tidewheel.jobs.values import format_duration, microseconds, parse_duration


@given(st.timedeltas(timedelta(0), timedelta(days=36_000)))
def test_written_duration_is_read_back_equal(span: timedelta) -> None:
    assert parse_duration(format_duration(span)) == span
    assert parse_duration(f"PT{microseconds(span) // 1_000_000}.{microseconds(span) % 1_000_000:06}S") == span


@given(st.text(max_size=30) | st.text("0123456789.wdhmsuPTYDWHMS -+", max_size=12))
def test_any_text_is_a_duration_or_refused_with_a_reason(text: str) -> None:
    try:
        assert parse_duration(text) >= timedelta(0)
    except InvalidValue as invalid:
        assert invalid.errors[0].remedy  # noqa: PT017 - either outcome is right, silence is not


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("10s", 10), ("5m", 300), ("1h30m", 5400), ("250ms", 0.25), ("1.5h", 5400), ("P1DT2H", 93_600), ("P2W", 1_209_600),
     (10, 10), (0.25, 0.25), ("0s", 0), ("1d", 86_400), ("7us", 0.000007)],
)  # fmt: skip
def test_durations_are_read_in_every_form(text: str | float, seconds: float) -> None:
    assert parse_duration(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    "text",
    ["", "10", "s", "P", "PT", "P1DT", "1s1s", "1s1m", "-5s", "1 s", "٣s", "1e3s", "0.1us", "999999999999d", -1, 1e300],
)
def test_invalid_duration_is_refused(text: str | float) -> None:
    with pytest.raises(InvalidValue):
        parse_duration(text)
