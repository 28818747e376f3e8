"""Shutdown, loops that survive errors, and backoff."""

import logging
import signal
import subprocess
import sys
import textwrap
import threading

import pytest

from tests.transitions.stepping import in_background
from tidewheel.errors import Unavailable
from tidewheel.process import health as module
from tidewheel.process.health import health
from tidewheel.process.service import Backoff, Shutdown, run_loop

NEVER_SECONDS = 3600.0  # a test that slept it would fail by its own time limit
SOON_SECONDS = 10.0


class Watched(Shutdown):
    """A wish to stop that notes how long it was slept on, and sleeps no longer than needed."""

    def __init__(self) -> None:
        super().__init__()
        self.slept: list[float] = []
        self.stuck: list[str] = []

    def wait(self, seconds: float) -> bool:
        self.slept.append(seconds)
        self.stuck += health.not_alive()
        return super().wait(0)


def run_program(program: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", textwrap.dedent(program)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_requested_shutdown_wakes_sleeping_threads() -> None:
    stop, wake = Shutdown(), threading.Event()
    stop.wakes(wake)
    sleeping = in_background(lambda: stop.wait(NEVER_SECONDS))
    assert not stop.requested()
    stop.request()
    assert sleeping.result(SOON_SECONDS)
    assert wake.is_set()
    assert stop.requested()
    assert stop.wait(NEVER_SECONDS)


def test_full_sleep_reports_no_shutdown() -> None:
    assert not Shutdown().wait(0.001)


@pytest.mark.parametrize("own_wake", [False, True])
def test_sleeping_loop_ends_on_shutdown(*, own_wake: bool) -> None:
    stop, began = Shutdown(), threading.Event()

    def step() -> float:
        began.set()
        return NEVER_SECONDS

    looping = in_background(lambda: run_loop(stop, "test", step, wake=threading.Event() if own_wake else None))
    assert began.wait(SOON_SECONDS)
    stop.request()
    looping.result(SOON_SECONDS)


def test_loop_after_a_shutdown_does_nothing() -> None:
    stop = Shutdown()
    stop.request()
    run_loop(stop, "test", lambda: pytest.fail("a round"))


def test_wake_up_ends_a_sleep_and_is_kept_during_a_poll() -> None:
    stop, wake, rounds = Shutdown(), threading.Event(), 0

    def step() -> float:
        nonlocal rounds
        rounds += 1
        if rounds < 5:
            wake.set()  # while the round is under way
        else:
            stop.request()
        return NEVER_SECONDS

    in_background(lambda: run_loop(stop, "test", step, wake=wake)).result(SOON_SECONDS)
    assert rounds == 5


def test_loop_with_a_backlog_does_not_sleep() -> None:
    stop, left = Watched(), iter([0.0, 0.0, 0.0])

    def step() -> float:
        seconds = next(left, None)
        if seconds is None:
            stop.request()
        return seconds or 0.0

    run_loop(stop, "test", step)
    assert stop.slept == []


@pytest.mark.parametrize("failure", [Unavailable("the database is away"), ValueError("a bug"), KeyError("another")])
def test_loop_survives_every_exception_of_its_polls(failure: Exception, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tidewheel.process.service")
    stop, rounds = Watched(), 0

    def step() -> float:
        nonlocal rounds
        rounds += 1
        if rounds <= 3:
            raise failure
        stop.request()
        return NEVER_SECONDS

    run_loop(stop, "firing", step)
    assert rounds == 4
    assert len(stop.slept) == 3
    expected = isinstance(failure, Unavailable)
    shown = failure if expected else repr(failure)
    assert [record.getMessage() for record in caplog.records] == [
        f"firing: {shown}; this process tries again until it succeeds",
        "firing: works again",
    ]
    assert caplog.records[0].levelno == (logging.WARNING if expected else logging.ERROR)
    assert bool(caplog.records[0].exc_info) != expected, "only an unexpected error is logged with its traceback"


@pytest.mark.parametrize("kind", [Unavailable, ValueError])
def test_loop_logs_an_error_again_when_it_changes(kind: type[Exception], caplog: pytest.LogCaptureFixture) -> None:
    """A second cause is not hidden behind the first; numbers in a text are no second cause."""
    texts = iter(["no reply for 12 ms", "no reply for 2007 ms", "the disk is full", "the disk is full", "no reply"])
    stop = Watched()

    def step() -> float:
        if (text := next(texts, None)) is not None:
            raise kind(text)
        stop.request()
        return NEVER_SECONDS

    run_loop(stop, "firing", step)
    logged = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(logged) == 3
    assert all(text in line for line, text in zip(logged, ("for 12 ms", "disk is full", "no reply"), strict=True))


def test_loop_whose_pause_is_longer_than_the_limit_is_live(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_STUCK_SECONDS", 0.0)
    stop = Watched()

    def step() -> float:
        if len(stop.slept) == 3:
            stop.request()
        message = "the table is locked"
        raise Unavailable(message)

    run_loop(stop, "dropping old partitions", step, longest_pause=3600.0)
    assert len(stop.slept) == 4
    assert stop.stuck == []


def test_process_end_stops_its_loops() -> None:
    def step() -> float:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_loop(Shutdown(), "test", step)


def test_backoff_grows_to_two_seconds_and_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tidewheel.process.service")
    stop = Watched()
    backoff = Backoff(stop, "the broker")
    for _ in range(9):
        backoff.wait(Unavailable("no answer"))
    longest = [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0, 2.0, 2.0]
    assert all(most / 2 <= slept <= most for most, slept in zip(longest, stop.slept, strict=True))
    assert [r.getMessage() for r in caplog.records] == [
        "the broker: no answer; this process tries again until it succeeds"
    ]


def test_errors_that_alternate_are_logged_once_each(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tidewheel.process.service")
    backoff = Backoff(Watched(), "the broker")
    for _ in range(5):
        backoff.wait(Unavailable("refused"))
        backoff.wait(Unavailable("no reply for 52 ms"))
        backoff.wait(Unavailable("no reply for 61 ms"))
    backoff.reset()
    backoff.wait(Unavailable("refused"))
    texts = [record.getMessage().partition("; ")[0] for record in caplog.records]
    expected = ["refused", "no reply for 52 ms", "works again", "refused"]
    assert texts == [f"the broker: {each}" for each in expected]


def test_backoff_starts_again_after_reset(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "tidewheel.process.service")
    stop = Watched()
    backoff = Backoff(stop, "the broker")
    backoff.reset()
    assert caplog.records == []
    for _ in range(2):
        for _ in range(4):
            backoff.wait(Unavailable("no answer"))
        backoff.reset()
        backoff.reset()
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"] * 2
    assert stop.slept[4] <= 0.1 < stop.slept[3]


def test_shutdown_cuts_a_backoff_short() -> None:
    stop = Shutdown()
    backoff = Backoff(stop, "test")
    stop.request()
    in_background(lambda: [backoff.wait(Unavailable("away")) for _ in range(50)]).result(SOON_SECONDS)


@pytest.mark.process
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_requests_shutdown_and_a_second_ends_at_once(number: signal.Signals) -> None:
    done = run_program(f"""
        import logging, signal
        from tidewheel.process.service import Shutdown
        logging.basicConfig(level="INFO", format="%(message)s")
        stop = Shutdown()
        stop.on_signals()
        signal.raise_signal({number.value})
        assert stop.wait(30) and stop.requested()
        print("asked", flush=True)
        signal.raise_signal({number.value})
        print("still there", flush=True)
    """)
    assert (done.stdout, done.returncode) == ("asked\n", -number), done.stderr
    assert done.stderr == f"stop requested by {number.name}\n"


@pytest.mark.process
def test_failed_thread_ends_the_process() -> None:
    done = run_program("""
        import logging, threading
        from tidewheel.process.service import end_process_with_threads
        logging.basicConfig(level="INFO", format="%(message)s")
        end_process_with_threads()
        def fail():
            raise ValueError("half a service")
        threading.Thread(target=fail, name="firing").start()
        threading.Event().wait(30)
        print("still there", flush=True)
    """)
    assert (done.stdout, done.returncode) == ("", 1)
    assert done.stderr.startswith("thread firing failed; the process ends\n")
    assert "ValueError: half a service" in done.stderr


@pytest.mark.process
def test_cycle_that_survived_collections_while_in_use_is_freed() -> None:
    done = run_program("""
        import gc, threading, weakref
        from tidewheel.process import service
        service._COLLECT_SECONDS = service._CHECK_GROWTH_SECONDS = service._COLLECT_ALL_SECONDS = 0.01
        service.tune_garbage_collector()
        class Failed:
            def __init__(self):
                self.cause = self
        failed, freed = Failed(), threading.Event()
        weakref.finalize(failed, freed.set)
        for _ in range(3):
            gc.collect(1)
        del failed
        print(freed.wait(30))
    """)
    assert done.stdout == "True\n", done.stderr


LATE = """
import threading
from datetime import timedelta
from tidewheel.process.service import Shutdown, end_process_late
stop = Shutdown()
stop.on_signals()
end_process_late(stop, {limit})
print("ready", flush=True)
threading.Event().wait() if {ends_in_time} is False else stop.wait(60)
print("ended in time", flush=True)
"""


@pytest.mark.landing
@pytest.mark.process
@pytest.mark.parametrize("ends_in_time", [True, False])
def test_process_that_a_call_holds_up_ends_after_its_limit(ends_in_time: bool) -> None:  # noqa: FBT001 - a parameter
    # A machine that stalls for a short limit would cut the process that ends in time.
    script = LATE.format(ends_in_time=ends_in_time, limit=60 if ends_in_time else 0.2)
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.terminate()
        assert process.wait(30) == 0
        assert process.stdout.read() == ("ended in time\n" if ends_in_time else "")
