"""Create the partitions of the days ahead, beside firing.

ATTACH waits for another transaction's lock on the parent (VACUUM, ANALYZE, a migration), for minutes at worst. So this
thread has a connection of its own and a short lock_timeout, and retries until all are there. Firing never waits for it:
it needs today's partitions only, which have existed for three days by then.
"""

import threading

from tidewheel.postgres.partitions import coming_days, create_missing, days_ahead
from tidewheel.postgres.session import Session
from tidewheel.process.metrics import metrics
from tidewheel.process.service import Shutdown, run_loop

_EVERY_SECONDS = 600.0
_DAY_SECONDS = 86_400


class DaysAhead:
    """The thread of a scheduler that creates the partitions of the days ahead."""

    def __init__(self, url: str, stop: Shutdown) -> None:
        self._session = Session(url, "tidewheel-scheduler-days", autocommit=True)
        self._stop = stop
        self._thread = threading.Thread(target=self._run, name="days-ahead", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def step(self) -> int:
        """Create what is missing; return the number of days ahead that have all their partitions."""
        with self._session.transaction() as connection:
            try:
                create_missing(connection, coming_days(connection))
            finally:
                ahead = days_ahead(connection)
                metrics.set("partitions_ahead_seconds", ahead * _DAY_SECONDS)
        return ahead

    def close(self) -> None:
        """Close the session."""
        self._session.close()

    def _run(self) -> None:
        run_loop(self._stop, "scheduler: partitions of the days ahead", self._round)

    def _round(self) -> float:
        self.step()
        self.close()
        return _EVERY_SECONDS
