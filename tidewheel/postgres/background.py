"""Work beside a loop that must not wait for it: on a thread and a connection of its own, one piece at a time."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Generic, TypeVar

from tidewheel.postgres.session import Session

R = TypeVar("R")

_CANCEL_SECONDS = 0.1  # until a cancel is sent again: one that comes before the statement cancels nothing


class Beside(Generic[R]):
    """One loop's.

    Args:
        session: The connection that the work uses, and nobody else.
        name: The thread's.
    """

    def __init__(self, session: Session, name: str) -> None:
        self._session = session
        self._thread = ThreadPoolExecutor(1, name)
        self._work: Future[R] | None = None
        self.closing = False

    @property
    def busy(self) -> bool:
        """Whether some is under way, or its result was not taken yet."""
        return self._work is not None

    def begin(self, work: Callable[[], R]) -> None:
        """Begin some; it must not be busy."""
        self._work = self._thread.submit(work)

    def take(self) -> R | None:
        """The result of what has ended, once; else nothing.

        Raises:
            Unavailable: The work has raised it; so with anything else.
        """
        work = self._work
        if work is None or not work.done():
            return None
        self._work = None
        return work.result()

    def close(self) -> None:
        """Give up what is under way: the statement that it waits for is cancelled."""
        self.closing = True
        while self._work is not None and wait([self._work], _CANCEL_SECONDS).not_done:
            self._session.cancel()
        self._thread.shutdown()
        self._session.close()
