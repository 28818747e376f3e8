"""The number of published and unclaimed runs of a topic: control by the age of the oldest."""

from datetime import UTC, datetime

from tidewheel.relay.window import MOST, Window

AT = datetime(2026, 1, 1, tzinfo=UTC)


def publish(window: Window, count: int, now: float) -> list[bytes]:
    runs = [f"{now}-{number}".encode() for number in range(count)]
    window.publish(((run, AT) for run in runs), now)
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


def test_trickle_is_never_counted() -> None:
    window = Window(0.0)
    for now in range(1000):
        assert window.seconds_to_count(now, held=False) > 0
        assert window.takes(10, now)
        publish(window, 10, now)
        assert len(window.unclaimed) <= 100


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
