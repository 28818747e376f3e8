"""The ring of a tenant's rate: exact under a flood, no delay under the limit."""

import random
from datetime import UTC, datetime, timedelta

import pytest

from tidewheel.transitions.rate_ring import Ring

START = datetime(2026, 11, 20, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def most_in(window: timedelta, times: list[datetime]) -> int:
    """Return the greatest number of times in any window."""
    times = sorted(times)
    first, most = 0, 0
    for last, at in enumerate(times):
        while at - times[first] >= window:
            first += 1
        most = max(most, last - first + 1)
    return most


def flood(per_second: float, offered: int, seconds: int) -> list[datetime]:
    """Return the times at which runs are due that a flood offers, with the pacer's looks each second."""
    ring, held, due = Ring(per_second), 0, list[datetime]()
    for second in range(seconds):
        for tick in range(10):
            now = START + timedelta(seconds=second, milliseconds=100 * tick + 3)
            ring.forget_past(now)
            for _ in range(offered // 10):
                at = None if held else ring.place(now)
                held += at is None
                due += [] if at is None else [at]
            if tick == 5:
                while held and (at := ring.place(now, reach=2, spaced=True)) is not None:
                    held -= 1
                    due.append(at)
    return due


@pytest.mark.parametrize("per_second", [100.0, 7.5, 1.0, 0.5, 0.01])
def test_flood_is_within_a_hundredth_of_the_rate_in_any_minute(per_second: float) -> None:
    due = flood(per_second, 1000, 180 if per_second > 0.1 else 600)
    within = [at for at in due if at >= START + timedelta(seconds=1)]
    assert most_in(MINUTE, within) <= max(per_second * 60 * 1.01, per_second * 60 + 1)
    assert len(due) >= per_second * (170 if per_second > 0.1 else 590) - 1


def test_timers_written_ahead_delay_no_trigger_under_the_limit() -> None:
    chance = random.Random(1)  # noqa: S311 - repeatable
    ring, delays = Ring(100), list[timedelta]()
    for step in range(600):
        now = START + timedelta(milliseconds=100 * step)
        ring.forget_past(now)
        for _ in range(2):
            assert ring.place(now + timedelta(seconds=5)) is not None
        for _ in range(2):
            at = now + timedelta(milliseconds=chance.uniform(0, 50))
            due = ring.place(at)
            assert due is not None
            delays.append(due - at)
    assert max(delays) == timedelta(0)


def test_order_is_kept_and_another_rate_applies_to_free_places() -> None:
    ring = Ring(10)
    ring.forget_past(START)
    due = [at for _ in range(60) if (at := ring.place(START)) is not None]
    assert due == sorted(due)
    assert ring.place(START) is not None
    for _ in range(100):
        ring.place(START)
    assert ring.place(START) is None
    ring.change_rate(20)
    assert ring.place(START) == START
    ring.change_rate(0.1)
    ring.forget_past(START)
    assert ring.place(START) == START
    assert ring.place(START) == START + timedelta(seconds=10)
