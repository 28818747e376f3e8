"""Slots: one in ten is reserved for critical work, and never more are taken than exist."""

import threading
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fixtures.services import until
from tests.transitions.stepping import in_background
from tidewheel.executor.slots import Slots
from tidewheel.runs import Lane

ORDINARY = [Lane.STANDARD, Lane.BATCH]


@pytest.mark.parametrize(("total", "kept"), [(1, 0), (9, 0), (10, 1), (19, 1), (20, 2), (100, 10)])
@pytest.mark.parametrize("lane", ORDINARY)
def test_one_slot_of_ten_is_reserved_for_critical(total: int, kept: int, lane: Lane) -> None:
    slots = Slots(total)
    assert slots.take(lane, total) == total - kept
    assert slots.take(lane, 1) == 0
    assert slots.free(lane) == 0
    assert slots.take(Lane.CRITICAL, total) == kept


def test_free_slot_wakes_a_waiter() -> None:
    slots = Slots(1)
    slots.take(Lane.STANDARD, 1)
    assert not slots.wait_free(Lane.STANDARD, 0)
    waiting = in_background(lambda: slots.wait_free(Lane.STANDARD, 30))
    slots.release(Lane.STANDARD, 1)
    assert waiting.result(30)


def test_threads_never_take_more_than_all_slots() -> None:
    slots, busy, most, lock = Slots(7), 0, 0, threading.Lock()

    def work() -> None:
        nonlocal busy, most
        for _ in range(200):
            assert slots.wait_free(Lane.STANDARD, 30)
            taken = slots.take(Lane.STANDARD, 3)
            with lock:
                busy += taken
                most = max(most, busy)
            with lock:
                busy -= taken
            slots.release(Lane.STANDARD, taken)

    for done in [in_background(work) for _ in range(6)]:
        done.result(30)
    assert 0 < most <= 7
    assert slots.free(Lane.STANDARD) == 7


@given(st.integers(1, 200), st.lists(st.tuples(st.sampled_from(list(Lane)), st.integers(1, 50)), max_size=20))
def test_taken_slots_never_exceed_the_total(total: int, wishes: list[tuple[Lane, int]]) -> None:
    slots, taken, held = Slots(total), 0, Counter[Lane]()
    for lane, most in wishes:
        got = slots.take(lane, most)
        taken += got
        held[lane] += got
        assert 0 <= got <= most
        assert taken <= total
        assert lane is Lane.CRITICAL or got == 0 or taken <= total - total // 10
    for lane, count in held.items():
        slots.release(lane, count)
    assert slots.free(Lane.CRITICAL) == total


@pytest.mark.parametrize("lane", ORDINARY)
def test_overcommit_takes_no_slot_from_other_lanes(lane: Lane) -> None:
    slots = Slots(20)
    slots.set_overcommit(30)
    assert slots.free(lane) == 18
    assert slots.free_overcommit(lane) == 48
    assert slots.take_overcommit(lane, 100) == (48, 18)
    assert slots.take(lane, 1) == slots.free(lane) == 0
    assert slots.free(Lane.CRITICAL) == 2
    assert slots.take_overcommit(Lane.CRITICAL, 100) == (2, 2)
    slots.release(lane, 30)
    slots.set_overcommit(0)
    assert slots.free_overcommit(lane) == slots.free(lane) == 0
    slots.release(lane, 10)
    assert slots.free(lane) == 8


def test_overcommit_is_suspended_until_a_real_slot_is_taken() -> None:
    slots = Slots(20)
    slots.set_overcommit(30)
    assert slots.take_overcommit(Lane.STANDARD, 28) == (28, 18)
    slots.suspend_overcommit(Lane.STANDARD, 30)
    threading.Event().wait(0.2)
    slots.release(Lane.STANDARD, 9)
    assert slots.take_overcommit(Lane.STANDARD, 1) == (0, 0)
    slots.release(Lane.STANDARD, 3)
    assert slots.take_overcommit(Lane.BATCH, 1) == (1, 1)  # that was another lane
    assert slots.free_overcommit(Lane.STANDARD) == 1
    assert slots.take_overcommit(Lane.STANDARD, 30) == (1, 1)
    assert slots.free_overcommit(Lane.STANDARD) == 30


