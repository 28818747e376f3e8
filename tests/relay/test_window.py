"""The number of published and unclaimed runs of a topic: control by the age of the oldest."""

from datetime import UTC, datetime

import pytest

from tidewheel.relay.staging import MOST, Window

AT = datetime(2026, 1, 1, tzinfo=UTC)


def publish(window: Window, count: int, now: float) -> list[bytes]:
    runs = [f"{now}-{number}".encode() for number in range(count)]
    window.publish([(run, AT, now) for run in runs[:: window.stride]], now, runs=count)
    return runs


def test_moderate_flow_is_not_counted() -> None:
    """200 runs/s spend the credit no faster than it comes back; a count every five seconds is all."""
    window, counts = Window(0.0), 0
    for step in range(1000):
        now = step / 20
        if window.seconds_to_count(now, held=False) == 0.0:
            counts += 1
            window.counted([], 1, now, share=1.0, held=False)
        assert window.takes(10, now)
        publish(window, 10, now)
    assert counts <= 10


def test_trickle_is_counted_every_30_seconds() -> None:
    window, counts = Window(0.0), 0
    for now in range(900):
        if window.seconds_to_count(now, held=False) == 0.0:
            counts += 1
            window.counted([], 1, now, share=1.0, held=False)
            assert window.seconds_to_count(now + 3600, held=False) > 0, "an idle topic is not counted"
        assert window.takes(1, now)
        publish(window, 1, now)
    assert counts <= 30


def test_slow_overload_is_held_back() -> None:
    """10 runs/s for 10 minutes, and 12 slots with handlers of 60 s: one run in 5 s starts."""
    window, slots = Window(0.0), [0.0] * 12
    backlog, sent, held = 0, 0, False
    waiting: list[bytes] = []
    for step in range(6000):
        now = step / 10
        for slot, until in enumerate(slots):
            if until <= now and waiting:
                waiting.pop(0)
                slots[slot] = now + 60
        backlog += 1
        if window.seconds_to_count(now, held=held) == 0.0:
            window.counted(waiting, 1, now, share=1.0, held=held)
        leaving = min(backlog, window.room()) if held else backlog
        held = held or not window.takes(leaving, now)
        if leaving <= window.room() or not held:
            waiting += publish(window, leaving, now)
            backlog -= leaving
            sent += leaving
        held = backlog > 0
    assert sent < 500


def test_forgotten_runs_make_no_window_grow() -> None:
    window = Window(0.0)
    window.counted([], 1, 0.0, share=1.0, held=True)
    waiting = publish(window, window.room(), 0.0)
    window.counted(waiting, 1, 31.0, share=1.0, held=True)
    assert not window.unclaimed
    size = window.size
    window.counted([], 1, 31.1, share=1.0, held=True)
    assert window.size == size


def test_pause_grows_while_no_run_is_claimed() -> None:
    window, now, counts = Window(0.0), 0.0, 0
    window.counted([], 0, now, share=1.0, held=True)
    waiting = publish(window, window.room(), now)
    while now < 60:
        now += window.seconds_to_count(now, held=True)
        window.counted(waiting, 0, now, share=1.0, held=True)
        counts += 1
    assert counts < 70
    window.counted(waiting[1:], 0, now, share=1.0, held=True)
    assert window.seconds_to_count(now, held=True) <= 0.1


def test_burst_exceeds_a_window_that_begins() -> None:
    window = Window(0.0)
    assert not window.takes(1000, 0.0)
    window.counted([], 10, 0.0, share=1.0, held=False)
    assert (window.room(), window.takes(1000, 0.0)) == (40, False)


def test_window_of_a_queue_without_executors_is_constant() -> None:
    window = Window(0.0)
    for now in range(100):
        window.counted([], 0, now, share=1.0, held=True)
        waiting = publish(window, window.room(), now)
        window.counted(waiting, 0, now + 60, share=1.0, held=True)
        assert (window.size, window.room()) == (64, 0)
        window.unclaimed.clear()


def test_quick_fleet_opens_the_window() -> None:
    window, now = Window(0.0), 0.0
    for _ in range(25):
        window.counted([], 1, now, share=1.0, held=True)
        publish(window, window.room(), now)
        now += 0.05
    assert window.size == MOST


