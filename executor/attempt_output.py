"""Output of an attempt: keep its last 64 KiB, and forward it to this process's log up to a limit.

The tail is written to the database while the attempt runs, and with its end. Only one of these two writes may create
the row: `begin_flush` and `close` decide under one lock which one.

An attempt that prints gigabytes must not fill the executor's log. Beyond the limit its lines are dropped there, with
one warning. The last 64 KiB are stored with the run in any case.
"""

import logging
import threading
from contextvars import ContextVar
from dataclasses import dataclass

from tidewheel.clock import monotonic_seconds

OUTPUT_BYTES = 64 * 1024
_STREAM_BYTES = 1024 * 1024  # of one attempt between two polls; more is dropped from the topic, and counted
_PIECE_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of the full stream, behind `offset` bytes."""

    offset: int
    data: bytes


class Output:
    """The tail of an attempt's output, and the number of bytes it ever wrote; safe from every thread.

    Args:
        streamed: True if all output is kept until `take_stream`, not only the tail.
        closed: True if the attempt's end was being recorded before its first output.
    """

    __slots__ = ("_closed", "_flushed", "_lock", "_stream", "_tail", "_touched", "dropped", "written")

    def __init__(self, *, streamed: bool = False, closed: bool = False) -> None:
        self._tail = bytearray()
        self._lock = threading.Lock()
        self._flushed = 0
        self._touched, self._closed = False, closed
        self._stream = bytearray() if streamed else None
        self.written = 0
        self.dropped = 0

    def write(self, data: bytes) -> None:
        """Append; bytes more than 64 KiB back are dropped."""
        with self._lock:
            self.written += len(data)
            _append(self._tail, data, OUTPUT_BYTES)
            if self._stream is not None:
                self.dropped += _append(self._stream, data, _STREAM_BYTES)

    def tail(self) -> bytes | None:
        """Return the last 64 KiB; None if there is no output."""
        with self._lock:
            return self._end()

    def begin_flush(self) -> tuple[bytes, int] | None:
        """Return the unflushed tail and all bytes written; None if nothing is new or the end is recorded."""
        with self._lock:
            tail = self._end()
            if self._closed or tail is None or self.written == self._flushed:
                return None
            self._touched = True
            return tail, self.written

    def flushed(self, written: int) -> None:
        """Record that this many bytes are in the database."""
        self._flushed = written

    def close(self) -> bool:
        """Flush nothing from now on: the end is being recorded. Return True if nothing was ever flushed."""
        with self._lock:
            self._closed = True
            return not self._touched

    def take_stream(self) -> list[Piece]:
        """Return the output since the last call, in pieces that fit into a message."""
        with self._lock:
            if not self._stream:
                return []
            taken = bytes(self._stream)
            self._stream.clear()
            first = self.written - len(taken)
        starts = range(0, len(taken), _PIECE_BYTES)
        return [Piece(first + start, taken[start : start + _PIECE_BYTES]) for start in starts]

    def _end(self) -> bytes | None:
        return bytes(self._tail[-OUTPUT_BYTES:]) or None


def _append(kept: bytearray, data: bytes, limit: int) -> int:
    """Append within a limit; return the number of bytes dropped. Cut rarely: each cut copies the whole."""
    before = len(kept) + len(data)
    if len(data) > limit:
        kept.clear()  # or a gap would lie between the old bytes and the end of the new ones
    kept += data[-limit:]
    if len(kept) > 2 * limit:
        del kept[:-limit]
    return before - len(kept)


LOGGER = "tidewheel.output"
_LOG = logging.getLogger(LOGGER)

_BURST_BYTES = 64 * 1024  # the amount that is stored with the run anyway
_BYTES_PER_SECOND = 4 * 1024  # 350 MB a day for an attempt that never stops printing
_LINE_COST = 200  # bytes of the JSON around a line
_LONGEST_LINE = 8 * 1024

forwarding: ContextVar[bool] = ContextVar("tidewheel_forwarding", default=False)


class LogForwarder:
    """Forwards one attempt's output to the log within a rate limit; safe from every thread."""

    __slots__ = ("_about", "_lock", "_rest", "_since", "_tokens", "_warned")

    def __init__(self, about: dict[str, object]) -> None:
        self._about = about
        self._lock = threading.Lock()
        self._rest = b""
        self._tokens, self._since = float(_BURST_BYTES), monotonic_seconds()
        self._warned = False

    def write(self, data: bytes) -> None:
        """Forward complete lines; the rest waits for its end."""
        with self._lock:
            lines, muted = self._whole_lines(data)
        self._emit(lines, muted=muted)

    def close(self) -> None:
        """Forward the last line, which has no end."""
        with self._lock:
            lines, muted = self._whole_lines(b"\n") if self._rest else ([], False)
        self._emit(lines, muted=muted)

    def allows(self, size: int) -> bool:
        """Return True if a log record of the attempt may be forwarded; uses up its part of the limit."""
        with self._lock:
            allowed = self._take(size)
            muted = self._mute() if not allowed else False
        self._emit([], muted=muted)
        return allowed

    def _whole_lines(self, data: bytes) -> tuple[list[str], bool]:
        # Bytes beyond the limit cannot be forwarded, so they are not even split.
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
        first, self._warned = not self._warned, True
        return first

    def _emit(self, lines: list[str], *, muted: bool) -> None:
        if not lines and not muted:
            return
        # A log handler may write to the streams that are captured.
        token = forwarding.set(True)
        try:
            for line in lines:
                _LOG.info("%s", line, extra=self._about)
            if muted:
                _LOG.warning(
                    "the attempt writes more than %d bytes a second; the executor drops the rest from this log",
                    _BYTES_PER_SECOND,
                    extra=self._about,
                )  # fmt: skip
        finally:
            forwarding.reset(token)
