"""What an attempt has written: the last 64 KiB are kept, whatever it writes."""

import threading

OUTPUT_BYTES = 64 * 1024


class Output:
    """The last bytes that an attempt wrote, and how many it ever wrote; safe from every thread."""

    __slots__ = ("_lock", "_tail", "written")

    def __init__(self) -> None:
        self._tail = bytearray()
        self._lock = threading.Lock()
        self.written = 0

    def write(self, data: bytes) -> None:
        """Append; what lies more than 64 KiB back is forgotten."""
        with self._lock:
            self.written += len(data)
            self._tail += data[-OUTPUT_BYTES:]
            if len(self._tail) > 2 * OUTPUT_BYTES:  # cut seldom: each cut copies the whole
                del self._tail[:-OUTPUT_BYTES]

    def tail(self) -> bytes | None:
        """The last 64 KiB; None where nothing was written."""
        with self._lock:
            return bytes(self._tail[-OUTPUT_BYTES:]) or None
