"""Pauses of work in the background: it uses half a connection at most."""

from tidewheel.clock import monotonic_seconds
from tidewheel.process.health import health
from tidewheel.process.service import Shutdown


class Pace:
    """Pauses between the transactions of a long pass; a shutdown ends both."""

    def __init__(self, stop: Shutdown) -> None:
        self._stop = stop
        self._since = monotonic_seconds()

    def rest(self) -> bool:
        """Wait as long as the work since the last call took; return True if a shutdown was requested."""
        health.report_waiting()
        stopped = self._stop.wait(monotonic_seconds() - self._since)
        self._since = monotonic_seconds()
        return stopped
