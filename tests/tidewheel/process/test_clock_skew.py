"""Clock skew: measured within its bound, warned of once, and by every service."""

import logging
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import REGISTRY

from tests.fixtures.database import ClockedDatabase
from tests.fixtures.services import until
from tidewheel.clock import monotonic_seconds
from tidewheel.executor.lease import Heartbeat
from tidewheel.membership import Membership
from tidewheel.message_signatures import MessageKeys
from tidewheel.process import clock_skew
from tidewheel.process.clock_skew import ClockSkew
from tidewheel.process.service import Shutdown
from tidewheel.transitions.cancellation import Signal

NOON = datetime(2026, 3, 29, 12, tzinfo=UTC)
MAX_SKEW = timedelta(seconds=2)
QUICK = timedelta(milliseconds=50)


@dataclass
class StoppedClock:
    instant: datetime

    def now(self) -> datetime:
        return self.instant


def measured(name: str = "clock_skew_seconds") -> float:
    """A gauge of this process."""
    return REGISTRY.get_sample_value(f"tidewheel_{name}") or 0.0


def see(skew: ClockSkew, instant: datetime, *, took: float = 0.0) -> None:
    skew.record(instant, since=monotonic_seconds() - took)


@pytest.mark.parametrize("ahead", [timedelta(minutes=2), timedelta(minutes=-2), timedelta(0)])
def test_skew_is_the_machines_clock_minus_the_databases(ahead: timedelta) -> None:
    see(ClockSkew(MAX_SKEW, StoppedClock(NOON + ahead)), NOON)
    assert measured() == pytest.approx(ahead.total_seconds(), abs=0.05)
    assert measured("max_clock_skew_seconds") == 2.0


def test_skew_subtracts_half_of_the_round_trip_as_its_error() -> None:
    see(ClockSkew(MAX_SKEW, StoppedClock(NOON)), NOON - timedelta(seconds=1), took=2.0)
    assert measured() == pytest.approx(0.0, abs=0.05)
    assert measured("clock_skew_bound_seconds") == pytest.approx(1.0, abs=0.05)


@given(st.lists(st.tuples(st.floats(0, 30), st.floats(0, 3), st.floats(0, 3)), min_size=1, max_size=20))
def test_reached_instant_is_never_ahead_of_the_databases_clock(readings: list[tuple[float, float, float]]) -> None:
    """Pauses, and how long each statement and its answer took: the reading lies between the two."""
    skew, seconds = ClockSkew(MAX_SKEW, StoppedClock(NOON)), 1000.0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clock_skew, "monotonic_seconds", lambda: seconds)
        for pause, there, back in readings:
            sent = seconds = seconds + pause
            read = sent + there
            seconds = read + back
            skew.record(NOON + timedelta(seconds=read), since=sent)
            assert skew.database_reached() <= NOON + timedelta(seconds=seconds + 1e-5)
        fastest = min(back for _, _, back in readings)
        seconds += 1.0
        assert skew.database_reached() >= NOON + timedelta(seconds=seconds - fastest - 1e-5)


def test_reached_instant_follows_a_clock_that_is_set_back() -> None:
    skew = ClockSkew(MAX_SKEW, StoppedClock(NOON))
    see(skew, NOON)
    see(skew, NOON - timedelta(hours=1))
    assert skew.database_reached() <= NOON - timedelta(minutes=59)


def test_delayed_statement_measures_no_skew() -> None:
    skew = ClockSkew(MAX_SKEW, StoppedClock(NOON))
    see(skew, NOON)
    see(skew, NOON - timedelta(hours=1), took=10.0)
    assert measured() == pytest.approx(0.0, abs=0.05)


def test_skew_is_logged_once_and_again_when_it_ends(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tidewheel.process.service")
    clock = StoppedClock(NOON + timedelta(minutes=2))
    skew = ClockSkew(MAX_SKEW, clock)
    for _ in range(5):
        see(skew, NOON)
    clock.instant += timedelta(minutes=-2, seconds=1)
    for _ in range(5):
        see(skew, NOON)
    clock.instant += timedelta(minutes=-2)
    see(skew, NOON)
    assert [(record.levelname, "ahead of" in record.message) for record in caplog.records] == [
        ("WARNING", True),
        ("INFO", True),
        ("WARNING", False),
    ]


def test_skew_within_the_round_trip_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    see(ClockSkew(MAX_SKEW, StoppedClock(NOON + timedelta(seconds=2.5))), NOON - timedelta(seconds=1), took=2.0)
    assert not caplog.records


def test_scheduler_and_relay_measure_skew_with_each_heartbeat(clocked: ClockedDatabase) -> None:
    skew = ClockSkew(MAX_SKEW)
    member = Membership(clocked.url, role="relay", name="test", timeout=5 * QUICK, skew=skew)
    member.start()
    try:
        sees_both_ways(clocked)
    finally:
        member.leave()


def test_executor_measures_skew_with_each_heartbeat(clocked: ClockedDatabase) -> None:
    beating = Heartbeat(
        clocked.session(),
        executor_id=uuid4(),
        name="test",
        queues=["default"],
        handlers=[],
        slots=1,
        group_protocol="classic",
        every=QUICK,
        lease=timedelta(seconds=15),
        on_signal=never_here,
        busy=lambda: False,
        keys=MessageKeys(),
        skew=ClockSkew(MAX_SKEW),
    )
    beating.start(Shutdown())
    try:
        sees_both_ways(clocked)
    finally:
        beating.leave(clean=True)


def never_here(run_id: UUID, attempt: int, signal: Signal) -> bool:
    return False


def sees_both_ways(clocked: ClockedDatabase) -> None:
    """The database's clock is moved to and fro, and the measurement follows."""
    for ahead in (timedelta(minutes=2), timedelta(minutes=-4)):
        total = (clocked.advance(ahead) - clocked.value("SELECT clock_timestamp()")).total_seconds()
        until(lambda total=total: abs(measured() + total) < 0.5, f"a skew of {-total:g} s is measured")
