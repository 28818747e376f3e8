"""Durations and instants: read in every documented form, written so that they are read back equal."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidewheel.jobs.invalid import InvalidValue
from tidewheel.jobs.values import format_duration, format_timestamp, microseconds, parse_duration, parse_timestamp


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
    ["", "10", "s", "P", "PT", "P1DT", "1s1s", "1s1m", "-5s", "1 s", "٣s", "1e3s", "0.1us", "999999999999d", -1, 1e300,
     10**400, -(10**400), float("inf"), float("-inf"), float("nan"), True],
)  # fmt: skip
def test_invalid_duration_is_refused(text: str | float) -> None:
    with pytest.raises(InvalidValue):
        parse_duration(text)


@given(st.datetimes(datetime(1970, 1, 2), datetime(9999, 12, 30), timezones=st.timezones()))  # noqa: DTZ001
def test_written_instant_is_read_back_equal(moment: datetime) -> None:
    assert parse_timestamp(format_timestamp(moment)) == moment.astimezone(UTC)
    assert parse_timestamp(moment.astimezone(UTC).isoformat()) == moment.astimezone(UTC)


@pytest.mark.parametrize(
    "text",
    ["", "2027-01-01", "2027-01-01T00:00Z", "2027-02-30T00:00:00Z", "2027-01-01T24:00:01Z", "2027-01-01T00:00:60Z",
     "1969-12-31T23:59:59Z", "9999-12-31T23:59:59-01:00", "2027-01-01T00:00:00+24:00", "2027-01-01T00:00:00", "now",
     "٢027-01-01T00:00:00Z", "2027-01-01T24:00:00Z"],
)  # fmt: skip
def test_invalid_instant_is_refused(text: str) -> None:
    with pytest.raises(InvalidValue):
        parse_timestamp(text)
