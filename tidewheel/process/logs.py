"""Log one JSON object a line without secrets; a fault once, a subject from outside once a minute.

A fault is logged once, stays reported while it lasts, and is removed when the same work succeeds. Clients from outside
must not fill a log, so each subject of theirs has one line a minute.
"""

import faulthandler
import json
import logging
import sys
import threading
from collections.abc import Hashable, Sequence
from datetime import UTC, datetime
from typing import cast

from tidewheel.clock import monotonic_seconds
from tidewheel.process.health import health
from tidewheel.process.metrics import metrics
from tidewheel.redaction import redact

# Other formatters of a record set `message` and `asctime` on it.
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_encode = json.JSONEncoder(ensure_ascii=False, default=str).encode  # `json.dumps` creates an encoder for each line

_LOG = logging.getLogger("tidewheel.process.faults")
_SECONDS = 60.0
_SUBJECTS = 1000  # remembered at once; the subjects may be names that a client chose


class JsonLines(logging.Formatter):
    """A record as one line of JSON; line breaks in values are escaped, so that no value can forge a line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line without its line break."""
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": redact(record.getMessage()),
        }
        line |= {name: _redacted(value) for name, value in vars(record).items() if name not in _STANDARD}
        if record.exc_info:
            line["error"] = redact(self.formatException(record.exc_info))
        return _encode(line)


def configure_logging(level: str = "info") -> None:
    """Send the logs of this process to standard error as JSON lines.

    A fault in a native library, such as a segmentation fault, writes the stack of each thread there before it ends the
    process.
    """
    faulthandler.enable()
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())


def _redacted(value: object) -> object:
    if value is None or isinstance(value, bool | int | float):
        return value
    if isinstance(value, dict):
        return {str(name): _redacted(part) for name, part in cast("dict[object, object]", value).items()}
    if isinstance(value, list | tuple):
        return [_redacted(part) for part in cast("Sequence[object]", value)]
    return redact(str(value))


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