def test_suspension_of_overcommit_ends_by_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("tidewheel.executor.slots.monotonic_seconds", lambda: now)
    slots = Slots(20)
    slots.set_overcommit(30)
    slots.suspend_overcommit(Lane.STANDARD, 0.2)
    assert slots.free_overcommit(Lane.STANDARD) == 18
    now += 0.2
    assert slots.free_overcommit(Lane.STANDARD) == 48


def test_overcommit_wakes_a_waiter() -> None:
    slots = Slots(1)
    slots.take(Lane.STANDARD, 1)
    waiting = in_background(lambda: slots.wait_free_overcommit(Lane.STANDARD, 30))
    slots.set_overcommit(5)
    assert waiting.result(30)
    assert not slots.wait_free(Lane.STANDARD, 0)


def test_overcommit_waits_until_half_is_free() -> None:
    slots = Slots(10)
    slots.set_overcommit(10)
    slots.take_overcommit(Lane.STANDARD, 19)  # one slot is kept for critical work
    waiting = in_background(lambda: slots.wait_half_free(Lane.STANDARD, 30))
    slots.release(Lane.STANDARD, 9)
    threading.Event().wait(0.1)
    assert not waiting.done()
    slots.release(Lane.STANDARD, 1)
    waiting.result(30)
    assert slots.free_overcommit(Lane.STANDARD) == 10


def test_no_wait_for_half_without_overcommit() -> None:
    slots = Slots(10)
    slots.take(Lane.STANDARD, 9)
    in_background(lambda: slots.wait_half_free(Lane.STANDARD, 30)).result(30)


@pytest.mark.parametrize("lane", ORDINARY)
def test_take_next_gets_the_next_free_slots(lane: Lane) -> None:
    slots = Slots(20)
    slots.set_overcommit(30)
    assert slots.take_overcommit(Lane.STANDARD, 28) == (28, 18)
    next_one = in_background(lambda: slots.take_next(lane, 2, 30))
    until(lambda: not slots.free_overcommit(Lane.STANDARD), "nothing is claimed ahead")
    slots.release(Lane.STANDARD, 9)
    assert slots.take_overcommit(Lane.STANDARD, 30) == (0, 0)
    assert slots.take_overcommit(Lane.CRITICAL, 30) == (2, 2)  # its own, at any time
    slots.release(Lane.STANDARD, 4)
    threading.Event().wait(0.1)
    assert not next_one.done()  # one is there, and kept until there are two
    assert slots.take_overcommit(Lane.STANDARD, 30) == (0, 0)
    slots.release(Lane.STANDARD, 2)
    assert next_one.result(30) == 2
    assert slots.take_overcommit(Lane.STANDARD, 100).real == 1


def test_take_next_of_the_critical_lane_goes_first() -> None:
    slots = Slots(10)
    assert slots.take(Lane.CRITICAL, 10) == 10
    next_one = in_background(lambda: slots.take_next(Lane.CRITICAL, 2, 30))
    slots.release(Lane.CRITICAL, 2)
    assert next_one.result(30) == 2
    assert [slots.free(lane) for lane in Lane] == [0, 0, 0]


def test_take_next_takes_slots_that_came_free_in_time() -> None:
    slots = Slots(10)
    assert slots.take(Lane.STANDARD, 9) == 9
    slots.release(Lane.STANDARD, 3)
    assert slots.take_next(Lane.STANDARD, 5, 0.05) == 3


def test_take_next_without_slots_blocks_no_lane() -> None:
    slots = Slots(10)
    slots.set_overcommit(10)
    assert slots.take(Lane.STANDARD, 9) == 9
    assert slots.take_next(Lane.STANDARD, 1, 0.05) == 0
    assert slots.free_overcommit(Lane.STANDARD) == 10
