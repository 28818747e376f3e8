"""Chunks: several runs in one call of a handler, and the item that each of them is."""

import logging
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Generic, TypeVar
from uuid import UUID

from tidewheel.executor.context import Context
from tidewheel.executor.outcome import Outcome, from_exception, serialize_result
from tidewheel.jobs.values import span

P = TypeVar("P")

_MOST_RUNS = 10_000  # as many slots as an executor can have
_read_wait = span(timedelta(0), timedelta(seconds=10))


@dataclass(frozen=True, slots=True)
class Chunk:
    """The bounds of one call of a handler.

    Args:
        most: The most runs of a call, up to 10,000. Each takes a slot of the executor.
        wait: The longest wait of a run for others, such as `"50ms"`, up to 10 s.
    """

    most: int
    wait: str | float | timedelta = "50ms"

    def __post_init__(self) -> None:
        if not (type(self.most) is int and 1 <= self.most <= _MOST_RUNS):
            raise ValueError(f"Chunk.most: {self.most!r} is not valid; write 1 to {_MOST_RUNS}")
        try:
            _read_wait(self.wait)
        except ValueError as error:
            raise ValueError(f"Chunk.wait: {error}") from error

    @property
    def wait_seconds(self) -> float:
        """The longest wait of a run for others."""
        return _read_wait(self.wait).total_seconds()


class Item(Generic[P]):
    """One run of a chunk. Its first outcome counts: of `succeed`, `fail`, a timeout or a cancel request."""

    __slots__ = ("_context", "outcome", "payload")

    def __init__(self, payload: P, context: Context | None = None) -> None:
        self.payload = payload
        self.outcome: Outcome | None = None
        self._context: Context | None = context

    @property
    def context(self) -> Context:
        """The run's context, as a handler of single runs gets it."""
        assert self._context is not None  # noqa: S101 - a subclass creates it when it is first read
        return self._context

    @property
    def run_id(self) -> UUID:
        """The run; the same for all its attempts."""
        return self.context.run_id

    @property
    def attempt(self) -> int:
        """Number of this attempt, from 1; never used twice for a run."""
        return self.context.attempt

    @property
    def job_key(self) -> str:
        """The key of the run's job."""
        return self.context.job_key

    @property
    def cancelled(self) -> bool:
        """True if a timeout or a cancel request has decided the run: leave it out from now on."""
        return self.context.cancelled

    @property
    def deadline(self) -> datetime:
        """End of the run's time limit by this machine's clock, in UTC."""
        return self.context.deadline

    @property
    def log(self) -> "logging.LoggerAdapter[logging.Logger]":
        """A logger whose lines are stored with the run."""
        return self.context.logger

    def succeed(self, result: object = None) -> None:
        """End the run as succeeded; the result is what a handler of single runs would return."""
        self._end(serialize_result(result))

    def fail(self, error: BaseException) -> None:
        """End the attempt as if a handler of single runs had raised the error; `Snooze` and `Cancel` work too."""
        if not isinstance(error, BaseException):  # pyright: ignore[reportUnnecessaryIsInstance]  # a caller without types
            raise TypeError(f"item.fail: {error!r} is no exception; write item.fail(ValueError(…))")
        self._end(from_exception(error))

    def _end(self, outcome: Outcome) -> None:
        if self.outcome is None:
            self.outcome = outcome
