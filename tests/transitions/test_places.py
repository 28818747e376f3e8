"""The rate of a key: kept over a minute although promotions come late, and no burst after an outage."""

import random
from datetime import UTC, datetime, timedelta

import pytest

from tidewheel.transitions.places import KeyRow, Limit

START = datetime(2026, 11, 20, 12, tzinfo=UTC)


def waiting(every_us: int, burst: int) -> KeyRow:
    """A key without a bound on places, for which runs wait."""
    return KeyRow(1, 0, has_waiters=True, limit=Limit(None, every_us, burst), tat=None, wake_at=START)


def promote(row: KeyRow, now: datetime) -> int:
    wanted = row.wanted(now)
    row.promote(wanted, wanted, now, more=True)
    return wanted


@pytest.mark.parametrize("a_minute", [100, 6_000, 600_000])
def test_rate_over_a_minute_is_kept_within_a_hundredth(a_minute: int) -> None:
    chance = random.Random(a_minute)  # noqa: S311 - repeatable
    row, now, started = waiting(60_000_000 // a_minute, 1), START, 0
    while now < START + timedelta(minutes=1):
        started += promote(row, now)
        assert row.wake_at is not None
        now = row.wake_at + timedelta(milliseconds=chance.uniform(0, 50))
    assert abs(started - a_minute) <= a_minute / 100


@pytest.mark.parametrize("burst", [1, 5])
def test_outage_adds_a_quarter_of_a_second_to_the_burst(burst: int) -> None:
    row = waiting(10_000, burst)
    assert promote(row, START) == burst
    assert promote(row, START + timedelta(minutes=10)) == burst + 25
