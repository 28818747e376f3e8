"""The other side of asynchronous calls: it completes each attempt by its token, a while after its 202."""

import threading
from collections import deque
from collections.abc import Callable

from tests.faults.outside.records import SECOND, Tail, now_us

_AFTER = SECOND // 2
_LOOK_SECONDS = 0.05


class Completer:
    """Completes attempts until it is closed."""

    def __init__(self, tail: Tail, complete: Callable[[str], None]) -> None:
        self._tail, self._complete = tail, complete
        self._answered: deque[tuple[int, str]] = deque()
        self._calls: dict[str, str] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tokens", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Complete nothing more."""
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(_LOOK_SECONDS):
            for line in self._tail.read():
                if line["kind"] == "received" and line.get("token"):
                    self._calls[line["call"]] = line["token"]
                elif line["kind"] == "answered" and line["status"] == 202 and line["call"] in self._calls:
                    self._answered.append((line["answered"] + _AFTER, self._calls.pop(line["call"])))
            while self._answered and self._answered[0][0] <= now_us():
                self._complete(self._answered.popleft()[1])
