"""One log line a minute for each subject: clients from outside must not fill a log."""

from collections.abc import Hashable

from tidewheel.clock import monotonic_seconds

_SECONDS = 60.0
_SUBJECTS = 1000  # remembered at once; the subjects may be names that a client chose


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
