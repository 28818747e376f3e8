"""The context of an attempt: the first argument of every handler."""

import json
import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from inspect import isawaitable
from typing import TYPE_CHECKING, Any
from uuid import UUID

from pydantic_core import PydanticSerializationError

from tidewheel.clock import SystemClock, monotonic_seconds
from tidewheel.executor.context_parts import (
    CALLS,
    HandlerChannel,
    NoChannel,
    Parent,
    Previous,
    RunBatch,
    Steps,
    has_steps,
    on_thread,
    own_checkpoint,
    refuse_loop,
)
from tidewheel.jobs.schedule import read_interval
from tidewheel.jobs.strict_json import strict_json
from tidewheel.jobs.values import MAX_PROGRESS_BYTES, MAX_RESULT_BYTES
from tidewheel.schemas.primitives import slot
from tidewheel.settings.connections import Connections

if TYPE_CHECKING:
    from psycopg import AsyncConnection, Connection

    from tidewheel.schemas.generated.records import JobDefinition, RunRequest
    from tidewheel.transitions.claim import Started

_TOO_LARGE = {
    "progress": (MAX_PROGRESS_BYTES, "report a count, a percentage or a short text, and log the rest"),
    "checkpoint": (MAX_RESULT_BYTES, "store the data elsewhere and checkpoint its address"),
}


_LOG = logging.getLogger("tidewheel.handler")


class Flag:
    """A flag that is set once and read by every thread; 20 times cheaper to create than an Event."""

    __slots__ = ("_is_set",)

    def __init__(self) -> None:
        self._is_set = False

    def set(self) -> None:
        """Set it."""
        self._is_set = True

    def is_set(self) -> bool:
        """Return True if it is set."""
        return self._is_set


