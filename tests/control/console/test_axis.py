"""Windows whose edges lie on bins, in every zone and over clock changes."""

from datetime import UTC, datetime, timedelta, timezone
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest

from tidewheel.control.console.axis import Window, axis

NOW = datetime(2026, 11, 21, 22, 16, 10, tzinfo=UTC)
BERLIN, KOLKATA = ZoneInfo("Europe/Berlin"), ZoneInfo("Asia/Kolkata")
BINS = {
    "2m": (120, 30), "10m": (120, 30), "1h": (120, 30), "6h": (90, 22), "24h": (96, 24), "7d": (84, 21),
    "30d": (120, 30), "90d": (90, 22),
}  # fmt: skip


@pytest.mark.unit
@pytest.mark.parametrize("window", Window)
@pytest.mark.parametrize("zone", [UTC, BERLIN, KOLKATA, timezone(timedelta(hours=-9, minutes=-30))])
def test_now_is_in_the_last_bin_behind_and_bins_follow_each_other(window: Window, zone: ZoneInfo) -> None:
    found = axis(window, NOW, zone)
    behind, ahead = BINS[window]
    assert (found.behind, len(found.edges)) == (behind, behind + ahead + 1)
    assert found.edges[behind - 1] <= NOW < found.until
    assert all(left < right for left, right in pairwise(found.edges))
    assert found.bin_of(NOW) == behind - 1
    assert round(100 * (behind - 1) / (behind + ahead), 3) <= found.x(NOW) <= 100 * behind / (behind + ahead)


@pytest.mark.unit
@pytest.mark.parametrize("window", Window)
@pytest.mark.parametrize("zone", [UTC, BERLIN, KOLKATA])
def test_ticks_lie_on_edges_with_even_distances(window: Window, zone: ZoneInfo) -> None:
    found = axis(window, NOW, zone)
    ticks = list(found.ticks())
    assert len(ticks) >= 4
    distances = {round(right.x - left.x, 2) for left, right in pairwise(ticks)}
    assert max(distances) - min(distances) < 0.02


@pytest.mark.unit
def test_instant_on_an_edge_belongs_to_the_bin_that_begins_there() -> None:
    found = axis(Window.HOUR, datetime(2026, 11, 21, 22, 0, tzinfo=UTC))
    assert found.edges[found.behind - 1] == found.now
    assert found.bin_of(found.end) is None
    assert found.bin_of(found.begin - timedelta(microseconds=1)) is None
    assert (found.x(found.begin - timedelta(days=1)), found.x(found.end + timedelta(days=1))) == (0.0, 100.0)


@pytest.mark.unit
@pytest.mark.parametrize(("now", "hours"), [((2026, 10, 27), 25), ((2026, 3, 31), 23)])
def test_day_of_a_clock_change_is_as_wide_as_others_and_named(now: tuple[int, int, int], hours: int) -> None:
    found = axis(Window.WEEK, datetime(*now, 12, tzinfo=UTC), BERLIN)
    [changed] = [tick for tick in found.ticks() if tick.shift]
    assert changed.shift == timedelta(hours=hours - 24)
    begin = next(edge for edge in found.edges if found.x(edge) == pytest.approx(changed.x, abs=0.01))
    assert found.x(begin + timedelta(hours=hours)) - found.x(begin) == pytest.approx(12 * found.width, abs=0.01)
