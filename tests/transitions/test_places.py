"""The rate of a key: kept although promotions and claims come late, and no bunch after an outage."""

import heapq
import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from tidewheel.transitions.places import Arrival, KeyRow, Limit, admit

START = datetime(2026, 11, 20, 12, tzinfo=UTC)
HOLDER = Arrival(UUID(int=1), 1, holds=True, scheduled_at=START)
LATE = timedelta(milliseconds=250)


def starts(
    every: timedelta, burst: int, until: timedelta, claimed_at: Callable[[datetime], datetime]
) -> list[datetime]:
    """Return the times at which runs of a key start, of which many wait.

    Args:
        every: The time between two starts.
        burst: The starts at once.
        until: The time that passes.
        claimed_at: Returns the time at which runs are claimed that are promoted at a time.
    """
    chance = random.Random(1)  # noqa: S311 - repeatable
    limit = Limit(None, every // timedelta(microseconds=1), burst)
    row = KeyRow(1, running=0, unclaimed=0, has_waiters=True, limit=limit, tat=None, wake_at=START)
    claims: list[tuple[datetime, int]] = []  # when so many promoted runs start
    started: list[datetime] = []
    wake: datetime | None = START
    while (now := min([*(at for at, _ in claims[:1]), wake or START + until])) < START + until:
        claimed = heapq.heappop(claims)[1] if claims and claims[0][0] == now else 0
        started += [now] * claimed
        assert admit({1: row}, [HOLDER] * claimed, now) == []
        found = row.wanted(now)
        row.promote(found, found, now, more=True)
        if found:
            heapq.heappush(claims, (claimed_at(now), found))
        wake = row.wake_at and row.wake_at + timedelta(milliseconds=chance.uniform(0, 50))
    return started


@pytest.mark.parametrize(("a_minute", "hop"), [(1, 20), (100, 20), (600, 20), (6_000, 20), (600, 200), (60_000, 150)])
def test_rate_is_kept_within_a_hundredth(a_minute: int, hop: int) -> None:
    minutes = 10 if a_minute < 6_000 else 1
    found = starts(
        timedelta(minutes=1) / a_minute, 1, timedelta(minutes=minutes), lambda now: now + timedelta(milliseconds=hop)
    )
    assert abs(len(found) - a_minute * minutes) <= max(a_minute * minutes / 100, 1)


@pytest.mark.parametrize("a_minute", [1, 60, 600, 6_000])
@pytest.mark.parametrize("burst", [1, 5])
def test_outage_adds_a_quarter_of_a_second_to_the_burst(a_minute: int, burst: int) -> None:
    every, back = timedelta(minutes=1) / a_minute, START + timedelta(minutes=10)
    found = starts(every, burst, timedelta(minutes=12), lambda now: max(now, back) + timedelta(milliseconds=20))
    for window in (timedelta(seconds=1), timedelta(seconds=10), timedelta(minutes=1)):
        most = (window + LATE) // every + burst
        for first, last in zip(found, found[most:], strict=False):
            assert last - first >= window, f"more than {most} starts in {window} from {first}"
    assert len(found) >= (timedelta(minutes=2) // every) * 0.99
