"""Poll long work that schedulers do, until it has ended: for `wait` of both clients."""

from collections.abc import Callable
from datetime import datetime
from typing import Generic, Protocol, TypeVar
from uuid import UUID

from tidewheel.clock import monotonic_seconds
from tidewheel.control.client.arguments import as_seconds

T = TypeVar("T")

POLL_SECONDS = 0.5  # each poll of a backfill counts the states of its runs


class Work(Protocol):
    """A batch or bulk work."""

    @property
    def state(self) -> str:
        """Its state."""
        ...

    @property
    def finished_at(self) -> datetime | None:
        """The time of its end; None before."""
        ...


class Polling(Generic[T]):
    """One wait.

    Args:
        timeout: The most seconds to wait.
        on_progress: Called with each result of a poll before the last.
    """

    def __init__(
        self, name: str, work_id: UUID, timeout: float | None, on_progress: Callable[[T], None] | None
    ) -> None:
        self._name, self._work_id, self._timeout, self._on_progress = name, work_id, timeout, on_progress
        if timeout is not None:
            as_seconds(timeout)
        self._started = monotonic_seconds()

    def goes_on(self, found: T, work: Work) -> bool:
        """Return True if the work has not ended: then poll again after `POLL_SECONDS`."""
        if work.finished_at is not None:
            return False
        if self._on_progress is not None:
            self._on_progress(found)
        if self._timeout is not None and monotonic_seconds() - self._started > self._timeout:
            message = f"{self._name} {self._work_id} is {work.state} after {self._timeout:g} s"
            raise TimeoutError(message)
        return True
