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
    """A run, a batch or bulk work."""

    @property
    def state(self) -> str:
        """Its state."""
        ...

    @property
    def finished_at(self) -> datetime | None:
        """The time of its end; None before."""
        ...


class Polling(Generic[T]):
    """One wait, of `timeout` seconds at most; `on_progress` gets each result of a poll before the last."""

    def __init__(
        self,
        name: str,
        work_id: UUID,
        timeout: float | None,
        on_progress: Callable[[T], None] | None = None,
        *,
        first_pause: float = POLL_SECONDS,
    ) -> None:
        self._name, self._work_id, self._timeout, self._on_progress = name, work_id, timeout, on_progress
        if timeout is not None:
            as_seconds(timeout)
        self._started, self._pause = monotonic_seconds(), first_pause

    def goes_on(self, found: T, work: Work) -> bool:
        """Return True if the work has not ended: then poll again."""
        if work.finished_at is not None:
            return False
        if self._on_progress is not None:
            self._on_progress(found)
        if self._timeout is not None and monotonic_seconds() - self._started > self._timeout:
            message = f"{self._name} {self._work_id} is {work.state} after {self._timeout:g} s"
            raise TimeoutError(message)
        return True

    def pause(self) -> float:
        """Return the seconds until the next poll, which grow to `POLL_SECONDS`; no more than are left."""
        pause, self._pause = self._pause, min(self._pause * 1.5, POLL_SECONDS)
        left = POLL_SECONDS if self._timeout is None else self._timeout - (monotonic_seconds() - self._started)
        return max(min(pause, left), 0.0)
