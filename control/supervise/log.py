"""One log of several services: lines with a colour and a prefix on a terminal, JSON lines elsewhere.

A thread writes it, so that a reader that stops reading stops no service: above 10,000 waiting lines, further ones are
counted and dropped.
"""

import json
import os
import queue
import sys
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import TextIO

from tidewheel.clock import SystemClock
from tidewheel.control.words import printable
from tidewheel.jobs.strict_json import as_object

_WAITING_LINES = 10_000
_FLUSH_SECONDS = 2.0
_COLOURS = {"intake": 36, "scheduler": 35, "relay": 34, "executor": 32, "api": 33}
_LEVELS = {"warning": 33, "error": 31, "critical": 31}
_SHOWN = ("time", "level", "logger", "message", "error", "service")
_WIDTH = max(map(len, _COLOURS))


class Log:
    """The log of a command that supervises services."""

    def __init__(self, name: str, stream: TextIO | None = None) -> None:
        self._name, self._stream = name, stream or sys.stderr
        self.is_terminal = self._stream.isatty()
        self._coloured = self.is_terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        self._lines: queue.Queue[str | None] = queue.Queue(_WAITING_LINES)
        self._dropped = 0
        self._writer = threading.Thread(target=self._write, name="log", daemon=True)
        self._writer.start()

    def add(self, service: str, text: str) -> None:
        """Add a line of a service: a JSON object, or what its code printed."""
        record = _record(text)
        if record is None:
            record = {"time": _now(), "level": "info", "message": text}
        self._put(service, record)

    def report(self, message: str, *, level: str = "info", **facts: object) -> None:
        """Add a line of the command itself."""
        self._put(self._name, {"time": _now(), "level": level, "message": message, **facts})

    def banner(self, lines: Iterable[str], message: str, facts: Mapping[str, object]) -> None:
        """Add lines for a reader at the terminal; elsewhere one line with the same facts."""
        if self.is_terminal:
            self._queue("\n".join(["", *map(printable, lines), ""]))
        else:
            self._put(self._name, {"time": _now(), "level": "info", "message": message, **facts})

    def close(self) -> None:
        """Write what waits, for at most two seconds."""
        with suppress(queue.Full):
            if self._dropped:
                self._lines.put(self._omission(), timeout=_FLUSH_SECONDS)
            self._lines.put(None, timeout=_FLUSH_SECONDS)
            self._writer.join(_FLUSH_SECONDS)

    def _put(self, service: str, record: Mapping[str, object]) -> None:
        self._queue(self._line(service, record))

    def _line(self, service: str, record: Mapping[str, object]) -> str:
        if self.is_terminal:
            return self._readable(service, record)
        return json.dumps({**record, "service": service}, ensure_ascii=False, default=str)

    def _queue(self, line: str) -> None:
        try:
            if self._dropped:
                self._lines.put_nowait(self._omission())
                self._dropped = 0
            self._lines.put_nowait(line)
        except queue.Full:
            self._dropped += 1

    def _omission(self) -> str:
        message = f"{self._dropped} lines dropped: this log is not read fast enough"
        return self._line(self._name, {"time": _now(), "level": "warning", "message": message})

    def _write(self) -> None:
        readable = True
        while (line := self._lines.get()) is not None:
            try:
                if readable:
                    self._stream.write(f"{line}\n")
                    self._stream.flush()
            except (OSError, ValueError):  # its reader has gone, which ends no service
                readable = False

    def _readable(self, service: str, record: Mapping[str, object]) -> str:
        level = str(record.get("level", "info"))
        others = {name: str(value) for name, value in record.items() if name not in _SHOWN and value is not None}
        rest = " ".join(f"{name}={value}" for name, value in others.items() if "\n" not in value)
        first, *more = str(record.get("message", "")).splitlines() or [""]
        for text in (str(record.get("error") or ""), *(value for value in others.values() if "\n" in value)):
            more += text.splitlines()
        head = f"{_time_of_day(record)} {self._in(_COLOURS.get(service, 1), f'{service:<{_WIDTH}}')}"
        words = first if level in ("info", "debug") else f"{level}: {first}"
        lines = [f"{head}  {self._in(_LEVELS.get(level), printable(words))}"]
        if rest:
            lines[0] += f"  {self._in(2, printable(rest))}"
        indent = " " * (len("00:00:00.000 ") + _WIDTH + 4)
        return "\n".join([*lines, *(indent + self._in(2, printable(line)) for line in more)])

    def _in(self, colour: int | None, text: str) -> str:
        return f"\x1b[{colour}m{text}\x1b[0m" if self._coloured and colour is not None else text


def _record(text: str) -> Mapping[str, object] | None:
    """Return the log record that a line holds; None if it is another text."""
    if not text.startswith('{"time": "'):
        return None
    try:
        return as_object(json.loads(text))
    except (ValueError, RecursionError):
        return None


def _time_of_day(record: Mapping[str, object]) -> str:
    try:
        instant = datetime.fromisoformat(str(record.get("time")))
    except ValueError:
        instant = SystemClock().now()
    return instant.astimezone().strftime("%H:%M:%S.%f")[:-3]


def _now() -> str:
    return SystemClock().now().astimezone(UTC).isoformat(timespec="milliseconds")
