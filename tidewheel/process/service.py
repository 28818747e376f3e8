"""Shutdown by SIGTERM or SIGINT, loops that are retried, and backoff while a server is away."""

import ctypes
import gc
import logging
import os
import random
import re
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from mmap import PAGESIZE
from pathlib import Path
from types import FrameType
from typing import TypeVar

from tidewheel.clock import monotonic_seconds
from tidewheel.errors import InstallationFault, Unavailable
from tidewheel.process.exhausted import end_exhausted_process, is_exhausted
from tidewheel.process.health import health
from tidewheel.process.logs import faults

R = TypeVar("R")

_LOG = logging.getLogger("tidewheel.process.service")

_FIRST_PAUSE_SECONDS = 0.1
_COLLECT_SECONDS = 10.0
_COLLECT_ALL_SECONDS = 300.0  # all objects but those loaded at first
_COLLECT_GROWTH_BYTES = 16 << 20  # of the process since the last collection: then the collector does not wait
_CHECK_GROWTH_SECONDS = 1.0
_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8  # Source: malloc.h of glibc; mallopt(3)
_LARGE_BYTES = 128 * 1024  # with which glibc begins
_HEAPS = 2  # of a process whose threads take turns with the interpreter's lock
_DIGITS = re.compile(r"\d+")
_STATM = Path("/proc/self/statm")
_STATM_BYTES = 256  # seven numbers
_LONGEST_PAUSE_SECONDS = 2.0  # a server that comes back is noticed within this time
_LOGGED_ERRORS = 100  # different ones of one outage that are logged once each


class Shutdown:
    """Shutdown flag; also the only way to sleep, so that a shutdown cuts every wait short."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._wakes: list[threading.Event] = []

    def wakes(self, event: threading.Event) -> None:
        """Set `event` too when the shutdown is requested: for loops that sleep on an event of their own."""
        self._wakes.append(event)
        if self._event.is_set():
            event.set()

    def requested(self) -> bool:
        """Return True if a shutdown was requested."""
        return self._event.is_set()

    def request(self) -> None:
        """Request the shutdown; each loop ends after its current step."""
        self._event.set()
        for event in self._wakes:
            event.set()

    def wait(self, seconds: float) -> bool:
        """Sleep until the shutdown is requested or the time is over; return True if it was requested."""
        return self._event.wait(seconds)

    def on_signals(self) -> None:
        """Request the shutdown on SIGTERM and SIGINT; a second signal ends the process at once."""

        def handle(number: int, frame: FrameType | None) -> None:
            del frame
            if self._event.is_set():
                signal.signal(number, signal.SIG_DFL)
                signal.raise_signal(number)
            # On a thread of its own: the main thread may hold the lock that setting an event takes.
            try:
                threading.Thread(target=self._request_by, args=(signal.Signals(number).name,), daemon=True).start()
            except (RuntimeError, MemoryError) as error:
                end_exhausted_process(error)

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, handle)

    def _request_by(self, name: str) -> None:
        _LOG.info("stop requested by %s", name)
        self.request()


def tune_garbage_collector() -> None:
    """Make Python's cyclic collector scan new objects every ten seconds, and those loaded so far never.

    A batch's objects are freed by their reference counts. Python's default, a scan each 700 objects, took half of a
    busy executor's time, and one each second 3 us a run. The collector runs by count (50,000) and by time. A few
    objects in a cycle can hold megabytes, so it also runs within a second when the process has grown. Every five
    minutes it scans what survived before: the objects of a failed connection that were in use at a scan.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 5, 5)
    threading.Thread(target=_collect, name="collector", daemon=True).start()


def _collect() -> None:
    never = threading.Event()
    due, size = monotonic_seconds() + _COLLECT_SECONDS, _resident_bytes()
    all_due = due + _COLLECT_ALL_SECONDS
    while not never.wait(_CHECK_GROWTH_SECONDS):
        if monotonic_seconds() >= due or _resident_bytes() > size + _COLLECT_GROWTH_BYTES:
            collects_all = monotonic_seconds() >= all_due
            gc.collect(2 if collects_all else 1)
            due, size = monotonic_seconds() + _COLLECT_SECONDS, _resident_bytes()
            all_due = due + _COLLECT_ALL_SECONDS if collects_all else all_due


def _resident_bytes() -> int:
    """Return the memory of this process; 0 without /proc, so that the collector runs by time alone."""
    # A process that was stopped amid the read gets EAGAIN, for which files of Python return None.
    with suppress(OSError):
        file = os.open(_STATM, os.O_RDONLY)
        try:
            return int(os.read(file, _STATM_BYTES).split()[1]) * PAGESIZE
        finally:
            os.close(file)
    return 0


def keep_little_free_memory() -> None:
    """Make glibc return large freed blocks to the system, and share heaps between threads.

    By default it keeps blocks as large as the largest that was freed, and each thread has a heap of its own. So each
    thread's heap would keep the memory of the largest page.
    """
    with suppress(AttributeError):  # another C library
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
        mallopt(_M_ARENA_MAX, _HEAPS)


