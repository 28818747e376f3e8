"""Logs: one JSON object a line on standard error, with run_id wherever known, without secrets."""

import faulthandler
import json
import logging
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import cast

from tidewheel.redaction import redact

# Other formatters of a record set `message` and `asctime` on it.
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_encode = json.JSONEncoder(ensure_ascii=False, default=str).encode  # `json.dumps` creates an encoder for each line


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
