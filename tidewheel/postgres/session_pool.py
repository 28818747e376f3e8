"""Connections that several threads share, each for a transaction."""

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress

from tidewheel.postgres.session import Conn, Session


class SessionPool:
    """A pool of sessions; each is opened when the open ones are busy."""

    def __init__(self, make: Callable[[], Session], most: int) -> None:
        self._make = make
        self._places = threading.Semaphore(most)
        self._idle: list[Session] = []  # the one that was used last at its end
        self._closed = False

    @contextmanager
    def transaction(self) -> Generator[Conn]:
        """Run the block in a transaction of a free session, as `Session.transaction` does."""
        with self._places:
            try:
                session = self._idle.pop()
            except IndexError:
                session = self._make()
            try:
                with session.transaction() as connection:
                    yield connection
            finally:
                self._idle.append(session)
                if self._closed:
                    self.close()

    def close(self) -> None:
        """Close the free sessions now, and each of the others at the end of its transaction."""
        self._closed = True
        with suppress(IndexError):
            while True:
                self._idle.pop().close()