@dataclass(frozen=True, slots=True)
class Context:
    """One attempt, as its handler sees it.

    Args:
        run_id: The run; the same for all its attempts.
        attempt: Number of this attempt, from 1; never used twice for a run.
        scheduled_at: The nominal instant, in UTC.
        deadline_seconds: Time limit of the attempt.
        idempotency_key: Send this with every effect: it is the same for all attempts of a run.
        traceparent: W3C trace context: of the attempt while traces are on, else of the request, if it had one.
        logger: A logger whose lines carry run_id, attempt and job_key.
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
    _channel: HandlerChannel = field(default_factory=NoChannel)
    _checkpoint: bytes | None = None
    _steps: Steps | None = None
    _began: float = field(default_factory=monotonic_seconds)

    @classmethod
    def of_attempt(
        cls,
        started: "Started",
        request: "RunRequest",
        definition: "JobDefinition",
        *,
        traceparent: str | None,
        deadline_seconds: float,
        cancelled: Flag,
        channel: HandlerChannel,
    ) -> "Context":
        """Return the context of a claimed attempt.

        The slots are set one by one. That takes half the time of the initialiser of a frozen dataclass.
        """
        context = object.__new__(cls)
        run_id, attempt, job_key = request.run_id, started.attempt, definition.job_key
        _set_run_id(context, started.run_id)
        _set_attempt(context, attempt)
        _set_job_key(context, job_key)
        _set_tenant(context, definition.tenant)
        _set_scheduled_at(context, request.scheduled_at)
        _set_deadline_seconds(context, deadline_seconds)
        _set_labels(context, {**definition.labels, **(request.labels or {})})
        _set_idempotency_key(context, run_id)
        _set_traceparent(context, traceparent)
        _set_logger(context, logger_of(run_id, attempt, job_key))
        _set_cancelled(context, cancelled)
        _set_channel(context, channel)
        _set_checkpoint(context, request.checkpoint)
        _set_steps(context, None)
        _set_began(context, monotonic_seconds())
        return context

    @property
    def cancelled(self) -> bool:
        """True if the attempt is requested to stop, or its time is over: a long handler checks this regularly."""
        return self._cancelled.is_set()

    @property
    def database_url(self) -> str:
        """Connection string of the executor's database, for `complete_in` and a handler's own rows.

        Raises:
            SettingsError: No database is named: the handler is called outside an executor.
        """
        return Connections.load(database_schema=None).database()

    @property
    def remaining_seconds(self) -> float:
        """Seconds left of the attempt's time limit; never below 0."""
        return max(self.deadline_seconds - (monotonic_seconds() - self._began), 0.0)

    @property
    def deadline(self) -> datetime:
        """End of the attempt's time limit by this machine's clock, in UTC; pass it to services you call."""
        return SystemClock().now() + timedelta(seconds=self.remaining_seconds)

    @property
    def checkpoint(self) -> object:
        """The last checkpoint of an earlier attempt of this run, as plain values; None if there is none."""
        return own_checkpoint(self._checkpoint)

    def heartbeat(self, progress: object = None, checkpoint: object = None) -> None:
        """Report that the attempt is alive; callable from coroutines and threads, at any rate.

        It never waits. The executor saves the newest values within about a second, and before the attempt's end.

        Args:
            progress: Progress for people to read: anything that serializes to JSON, up to 4 KiB. None: unchanged.
            checkpoint: State from which the next attempt continues, likewise, up to 64 KiB. None: unchanged.

        Raises:
            ValueError: A value does not serialize to JSON, or is too large; nothing was reported.
            AttemptOver: The executor was stopped for longer than its lease, and no longer owns the run.
        """
        reported, saved = _to_json("progress", progress), _to_json("checkpoint", checkpoint)
        if saved is not None and (self._steps is not None or has_steps(self._checkpoint)):
            self._all_steps().keep(saved, lambda whole: self._channel.heartbeat(reported, whole))
        else:
            self._channel.heartbeat(reported, saved)

    def step(self, name: str, function: Callable[[], object]) -> Any:  # noqa: ANN401 - any JSON value
        """Run a step once: a later attempt of the run gets the saved result, and does not call the function.

        The result is saved when this returns. An attempt that dies within the function repeats it. It blocks, so a
        coroutine awaits `step_async` instead.

        Args:
            name: Unique within the handler, and the same in each attempt.
            function: Called without arguments; its result serializes to JSON. All results of a run and its checkpoint
                have 64 KiB together.

        Returns:
            The result after its way through JSON, as a later attempt gets it.

        Raises:
            ValueError: The attempt has used the name before.
            Permanent: The result is no JSON or too large.
            RuntimeError: It was called on the event loop, which it would block.
        """
        refuse_loop("step", f"{name!r}, …")
        steps = self._all_steps()
        if (saved := steps.begin(name)) is None:
            with steps.recording(name, self._save):
                saved = steps.finish(name, function(), self._save)
            self._channel.wait_saved()
        return json.loads(saved)

    async def step_async(self, name: str, function: Callable[[], object]) -> Any:  # noqa: ANN401 - as above
        """As `step`, for a coroutine; the function may be one too, and others run meanwhile."""
        steps = self._all_steps()
        if (saved := steps.begin(name)) is None:
            with steps.recording(name, self._save):
                result = function()
                saved = steps.finish(name, await result if isawaitable(result) else result, self._save)
            await on_thread(CALLS, self.tenant, self._channel.wait_saved)
        return json.loads(saved)

    def _save(self, checkpoint: bytes) -> None:
        self._channel.heartbeat(None, checkpoint)

    def _all_steps(self) -> Steps:
        with _FIRST_STEP:
            if self._steps is None:
                _set_steps(self, Steps(self._checkpoint, self.attempt))
            steps = self._steps
        assert steps is not None  # noqa: S101 - set above
        return steps

    def previous(self) -> Previous:
        """Return the job's runs before this one; blocks, so a coroutine awaits `previous_async` instead."""
        refuse_loop("previous", "")
        return self._channel.previous()

    async def previous_async(self) -> Previous:
        """Return the job's runs before this one, without blocking the loop."""
        return await on_thread(CALLS, self.tenant, self._channel.previous)

    def parents(self) -> Mapping[str, Parent]:
        """Return the latest run of each parent in this occurrence, by job key; in a batch, by `ref`.

        It blocks, so a coroutine awaits `parents_async` instead. A run that belongs to no occurrence has none. A retry
        has those of the run that it retries.
        """
        refuse_loop("parents", "")
        return self._channel.parents(None)

    async def parents_async(self) -> Mapping[str, Parent]:
        """As `parents`, without blocking the loop."""
        return await on_thread(CALLS, self.tenant, lambda: self._channel.parents(None))

    def parent(self, key: str) -> Parent:
        """Return the latest run of one parent, with its result, also if all results are too large together.

        Raises:
            LookupError: The run has no parent with this key in its occurrence.
        """
        refuse_loop("parent", repr(key))
        return _only(key, self._channel.parents(key))

    async def parent_async(self, key: str) -> Parent:
        """As `parent`, without blocking the loop."""
        return _only(key, await on_thread(CALLS, self.tenant, lambda: self._channel.parents(key)))

    @property
    def batch(self) -> RunBatch:
        """The batch that the run belongs to: `ctx.batch.add` adds runs to it."""
        return RunBatch(self._channel, self.tenant)

    def next_in(self, delay: str | float | timedelta) -> None:
        """Set the time from the end of this run to the job's next run, such as `"30s"`; the last call counts.

        It is saved with the end of the run, if this attempt ends it. It lies within `min` and `max` of the job's
        `fixed_delay`: a shorter time is `min`, a longer one `max`. It has no effect in runs of triggers and of other
        schedules, nor if the job was changed or deleted meanwhile.

        Raises:
            ValueError: It is no duration of 1 s to 400 days.
            RuntimeError: The handler has called `complete_in`, which has saved the end.
        """
        self._channel.set_next(read_interval(delay))

    def complete_in(self, connection: "Connection[object]", result: object = None) -> None:
        """Complete the run inside your own PostgreSQL transaction: effect and completion commit together.

        If you roll back, nothing has happened and the attempt goes on. If you commit, the run has succeeded, and the
        handler's return value or exception changes nothing. Call it last: its locks last until you commit.

        Args:
            connection: A psycopg connection to Tidewheel's database, inside the transaction that holds the effect.

        Raises:
            AttemptOver: The run was cancelled, has timed out, or belongs to another executor. The transaction has
                failed and can only be rolled back. Do not catch this error.
            InvalidInput: The connection or the result does not fit; nothing was written.
            Unavailable: The database had no partition of this day, so the transaction has failed. The partition exists
                now: roll back, and do the work again.
        """
        self._channel.completing().complete_in(connection, result)

    async def complete_in_async(self, connection: "AsyncConnection[object]", result: object = None) -> None:
        """As `complete_in`, on an asynchronous connection."""
        await self._channel.completing().complete_in_async(connection, result)


