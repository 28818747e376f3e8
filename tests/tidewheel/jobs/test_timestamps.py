"""Instants as people write them."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidewheel.jobs.invalid import InvalidValue
from tidewheel.jobs.values import format_timestamp, parse_timestamp


@given(st.datetimes(datetime(1970, 1, 2), datetime(9999, 12, 30), timezones=st.timezones()))  # noqa: DTZ001
def test_written_instant_is_read_back_equal(moment: datetime) -> None:
    assert parse_timestamp(format_timestamp(moment)) == moment.astimezone(UTC)
    assert parse_timestamp(moment.astimezone(UTC).isoformat()) == moment.astimezone(UTC)


@pytest.mark.parametrize(
    "text",
    ["", "2027-01-01", "2027-01-01T00:00Z", "2027-02-30T00:00:00Z", "2027-01-01T24:00:01Z", "2027-01-01T00:00:60Z",
     "1969-12-31T23:59:59Z", "9999-12-31T23:59:59-01:00", "2027-01-01T00:00:00+24:00", "2027-01-01T00:00:00", "now",
     "٢027-01-01T00:00:00Z"],
)  # fmt: skip
def test_invalid_instant_is_refused(text: str) -> None:
    with pytest.raises(InvalidValue):
        parse_timestamp(text)
