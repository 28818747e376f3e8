"""What an attempt has written: the last 64 KiB are kept, whatever it writes.

They are written to the database while it runs, and with its end. The two must not both make the row: `begin_flush` and
`close` decide under one lock which of them knows of the other.
"""

import threading
from dataclasses import dataclass

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
