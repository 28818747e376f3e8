"""Log a fault once, and one line a minute for each subject from outside.

A fault is logged once, stays reported while it lasts, and is removed when the same work succeeds. Clients from outside
must not fill a log, so each subject of theirs has one line a minute.
"""

import logging
import threading
from collections.abc import Hashable

from tidewheel.clock import monotonic_seconds
from tidewheel.process.health import health
from tidewheel.process.metrics import metrics

_LOG = logging.getLogger("tidewheel.process.faults")
_SECONDS = 60.0
_SUBJECTS = 1000  # remembered at once; the subjects may be names that a client chose


class Faults:
    """The faults of one process by the work that they stop; safe from every thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._texts: dict[str, str] = {}

    def report(self, what: str, text: str) -> None:
        """Report that some work waits for an operator; a repeat with the same text is not logged again."""
        with self._lock:
            known = self._texts.get(what) == text
            self._texts[what] = text
        if not known:
            _LOG.error("%s: %s; this process tries again until it succeeds", what, text)
            metrics.set("installation_faults", 1, what)

    def clear(self, what: str) -> None:
        """Remove a fault: the work has succeeded."""
        with self._lock:
            known = self._texts.pop(what, None)
        if known is not None:
            _LOG.info("%s: works again", what)
            metrics.set("installation_faults", 0, what)

    def why_not_ready(self) -> str | None:
        """Return the faults in one line; None without any."""
        with self._lock:
            return "; ".join(f"{what}: {text}" for what, text in sorted(self._texts.items())) or None


faults = Faults()
health.requires("installation", faults.why_not_ready)


class OnceAMinute:
    """The subjects of the last minute; for one thread, or where a line too many does no harm."""

    def __init__(self) -> None:
        self._next: dict[Hashable, float] = {}

    def is_due(self, subject: Hashable) -> bool:
        """Return True if a minute has passed since the last True for this subject."""
        now = monotonic_seconds()
        if now < self._next.get(subject, 0.0):
            return False
        if len(self._next) >= _SUBJECTS:
            self._next.clear()
        self._next[subject] = now + _SECONDS
        return True