def end_process_with_threads() -> None:
    """End the process when an error ends one of its threads: half a service is worse than none."""

    def report(failure: threading.ExceptHookArgs) -> None:
        name = failure.thread.name if failure.thread else "?"
        if failure.exc_value is not None and is_exhausted(failure.exc_value):
            end_exhausted_process(failure.exc_value)
        _LOG.critical("thread %s failed; the process ends", name, exc_info=failure.exc_value)
        os._exit(1)

    threading.excepthook = report


def end_process_late(stop: Shutdown, seconds: float) -> None:
    """End the process this long after a shutdown was requested, if it still runs.

    A call that waits for a broker or a server can be cut short by nothing else. Open transactions are rolled back, as
    when the process is killed.
    """

    def watch() -> None:
        requested, never = threading.Event(), threading.Event()
        stop.wakes(requested)
        requested.wait()
        never.wait(seconds)
        _LOG.warning("ending the process %.0f s after its shutdown was requested: a thread is still waiting", seconds)
        logging.shutdown()
        os._exit(0)

    threading.Thread(target=watch, name="late-end", daemon=True).start()


class Backoff:
    """Pauses that grow while a server is away, with a log line at each new error and at the recovery."""

    def __init__(self, stop: Shutdown, what: str, *, longest: float = _LONGEST_PAUSE_SECONDS) -> None:
        self._stop, self._what, self._longest = stop, what, longest
        self._pause = 0.0
        self._logged: set[str] = set()

    def wait(self, error: BaseException, *, unexpected: bool = False) -> None:
        """Pause after a failure; log it, as `failed` does."""
        self._stop.wait(self.failed(error, unexpected=unexpected))

    def failed(self, error: BaseException, *, unexpected: bool = False) -> float:
        """Log a failure unless the same one was logged since the last success; return the seconds to pause.

        Args:
            unexpected: True for a fault of the code, which is logged with its traceback.
        """
        if unexpected and is_exhausted(error):
            end_exhausted_process(error)
        if isinstance(error, InstallationFault):
            faults.report(self._what, str(error))
        elif (same := _without_numbers(error)) not in self._logged:
            if len(self._logged) < _LOGGED_ERRORS:
                self._logged.add(same)
            level, shown = (logging.ERROR, repr(error)) if unexpected else (logging.WARNING, error)
            text = "%s: %s; this process tries again until it succeeds"
            _LOG.log(level, text, self._what, shown, exc_info=error if unexpected else None)
        self._pause = min(max(self._pause * 2, _FIRST_PAUSE_SECONDS), self._longest)
        seconds = self._pause * random.uniform(0.5, 1.0)  # noqa: S311 - spreads reconnects, guards nothing
        health.report_waiting(seconds)
        return seconds

    @property
    def active(self) -> bool:
        """True from a failure until the next success."""
        return self._pause > 0.0

    def reset(self) -> None:
        """Record a success: log the recovery; the next pause is the first again."""
        if self._pause:
            _LOG.info("%s: works again", self._what)
            faults.clear(self._what)
            self._pause = 0.0
            self._logged.clear()


def _without_numbers(error: BaseException) -> str:
    """Return an error's type and text: times, ports and process ids make no new error.

    >>> _without_numbers(TimeoutError("no reply for 52 ms"))
    'TimeoutError: no reply for  ms'
    """
    return f"{type(error).__name__}: {_DIGITS.sub('', str(error))}"


def wait_until_available(stop: Shutdown, what: str, ask: Callable[[], R]) -> R:
    """Return what `ask` returns, as soon as it raises no `Unavailable`; a shutdown raises SystemExit."""
    backoff = Backoff(stop, what)
    while not stop.requested():
        try:
            found = ask()
        except Unavailable as error:
            backoff.wait(error)
        else:
            backoff.reset()
            return found
    raise SystemExit(0)


def run_loop(
    stop: Shutdown,
    what: str,
    step: Callable[[], float],
    *,
    wake: threading.Event | None = None,
    longest_pause: float = _LONGEST_PAUSE_SECONDS,
) -> None:
    """Call `step` until the shutdown is requested, sleeping the seconds it returns; back off on errors.

    Args:
        wake: Cuts a sleep short when set; cleared before each cycle, so that a wake-up during a cycle is kept.
    """
    if wake is not None:
        stop.wakes(wake)
    backoff = Backoff(stop, what, longest=longest_pause)
    while not stop.requested():
        health.report(what)
        if wake is not None:
            wake.clear()
        try:
            seconds = step()
        except Unavailable as error:
            backoff.wait(error)
            continue
        except Exception as error:  # noqa: BLE001 - a loop that ends in silence is worse than any error
            backoff.wait(error, unexpected=True)
            continue
        backoff.reset()
        if seconds > 0 and not stop.requested():
            health.report(what, seconds)
            (wake or stop).wait(seconds)
    health.remove_loop()
