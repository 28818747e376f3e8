"""Run one query at a time on a background thread with its own connection."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Generic, TypeVar

from tidewheel.postgres.session import Session

R = TypeVar("R")

_CANCEL_SECONDS = 0.1  # between two cancels: a cancel that arrives before the statement starts has no effect


class BackgroundQuery(Generic[R]):
    """A query that its loop starts and collects later, so that the loop never waits for it."""

    def __init__(self, session: Session, name: str) -> None:
        self._session = session
        self._thread = ThreadPoolExecutor(1, name)
        self._query: Future[R] | None = None
        self.closing = False

    @property
    def busy(self) -> bool:
        """True while a query runs, and until its result is taken."""
        return self._query is not None

    def start(self, query: Callable[[], R]) -> None:
        """Start a query; the caller checks `busy` first."""
        self._query = self._thread.submit(query)

    def take(self) -> R | None:
        """Return the result of a query that has ended, once, or raise its error; else None."""
        query = self._query
        if query is None or not query.done():
            return None
        self._query = None
        return query.result()

    def close(self) -> None:
        """Cancel the running statement, end the thread and close the connection."""
        self.closing = True
        while self._query is not None and wait([self._query], _CANCEL_SECONDS).not_done:
            self._session.cancel()
        self._thread.shutdown()
        self._session.close()