def test_slow_fleet_closes_it() -> None:
    window, now = Window(0.0), 0.0
    window.counted([], 1, now, share=1.0, held=True)
    window.size = MOST
    waiting = publish(window, 500, now)
    for _ in range(40):
        now += 0.5
        window.counted(waiting, 1, now, share=1.0, held=True)
    assert window.size == 4
    window.counted(waiting, 1, 31.0, share=1.0, held=True)
    assert not window.unclaimed, "runs that no executor takes are forgotten after 30 s"


def test_of_a_large_window_a_sample_is_counted() -> None:
    window = Window(0.0)
    window.counted([], 1, 0.0, share=1.0, held=True)
    window.size = MOST
    waiting = publish(window, MOST // 2, 0.0)
    assert len(window.unclaimed) < 256
    assert abs(window.room() - MOST // 2) < 100
    window.counted(waiting[: MOST // 4], 1, 0.05, share=1.0, held=True)
    assert abs(window.size - window.room() - MOST // 4) < 100


def test_first_window_fills_the_slots_of_idle_executors_as_far_as_a_credit() -> None:
    for slots, size in ((4, 16), (100, 100), (2000, 128)):
        window = Window(0.0)
        window.counted([], 1, 0.0, share=1.0, held=True, slots=slots)
        assert window.room() == size


@pytest.mark.parametrize(
    ("before", "running", "ended", "after"),
    [(100, 0, 100, 400), (100, 90, 10, 150), (200, 110, 90, 800), (200, 100, 90, 300)],
)
def test_window_grows_fourfold_only_where_executors_take_more_than_their_slots(
    before: int, running: int, ended: int, after: int
) -> None:
    """Runs that only fill free slots say nothing about those behind them."""
    window = Window(0.0)
    window.counted([], 1, 0.0, share=1.0, held=True, slots=100)
    window.size = before
    publish(window, window.room(), 0.0)
    window.counted([], 1, 0.05, share=1.0, held=True, slots=100, running=running, ended=ended)
    assert window.size == after
    assert window.seconds_to_count(0.05, held=True) < 0.03


def test_count_that_came_too_early_is_repeated_at_once() -> None:
    window = Window(0.0)
    window.counted([], 1, 0.0, share=1.0, held=True, slots=100)
    waiting = publish(window, window.room(), 0.0)
    window.counted(waiting, 1, 0.03, share=1.0, held=True, slots=100)
    assert window.seconds_to_count(0.03, held=True) < 0.05
    window.counted(waiting, 1, 0.2, share=1.0, held=True, slots=100)
    assert window.seconds_to_count(0.2, held=True) >= 0.1


def leave_early(window: Window, count: int, now: float, *, due: float) -> list[bytes]:
    runs = [f"{now}-{due}-{number}".encode() for number in range(window.takes_early(count, 10, now))]
    window.publish([(run, AT, due) for run in runs[:: window.early_stride]], now, runs=len(runs))
    return runs


def test_early_runs_are_bounded_by_slots_and_fill_the_window_once_they_are_due() -> None:
    window = Window(0.0)
    window.counted([], 1, 0.0, share=1.0, held=False, slots=10)
    early = leave_early(window, 2000, 0.0, due=1.0)
    assert len(early) == 500
    assert not leave_early(window, 2000, 0.1, due=1.0)
    assert window.room() > 0, "they fill no window before they are due"
    assert window.takes(10, 0.2)
    assert not window.takes(500, 1.0)
    assert window.room() == 0
    window.counted([], 1, 1.1, share=1.0, held=False, slots=10)
    assert len(leave_early(window, 2000, 1.2, due=2.0)) == 500, "all were claimed"


def test_fewer_runs_leave_early_after_some_have_waited_for_long() -> None:
    """A burst of a slow handler: until executors are quick again, as many leave early as the window has."""
    window = Window(0.0)
    window.counted([], 1, 0.0, share=1.0, held=False, slots=10)
    early, now = leave_early(window, 2000, 0.0, due=1.0), 2.0
    window.settle(now)
    window.counted(early, 1, now, share=1.0, held=False, slots=10)
    window.counted([], 1, now, share=1.0, held=False, slots=10)
    sizes = list[int]()
    for _ in range(8):
        early = leave_early(window, 2000, now, due=now + 1.0)
        sizes.append(len(early))
        now += 1.05
        window.settle(now)
        window.counted([], 1, now, share=1.0, held=False, slots=10)
    assert sizes[0] <= window.size
    assert sizes == sorted(sizes)
    assert sizes[-1] == 500, "each burst that executors took at once has doubled it"
