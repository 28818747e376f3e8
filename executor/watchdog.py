"""Notices when the event loop stands still, because a handler blocks it, and says who.

A thread of its own, as the heartbeat is: the lease is kept meanwhile. While the loop stands nothing is claimed, and
what was claimed and has not begun goes back at once, uncharged, to executors that can run it.
"""

import asyncio
import logging
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

_LOOKS = 4  # within the time after which a stall is one
_AGAIN_SECONDS = 30.0  # a stall that lasts is told again
_FRAMES = 25


class Watchdog:
    """The thread that watches one event loop.

    Args:
        after: How long the loop may stand still.
        on_stall: Called at each look while it stands.
    """

    def __init__(self, after: timedelta, on_stall: Callable[[], None]) -> None:
        self._after, self._on_stall = after.total_seconds(), on_stall
        self._stop = threading.Event()
        self._ticked = monotonic_seconds()
        self._stalled = False
        self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)
        self._loop: asyncio.AbstractEventLoop
        self._watched: int

    def start(self) -> None:
        """Begin; called on the loop to be watched."""
        self._loop, self._watched = asyncio.get_running_loop(), threading.get_ident()
        self._thread.start()

    def stop(self) -> None:
        """Watch no longer."""
        self._stop.set()

    def stalled(self) -> bool:
        """Whether the loop stands still."""
        return self._stalled

    def _tick(self) -> None:
        self._ticked = monotonic_seconds()

    def _run(self) -> None:
        try:
            self._watch()
        finally:
            self._over()

    def _watch(self) -> None:
        every, told = self._after / _LOOKS, 0.0
        looked = monotonic_seconds()
        while not self._stop.wait(every):
            now = monotonic_seconds()
            if now - looked > self._after:
                self._ticked = now  # this thread stood still too: the whole process, or the machine
            looked, still = now, now - self._ticked
            if still < self._after:
                self._over()
            elif not self._stalled or now - told >= _AGAIN_SECONDS:
                told = now
                self._tell(still)
            if self._stalled:
                metrics.set("event_loop_blocked_seconds", still)
                self._on_stall()
            try:
                self._loop.call_soon_threadsafe(self._tick)
            except RuntimeError:
                return  # the loop has ended

    def _over(self) -> None:
        if self._stalled:
            self._stalled = False
            metrics.set("event_loop_blocked_seconds", 0)
            _LOG.warning("the event loop goes on")

    def _tell(self, still: float) -> None:
        if not self._stalled:
            metrics.count("event_loop_stalls")
        self._stalled = True
        frame = sys._current_frames().get(self._watched)  # pyright: ignore[reportPrivateUsage]  # there is no other way
        attempt = _attempt_in(frame)
        about = {} if attempt is None else attempt.about
        stack = "".join(traceback.format_stack(frame, _FRAMES)) if frame else ""
        whose = "" if attempt is None else f" in handler {attempt.definition.target.handler!r}"
        text = 'the event loop has stood still for %.1f s%s: make it a plain function, or give it isolation="process"'
        _LOG.error(text, still, whose, extra={**about, "stack": stack})


def _attempt_in(frame: FrameType | None) -> Attempt | None:
    """The attempt whose handler is in this stack; None where it runs in a task of its own."""
    while frame is not None:
        attempt = frame.f_locals.get("attempt")
        if isinstance(attempt, Attempt):
            return attempt
        frame = frame.f_back
    return None
