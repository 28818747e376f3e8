"""How far this process's clock is from the database's: measured in passing, exported, told once, never acted upon.

What is due is decided by the database's clock alone, so a clock that is wrong here changes nothing that Tidewheel does.
It makes this process's logs, and whatever its handlers read from it, tell another time than everybody else's. The
database's clock comes back with statements that are sent anyway.
"""

import logging
import threading
from datetime import datetime, timedelta

from tidewheel.clock import Clock, SystemClock, monotonic_seconds
from tidewheel.process.metrics import metrics

_LOG = logging.getLogger("tidewheel.process.service")


class Skew:
    """What one process knows of it; for all its threads.

    Args:
        most: How far the clocks may be apart before it is told (`max_clock_skew`).
        clock: This process's clock.
    """

    def __init__(self, most: timedelta, clock: Clock | None = None) -> None:
        self._most, self._clock = most, clock or SystemClock()
        self._told = False
        self._telling = threading.Lock()
        metrics.set("max_clock_skew_seconds", most.total_seconds())

    def saw(self, instant: datetime, *, since: float) -> None:
        """Take in one reading of the database's clock.

        Args:
            instant: What it said.
            since: `monotonic_seconds()` from before the statement was sent: the reading was taken after that, so that
                half of the time since then is what the difference can be wrong by.

        Source: RFC 5905 "Network Time Protocol Version 4", section 8, of an exchange whose far end takes no time.
        """
        bound = timedelta(seconds=max(monotonic_seconds() - since, 0.0) / 2)
        if bound > self._most:
            return  # the statement had to wait: such a reading could show nothing
        skew = self._clock.now() - bound - instant
        metrics.set("clock_skew_seconds", skew.total_seconds())
        metrics.set("clock_skew_bound_seconds", bound.total_seconds())
        with self._telling:
            self._tell(skew, bound)

    def _tell(self, skew: timedelta, bound: timedelta) -> None:
        """Log what is certain, and only what is news."""
        seconds = abs(skew.total_seconds())
        where = "ahead of" if skew > timedelta(0) else "behind"
        if not self._told and abs(skew) - bound > self._most:
            self._told = True
            _LOG.warning(
                "this machine's clock is %.3f s %s the database's, more than max_clock_skew (%g s); nothing fires"
                " otherwise for it, but its logs and handlers tell another time: see to its time synchronisation",
                seconds,
                where,
                self._most.total_seconds(),
            )
        elif self._told and abs(skew) + bound <= self._most:
            self._told = False
            _LOG.info(
                "this machine's clock is within max_clock_skew of the database's again (%.3f s %s)", seconds, where
            )
