"""What an attempt has written: the last 64 KiB are kept, whatever it writes.

They are written to the database while it runs, and with its end. The two must not both make the row: `begin_flush` and
`close` decide under one lock which of them knows of the other.

Passes on what attempts write to this process's own log, line by line, as long as that is not too much.

An attempt that prints gigabytes must not fill the executor's log: beyond a bound it is passed over there, and said so
once. The last 64 KiB lie with the run all the same.
"""

import logging
import threading
from contextvars import ContextVar
from dataclasses import dataclass

from tidewheel.clock import monotonic_seconds

OUTPUT_BYTES = 64 * 1024
_STREAM_BYTES = 1024 * 1024  # of one attempt, between two looks; what is more is lost to the topic, and counted
_PIECE_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True)
class Piece:
    """Part of the full stream.

    Args:
        offset: How many bytes came before it.
        data: The bytes.
    """

    offset: int
    data: bytes


class Output:
    """The last bytes that an attempt wrote, and how many it ever wrote; safe from every thread.

    Args:
        streamed: Whether everything it writes is kept until `take_stream`, not only the end.
        closed: Whether the end was being recorded already when the first of it was written.
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
        """Append; what lies more than 64 KiB back is forgotten."""
        with self._lock:
            self.written += len(data)
            _append(self._tail, data, OUTPUT_BYTES)
            if self._stream is not None:
                self.dropped += _append(self._stream, data, _STREAM_BYTES)

    def tail(self) -> bytes | None:
        """The last 64 KiB; None where nothing was written."""
        with self._lock:
            return self._end()

    def begin_flush(self) -> tuple[bytes, int] | None:
        """What is to be written to the database while the attempt runs, with how many bytes that makes.

        Returns:
            None where nothing is new, or its end is being recorded. From now on its row may be there.
        """
        with self._lock:
            tail = self._end()
            if self._closed or tail is None or self.written == self._flushed:
                return None
            self._touched = True
            return tail, self.written

    def flushed(self, written: int) -> None:
        """So many bytes are in the database."""
        self._flushed = written

    def close(self) -> bool:
        """Nothing is flushed from now on: the end is being recorded. Returns whether nothing ever was."""
        with self._lock:
            self._closed = True
            return not self._touched

    def take_stream(self) -> list[Piece]:
        """What was written since the last call, in pieces that fit into a message."""
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


def _append(kept: bytearray, data: bytes, most: int) -> int:
    """Append what may stay; returns how many bytes were forgotten for it. Cut seldom: each cut copies the whole."""
    before = len(kept) + len(data)
    if len(data) > most:
        kept.clear()  # or there would be a gap between what is left of it and the end of the new
    kept += data[-most:]
    if len(kept) > 2 * most:
        del kept[:-most]
    return before - len(kept)


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
