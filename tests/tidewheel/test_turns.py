"""Threads that tenants share."""

import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future

import pytest

from tests.fixtures.services import until
from tidewheel.turns import SharedThreads


@pytest.fixture
def threads() -> Iterator[SharedThreads]:
    shared = SharedThreads(8, "shared")
    yield shared
    shared.close()


def running(*futures: "Future[bool]") -> int:
    return sum(future.running() for future in futures)


def test_tenant_has_as_many_threads_as_all_others_leave_free(threads: SharedThreads) -> None:
    hold = threading.Event()
    first = [threads.submit("first", lambda: hold.wait(60)) for _ in range(9)]
    second = [threads.submit("second", lambda: hold.wait(60)) for _ in range(9)]
    third = [threads.submit("third", lambda: hold.wait(60)) for _ in range(9)]
    until(lambda: running(*first, *second, *third) == 7, "seven are running")
    assert (running(*first), running(*second), running(*third)) == (4, 2, 1)
    assert threads.submit("fourth", lambda: "done").result(60) == "done"
    hold.set()
    assert all(future.result(60) for future in first + second + third)


def test_work_that_waits_can_be_cancelled_and_leaves_its_turn(threads: SharedThreads) -> None:
    hold = threading.Event()
    held = [threads.submit("first", lambda: hold.wait(60)) for _ in range(4)]
    until(lambda: running(*held) == 4, "four are running")
    waiting = threads.submit("first", lambda: True)
    last = threads.submit("first", lambda: True)
    assert waiting.cancel()
    hold.set()
    assert last.result(60)
    assert waiting.cancelled()


def test_close_cancels_what_waits(threads: SharedThreads) -> None:
    hold = threading.Event()
    held = [threads.submit("first", lambda: hold.wait(60)) for _ in range(4)]
    waiting = threads.submit("first", lambda: True)
    threads.close()
    with pytest.raises(CancelledError):
        waiting.result(60)
    hold.set()
    assert all(future.result(60) for future in held)


def test_error_of_work_is_its_callers_and_frees_its_thread(threads: SharedThreads) -> None:
    for _ in range(20):
        with pytest.raises(ZeroDivisionError):
            threads.submit("first", lambda: 1 // 0).result(60)
