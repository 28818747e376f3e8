"""Log records of handlers as lines: their form, and their instant and level as pages read them."""

import logging
import re
from datetime import UTC, datetime
from typing import NamedTuple

_TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:\d\d)?", re.ASCII)
_LEVEL = re.compile(r"\W*(?:(WARN)|(ERR|CRIT|FATAL))", re.IGNORECASE)


class LogFormat(logging.Formatter):
    """The form of a log record, as stored with the run: its instant is in UTC."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        """Return the instant of a record with milliseconds."""
        del datefmt
        return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class LogRecord(NamedTuple):
    """A line that begins with its time; level 0 is below a warning, 1 a warning, 2 an error."""

    at: datetime
    level: int
    text: str


def read_log_line(line: str) -> LogRecord | None:
    """Return a line with its instant, which is in UTC if it has no offset; None for a line without one.

    >>> read_log_line("2026-11-21 12:00:00,250 WARNING shop: slow")
    LogRecord(at=datetime.datetime(2026, 11, 21, 12, 0, 0, 250000, tzinfo=datetime.timezone.utc), level=1, \
text='WARNING shop: slow')
    >>> read_log_line("2026-13-41T12:00:00Z no time"), read_log_line("page 1 of 7")
    (None, None)
    """
    if (found := _TIME.match(line)) is None:
        return None
    try:
        at = datetime.fromisoformat(found[0])
    except ValueError:  # a month 13
        return None
    text = line[found.end() :].strip()
    level = _LEVEL.match(text)
    return LogRecord(at if at.tzinfo else at.replace(tzinfo=UTC), 0 if level is None else level.lastindex or 0, text)
