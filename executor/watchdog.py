"""Detect an event loop that a handler blocks, and log that handler.

It runs on a thread of its own, as the heartbeat does, so the lease is kept meanwhile. While the loop is blocked the
executor claims nothing. Claimed attempts that have not started are released at once, uncounted, to other executors.

A handler that holds the interpreter's lock, as in a slow regular expression, keeps this thread and every other one from
running. `faulthandler` then writes the stacks of all threads to the log, from a signal handler that needs no lock. Its
timer counts CPU time: after a suspension of the process threads run again, and the stack of a running thread is unsafe
to read.
"""

import asyncio
import faulthandler
import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from datetime import timedelta
from types import FrameType

from tidewheel.clock import monotonic_seconds
from tidewheel.executor.attempt import Attempt
from tidewheel.process.metrics import metrics

_LOG = logging.getLogger("tidewheel.executor")

_CHECKS = 4  # within the time after which the loop counts as blocked
_AGAIN_SECONDS = 30.0  # until a blocked loop is logged again
_FRAMES = 25
_LOCKED_SECONDS = 5.0  # without a check by this thread, after which the stacks are written
_STDERR = 2


class Watchdog:
    """The thread that watches one event loop; it calls `on_blocked` at each check while it is blocked."""

    def __init__(self, after: timedelta, on_blocked: Callable[[], None]) -> None:
        self._after, self._on_blocked = after.total_seconds(), on_blocked
        self._stop = threading.Event()
        self._ticked = monotonic_seconds()
        self._blocked = False
        self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)
        self._loop: asyncio.AbstractEventLoop
        self._watched: int

    def start(self) -> None:
        """Start the thread; called on the loop to watch."""
        self._loop, self._watched = asyncio.get_running_loop(), threading.get_ident()
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread."""
        self._stop.set()

    def blocked(self) -> bool:
        """Return True if the loop is blocked."""
        return self._blocked

    def _tick(self) -> None:
        self._ticked = monotonic_seconds()

    def _run(self) -> None:
        faulthandler.register(signal.SIGVTALRM, file=_STDERR)
        try:
            self._watch()
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            self._clear()

    def _watch(self) -> None:
        every, logged = self._after / _CHECKS, 0.0
        limit = _LOCKED_SECONDS + every * (os.cpu_count() or 1)  # all cores may work in C until the next check
        checked = monotonic_seconds()
        while not self._stop.wait(every):
            now = monotonic_seconds()
            if now - checked > self._after:
                self._ticked = now  # this thread was suspended too: the whole process, or the machine
            if now - checked > every + _LOCKED_SECONDS:
                text = (
                    "no thread of this process ran for %.1f s: a handler held the interpreter's lock, and the stacks"
                    " written before name it; or the whole process was suspended"
                )
                _LOG.error(text, now - checked)
            signal.setitimer(signal.ITIMER_VIRTUAL, limit)
            checked, seconds = now, now - self._ticked
            if seconds < self._after:
                self._clear()
            elif not self._blocked or now - logged >= _AGAIN_SECONDS:
                logged = now
                self._report(seconds)
            if self._blocked:
                metrics.set("event_loop_blocked_seconds", seconds)
                self._on_blocked()
            try:
                self._loop.call_soon_threadsafe(self._tick)
            except RuntimeError:
                return  # the loop has ended

    def _clear(self) -> None:
        if self._blocked:
            self._blocked = False
            metrics.set("event_loop_blocked_seconds", 0)
            _LOG.warning("the event loop of this executor is no longer blocked")

    def _report(self, seconds: float) -> None:
        if not self._blocked:
            metrics.count("event_loop_stalls")
        self._blocked = True
        frame = sys._current_frames().get(self._watched)  # pyright: ignore[reportPrivateUsage]  # the only way to read another thread's stack
        attempt = _attempt_in(frame)
        about = {} if attempt is None else attempt.about
        stack = "".join(traceback.format_stack(frame, _FRAMES)) if frame else ""
        location = "" if attempt is None else f" in handler {attempt.definition.target.handler!r}"
        text = (
            "the event loop has been blocked for %.1f s%s: make the handler a plain function,"
            ' or give it isolation="process"'
        )
        _LOG.error(text, seconds, location, extra={**about, "stack": stack})


def _attempt_in(frame: FrameType | None) -> Attempt | None:
    """Return the attempt whose handler is in this stack; None if it runs in a task of its own."""
    while frame is not None:
        attempt = frame.f_locals.get("attempt")
        if isinstance(attempt, Attempt):
            return attempt
        frame = frame.f_back
    return None