_set_run_id, _set_attempt = slot(Context, "run_id"), slot(Context, "attempt")
_set_job_key, _set_tenant = slot(Context, "job_key"), slot(Context, "tenant")
_set_scheduled_at, _set_deadline_seconds = slot(Context, "scheduled_at"), slot(Context, "deadline_seconds")
_set_labels, _set_idempotency_key = slot(Context, "labels"), slot(Context, "idempotency_key")
_set_traceparent, _set_logger = slot(Context, "traceparent"), slot(Context, "logger")
_set_cancelled, _set_channel = slot(Context, "_cancelled"), slot(Context, "_channel")
_set_checkpoint, _set_steps = slot(Context, "_checkpoint"), slot(Context, "_steps")
_set_began = slot(Context, "_began")
_FIRST_STEP = threading.Lock()


def logger_of(run_id: str, attempt: int, job_key: str) -> "logging.LoggerAdapter[logging.Logger]":
    """Return a logger whose lines carry the attempt."""
    return logging.LoggerAdapter(_LOG, {"run_id": run_id, "attempt": attempt, "job_key": job_key})


def _only(key: str, found: Mapping[str, Parent]) -> Parent:
    if key not in found:
        raise LookupError(f"the run has no parent {key!r} in its workflow; ctx.parents() lists all")
    return found[key]


def _to_json(name: str, value: object) -> bytes | None:
    """Return a value as JSON text within its limit; None stays None."""
    if value is None:
        return None
    try:
        text = strict_json(value)
    except (PydanticSerializationError, ValueError, RecursionError) as error:
        message = f"{name} cannot be serialized to JSON ({error}); use numbers, text, lists, dicts or pydantic models"
        raise ValueError(message) from error
    limit, remedy = _TOO_LARGE[name]
    if len(text) > limit:
        raise ValueError(f"{name} has {len(text)} bytes as JSON, more than {limit}; {remedy}")
    return text
