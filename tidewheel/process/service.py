"""How a service lives: started, asked to stop by SIGTERM or SIGINT, patient while PostgreSQL or Kafka is away."""

import gc
import logging
import os
import random
import signal
import threading
from collections.abc import Callable
from types import FrameType

from tidewheel.errors import Unavailable
from tidewheel.process.health import health

_LOG = logging.getLogger("tidewheel.process.service")

_FIRST_PAUSE_SECONDS = 0.1
_COLLECT_SECONDS = 1.0
_LONGEST_PAUSE_SECONDS = 5.0  # a database that comes back is noticed within this time


class Stop:
    """The wish to stop, and the only way to sleep."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._wakes: list[threading.Event] = []

    def wakes(self, event: threading.Event) -> None:
        """Set `event` too when the wish comes: for loops that sleep on an event of their own."""
        self._wakes.append(event)

    def asked(self) -> bool:
        """Whether the service is to end."""
        return self._event.is_set()

    def ask(self) -> None:
        """End at the next opportunity."""
        self._event.set()
        for event in self._wakes:
            event.set()

    def wait(self, seconds: float) -> bool:
        """Sleep, but not past the wish to stop; returns whether there is one."""
        return self._event.wait(seconds)

    def on_signals(self) -> None:
        """Let SIGTERM and SIGINT ask; a second one ends the process at once."""

        def handle(number: int, frame: FrameType | None) -> None:
            del frame
            if self._event.is_set():
                signal.signal(number, signal.SIG_DFL)
                signal.raise_signal(number)
            # On a thread of its own: the main thread may be inside the very lock that setting an event takes.
            threading.Thread(target=self._asked_by, args=(signal.Signals(number).name,), daemon=True).start()

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, handle)

    def _asked_by(self, name: str) -> None:
        _LOG.info("asked to stop by %s", name)
        self.ask()


def collect_rarely() -> None:
    """Let Python's cyclic collector look at new objects once a second, and at what is loaded by now never again.

    What a batch makes dies with it, by its reference counts. Looked through each 700 objects, as is Python's default,
    the batches under way cost a busy executor half of its time. Objects are counted all the same, but by time as well:
    a few of them in a cycle can hold megabytes.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 5, 5)
    threading.Thread(target=_collect, name="collector", daemon=True).start()


def _collect() -> None:
    never = threading.Event()
    while not never.wait(_COLLECT_SECONDS):
        gc.collect(1)


def end_process_with_threads() -> None:
    """Let the process end when one of its threads does by an error: half a service is worse than none."""

    def report(failure: threading.ExceptHookArgs) -> None:
        name = failure.thread.name if failure.thread else "?"
        _LOG.critical("thread %s failed; the process ends", name, exc_info=failure.exc_value)
        os._exit(1)

    threading.excepthook = report


class Patience:
    """Pauses that grow while something is away, and a log line when it goes and when it is back."""

    def __init__(self, stop: Stop, what: str) -> None:
        self._stop, self._what = stop, what
        self._pause = 0.0

    def wait(self, error: BaseException) -> None:
        """Pause after a failure; the first of a series is logged."""
        if self._pause == 0.0:
            _LOG.warning("%s: %s; trying again until it answers", self._what, error)
        self._pause = min(max(self._pause * 2, _FIRST_PAUSE_SECONDS), _LONGEST_PAUSE_SECONDS)
        health.waits()
        self._stop.wait(self._pause * random.uniform(0.5, 1.0))  # noqa: S311 - spreads reconnects, guards nothing

    def over(self) -> None:
        """It worked."""
        if self._pause:
            _LOG.info("%s: works again", self._what)
            self._pause = 0.0


def repeat(stop: Stop, what: str, step: Callable[[], float], *, wake: threading.Event | None = None) -> None:
    """Call `step` until asked to stop, sleeping the seconds it returns; `Unavailable` is waited out.

    Args:
        stop: The wish to stop.
        what: The name in the log.
        step: One round; returns how long nothing is to be done, in seconds.
        wake: Cuts a sleep short when set; cleared before each round, so that a wake-up during a round is kept.
    """
    if wake is not None:
        stop.wakes(wake)
    patience = Patience(stop, what)
    while not stop.asked():
        health.turns(what)
        if wake is not None:
            wake.clear()
        try:
            seconds = step()
        except Unavailable as error:
            patience.wait(error)
            continue
        except Exception as error:  # noqa: BLE001 - see below
            # Whatever it is, a loop that ends in silence is worse: it is told, and tried again.
            _LOG.exception("%s: failed", what)
            patience.wait(error)
            continue
        patience.over()
        if seconds > 0 and not stop.asked():
            health.turns(what, seconds)
            (wake or stop).wait(seconds)
    health.ends()
