"""What a handler is given beside its payload."""

import asyncio
import json
import logging
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Protocol
from uuid import UUID

from pydantic_core import PydanticSerializationError, to_json

from tidewheel.clock import SystemClock, monotonic_seconds
from tidewheel.jobs.values import MAX_PROGRESS_BYTES, MAX_RESULT_BYTES

if TYPE_CHECKING:
    from psycopg import AsyncConnection, Connection

_TOO_LARGE = {
    "progress": (MAX_PROGRESS_BYTES, "tell a count, a percentage or a short text, and log the rest"),
    "checkpoint": (MAX_RESULT_BYTES, "keep the data elsewhere and checkpoint where it lies"),
}


class Flag:
    """Set once, seen by every thread; an Event costs twenty times as much to make, and nobody waits on it."""

    __slots__ = ("_is_set",)

    def __init__(self) -> None:
        self._is_set = False

    def set(self) -> None:
        """From now on it is set."""
        self._is_set = True

    def is_set(self) -> bool:
        """Whether it is."""
        return self._is_set


@dataclass(frozen=True, slots=True)
class Previous:
    """What came before a run.

    Args:
        scheduled_at: The last instant of the job before this one that became a run; None where there is none.
        result: What the last earlier run that succeeded returned, as plain values; None where it returned nothing, or
            its result is no longer kept.
        result_at: That run's nominal instant; None where no earlier run has succeeded.
    """

    scheduled_at: datetime | None = None
    result: object = None
    result_at: datetime | None = None


class Completing(Protocol):
    """What completes a run in a transaction of its handler's."""

    def complete_in(self, connection: "Connection[object]", result: object) -> None:
        """As `Context.complete_in`."""
        ...

    async def complete_in_async(self, connection: "AsyncConnection[object]", result: object) -> None:
        """As `Context.complete_in_async`."""
        ...


class Channel(Protocol):
    """The way from a handler to the executor that runs it: a call, or a pipe where the handler has its own process."""

    def beat(self, progress: bytes | None, checkpoint: bytes | None) -> None:
        """Take a sign of life, with JSON texts to be kept; never waits."""
        ...

    def previous(self) -> Previous:
        """Look up what came before; waits for the database."""
        ...

    def completing(self) -> Completing:
        """What completes the attempt's run in a transaction of its handler's."""
        ...


class Silence:
    """The channel of a context that no executor made, as in a unit test of a handler."""

    def beat(self, progress: bytes | None, checkpoint: bytes | None) -> None:
        """Nobody listens."""

    def previous(self) -> Previous:
        """Nothing came before."""
        return Previous()

    def completing(self) -> Completing:
        """There is no run that could be completed.

        Raises:
            RuntimeError: Always.
        """
        message = "this context is of no run; tidewheel.testing.run_handler makes one that takes complete_in"
        raise RuntimeError(message)


@dataclass(frozen=True, slots=True)
class Context:
    """One attempt, as its handler sees it.

    Args:
        run_id: The run; the same for all its attempts.
        attempt: Which attempt this is, from 1; never given twice for a run.
        job_key: The job's key.
        tenant: The job's tenant.
        scheduled_at: The nominal instant, in UTC.
        deadline_seconds: How long the attempt may take.
        labels: The run's labels.
        idempotency_key: Send this with every effect: it is the same for all attempts of a run.
        traceparent: W3C trace context of the request, if it had one.
        logger: A logger that carries run_id and attempt.
    """

    run_id: UUID
    attempt: int
    job_key: str
    tenant: str
    scheduled_at: datetime
    deadline_seconds: float
    labels: dict[str, str]
    idempotency_key: str
    traceparent: str | None
    logger: "logging.LoggerAdapter[logging.Logger]"
    _cancelled: Flag
    _channel: Channel = field(default_factory=Silence)
    _checkpoint: bytes | None = None
    _began: float = field(default_factory=monotonic_seconds)

    @property
    def cancelled(self) -> bool:
        """Whether the attempt was asked to stop, or its time is over: a long handler looks at this now and then."""
        return self._cancelled.is_set()

    @property
    def remaining_seconds(self) -> float:
        """How much of the attempt's time is left; never below 0."""
        return max(self.deadline_seconds - (monotonic_seconds() - self._began), 0.0)

    @property
    def deadline(self) -> datetime:
        """When the attempt's time is over, by this machine's clock, in UTC: to hand on to others."""
        return SystemClock().now() + timedelta(seconds=self.remaining_seconds)

    @property
    def checkpoint(self) -> object:
        """What an earlier attempt of this run saved last, as plain values; None where none has saved anything."""
        return None if self._checkpoint is None else json.loads(self._checkpoint)

    def heartbeat(self, progress: object = None, checkpoint: object = None) -> None:
        """Say that the attempt goes on; from a coroutine and a thread alike, as often as one likes.

        It never waits: what is told is written within about a second, the newest only, and before the attempt's end.

        Args:
            progress: How far it is, for people: anything that can be written as JSON, up to 4 KiB. None: as before.
            checkpoint: What the next attempt needs to go on from here, likewise, up to 64 KiB. None: as before.

        Raises:
            ValueError: It cannot be written as JSON, or is too large; nothing was told.
        """
        self._channel.beat(_written("progress", progress), _written("checkpoint", checkpoint))

    def previous(self) -> Previous:
        """What came before this run; asks the database, so that a coroutine awaits `previous_async` instead.

        Raises:
            Unavailable: The database does not answer.
            RuntimeError: It was called on the event loop, which it would block.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return self._channel.previous()
        message = "ctx.previous() would block the event loop; write `await ctx.previous_async()`"
        raise RuntimeError(message)

    async def previous_async(self) -> Previous:
        """What came before this run, without blocking the loop.

        Raises:
            Unavailable: The database does not answer.
        """
        return await asyncio.to_thread(self._channel.previous)

    def complete_in(self, connection: "Connection[object]", result: object = None) -> None:
        """Complete the run inside your own PostgreSQL transaction: its effect and its completion are one.

        Roll back, and nothing has happened: the attempt goes on. Commit, and the run has succeeded: what the handler
        still returns or raises changes nothing. Call it last, for what it locks stays locked until you commit.

        Args:
            connection: A psycopg connection to Tidewheel's database, inside the transaction that holds the effect.
            result: As a handler returns it.

        Raises:
            AttemptOver: The run was cancelled, has timed out, or is in another executor's hands; the transaction has
                failed and can only be rolled back. Let it pass.
            InvalidInput: The connection or the result does not fit; nothing was written.
        """
        self._channel.completing().complete_in(connection, result)

    async def complete_in_async(self, connection: "AsyncConnection[object]", result: object = None) -> None:
        """As `complete_in`, on an asynchronous connection."""
        await self._channel.completing().complete_in_async(connection, result)


def _written(name: str, value: object) -> bytes | None:
    """A value as JSON text within its bound; None where there is none."""
    if value is None:
        return None
    try:
        text = to_json(value, inf_nan_mode="strings")
    except (PydanticSerializationError, ValueError, RecursionError) as error:
        message = f"{name} cannot be written as JSON ({error}); use numbers, text, lists, dicts or pydantic models"
        raise ValueError(message) from error
    most, remedy = _TOO_LARGE[name]
    if len(text) > most:
        message = f"{name} has {len(text)} bytes as JSON, more than {most}; {remedy}"
        raise ValueError(message)
    return text
