"""Passes on what attempts write to this process's own log, line by line, as long as that is not too much.

An attempt that prints gigabytes must not fill the executor's log: beyond a bound it is passed over there, and said so
once. The last 64 KiB lie with the run all the same.
"""

import logging
import threading
from contextvars import ContextVar

from tidewheel.clock import monotonic_seconds

LOGGER = "tidewheel.output"
_LOG = logging.getLogger(LOGGER)

_BURST_BYTES = 64 * 1024  # what is kept with the run anyway
_BYTES_PER_SECOND = 4 * 1024  # 350 MB a day of one that never stops
_LINE_COST = 200  # what the line of JSON around it takes
_LONGEST_LINE = 8 * 1024

telling: ContextVar[bool] = ContextVar("tidewheel_telling", default=False)


class Echo:
    """One attempt's share of the log; safe from every thread.

    Args:
        about: What each line says beside its text: run_id, attempt, job_key.
    """

    __slots__ = ("_about", "_lock", "_rest", "_said", "_since", "_tokens")

    def __init__(self, about: dict[str, object]) -> None:
        self._about = about
        self._lock = threading.Lock()
        self._rest = b""
        self._tokens, self._since = float(_BURST_BYTES), monotonic_seconds()
        self._said = False

    def write(self, data: bytes) -> None:
        """Pass on the lines that are whole now; the rest waits for its end."""
        with self._lock:
            lines, muted = self._whole_lines(data)
        self._tell(lines, muted=muted)

    def close(self) -> None:
        """Pass on the last line, which has no end."""
        with self._lock:
            lines, muted = self._whole_lines(b"\n") if self._rest else ([], False)
        self._tell(lines, muted=muted)

    def allows(self, size: int) -> bool:
        """Whether a line of the attempt's own logging may be passed on; takes its share of the bound."""
        with self._lock:
            allowed = self._take(size)
            muted = self._mute() if not allowed else False
        self._tell([], muted=muted)
        return allowed

    def _whole_lines(self, data: bytes) -> tuple[list[str], bool]:
        # What lies beyond the bound could not be told; it is not even looked at.
        *whole, self._rest = (self._rest + data[:_BURST_BYTES]).split(b"\n")
        if len(self._rest) > _LONGEST_LINE:
            whole.append(self._rest)
            self._rest = b""
        lines: list[str] = []
        for line in whole:
            if not self._take(len(line)):
                self._rest = b""
                return lines, self._mute()
            lines.append(line.decode("utf-8", "replace"))
        return lines, False

    def _take(self, size: int) -> bool:
        now = monotonic_seconds()
        self._tokens = min(self._tokens + (now - self._since) * _BYTES_PER_SECOND, float(_BURST_BYTES))
        self._since = now
        if self._tokens < size + _LINE_COST:
            return False
        self._tokens -= size + _LINE_COST
        return True

    def _mute(self) -> bool:
        first, self._said = not self._said, True
        return first

    def _tell(self, lines: list[str], *, muted: bool) -> None:
        if not lines and not muted:
            return
        # Whoever writes the log may write it to what is captured here.
        token = telling.set(True)
        try:
            for line in lines:
                _LOG.info("%s", line, extra=self._about)
            if muted:
                _LOG.warning(
                    "writes more than %d bytes a second; the rest is passed over in this log", _BYTES_PER_SECOND,
                    extra=self._about,
                )  # fmt: skip
        finally:
            telling.reset(token)
