"""The pace of bulk work over the last half minute, as pages read it."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from tidewheel.control.console.progress import Paces, Work

BEGAN = datetime(2026, 11, 21, 12, tzinfo=UTC)
WORK = Work("redrive", "r", "running", (), 0, 100_000, BEGAN)


def seen(paces: Paces, seconds: float, done: int, state: str = "running") -> Work:
    """Return the work as a page shows it that is read so many seconds after its beginning."""
    return paces.seen(replace(WORK, done=done, state=state, rate=1.0), BEGAN + timedelta(seconds=seconds))


def test_pace_is_that_of_the_last_half_minute() -> None:
    paces = Paces()
    assert not seen(paces, 100, 10_000).is_recent  # nothing is known of before
    assert not seen(paces, 104, 10_400).is_recent  # too early
    assert seen(paces, 110, 11_000).rate == pytest.approx(100)
    for second in range(111, 171):
        seen(paces, second, 11_000)
    stopped = seen(paces, 171, 11_000)
    assert (stopped.rate, stopped.left, stopped.is_recent) == (0, None, True)
    fast = seen(paces, 181, 31_000)
    assert fast.rate == pytest.approx(20_000 / 30)
    assert fast.left == timedelta(seconds=round(69_000 / (20_000 / 30)))


def test_work_that_is_paused_or_was_not_looked_at_has_the_pace_since_its_acceptance() -> None:
    paces = Paces()
    seen(paces, 100, 10_000)
    assert not seen(paces, 120, 12_000, "paused").is_recent
    assert not seen(paces, 900, 13_000).is_recent


def test_few_works_are_remembered() -> None:
    paces = Paces()
    for number in range(1_000):
        paces.seen(replace(WORK, id=str(number)), BEGAN)
    assert len(paces) <= 500
