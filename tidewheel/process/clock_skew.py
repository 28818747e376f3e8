"""Measure and export the skew between this process's clock and the database's; warn, never act.

The database's clock alone decides what is due, so a wrong clock here changes nothing that Tidewheel does. It only makes
this process's logs and its handlers show another time. The readings come with statements that are sent anyway.
"""

import logging
import threading
from datetime import datetime, timedelta

from tidewheel.clock import Clock, SystemClock, monotonic_seconds
from tidewheel.process.metrics import metrics

_LOG = logging.getLogger("tidewheel.process.service")


class ClockSkew:
    """The clock skew of one process; above `limit` it logs a warning. Safe from every thread."""

    def __init__(self, limit: timedelta, clock: Clock | None = None) -> None:
        self._limit, self._clock = limit, clock or SystemClock()
        self._warned = False
        self._warning = threading.Lock()
        self._skew = timedelta(0)
        self._reached: tuple[datetime, float] | None = None  # an instant that the database's clock had reached then
        metrics.set("max_clock_skew_seconds", limit.total_seconds())

    def database_now(self) -> datetime:
        """Return the time of the database's clock, by the last reading; for measurements only."""
        return self._clock.now() - self._skew

    def database_reached(self) -> datetime:
        """Return the latest instant that the database's clock has certainly reached.

        The readings do not show a clock that has gone back since the last of them.
        """
        if self._reached is None:
            return self._clock.now()
        instant, at = self._reached
        return instant + timedelta(seconds=monotonic_seconds() - at)

    def record(self, instant: datetime, *, since: float) -> None:
        """Record one reading of the database's clock.

        Args:
            since: `monotonic_seconds()` from before the statement was sent. The reading was taken after that, so the
                skew is wrong by at most half of the time since then.

        Source: RFC 5905 "Network Time Protocol Version 4", section 8, for a server that answers in no time.
        """
        now = monotonic_seconds()
        bound = timedelta(seconds=max(now - since, 0.0) / 2)
        # The clock showed the instant when the statement was sent at the earliest, and now at the latest.
        known = self.database_reached() if self._reached else instant
        self._reached = min(max(known, instant), instant + 2 * bound), now
        if bound > self._limit:
            return  # the statement waited: the reading is less exact than the limit
        self._skew = skew = self._clock.now() - bound - instant
        metrics.set("clock_skew_seconds", skew.total_seconds())
        metrics.set("clock_skew_bound_seconds", bound.total_seconds())
        with self._warning:
            self._log(skew, bound)

    def _log(self, skew: timedelta, bound: timedelta) -> None:
        """Log when the skew certainly exceeds the limit, and when it certainly does no more."""
        seconds = abs(skew.total_seconds())
        where = "ahead of" if skew > timedelta(0) else "behind"
        if not self._warned and abs(skew) - bound > self._limit:
            self._warned = True
            _LOG.warning(
                "this machine's clock is %.3f s %s the database's, more than max_clock_skew (%g s); firing is"
                " not affected, but its logs and handlers show a different time: check its time synchronisation",
                seconds,
                where,
                self._limit.total_seconds(),
            )
        elif self._warned and abs(skew) + bound <= self._limit:
            self._warned = False
            _LOG.info(
                "this machine's clock is within max_clock_skew of the database's again (%.3f s %s)", seconds, where
            )
