"""Runs users' Python handlers: coroutines on the loop, plain functions on threads, either in a process of its own.

That is where a handler is told to run so, or where the executor of its run has been lost twice.
"""

import asyncio
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from tidewheel.clock import monotonic_seconds
from tidewheel.executor.attempt import Attempt
from tidewheel.executor.complete_in import Completer
from tidewheel.executor.context import Context
from tidewheel.executor.handlers import Handler
from tidewheel.executor.invoke import call, call_async, logger_of, read_payload, unfit
from tidewheel.executor.isolation.pool import Isolated
from tidewheel.executor.isolation.process import Setup
from tidewheel.executor.outcome import Outcome
from tidewheel.executor.output_capture import current
from tidewheel.schemas.primitives import slot
from tidewheel.settings import ExecutorSettings

_set_run_id, _set_attempt = slot(Context, "run_id"), slot(Context, "attempt")
_set_job_key, _set_tenant = slot(Context, "job_key"), slot(Context, "tenant")
_set_scheduled_at, _set_deadline_seconds = slot(Context, "scheduled_at"), slot(Context, "deadline_seconds")
_set_labels, _set_idempotency_key = slot(Context, "labels"), slot(Context, "idempotency_key")
_set_traceparent, _set_logger = slot(Context, "traceparent"), slot(Context, "logger")
_set_cancelled, _set_channel = slot(Context, "_cancelled"), slot(Context, "_channel")
_set_checkpoint, _set_began = slot(Context, "_checkpoint"), slot(Context, "_began")

LOSSES = 2  # of its executor, after which a run is not trusted with another's neighbours


class PythonRunner:
    """Runs handlers of this process.

    Args:
        handlers: By name.
        threads: How many plain functions at once.
        isolated: The worker processes; where none are given there is one, started when it is needed.
    """

    def __init__(self, handlers: Mapping[str, Handler], *, threads: int, isolated: Isolated | None = None) -> None:
        self._handlers = handlers
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="handler")
        self._isolated = isolated or Isolated(Setup(modules_of(handlers)), processes=1)
        if any(handler.own_process for handler in handlers.values()):
            self._isolated.warm()

    async def run(self, attempt: Attempt) -> Outcome:
        """Call the handler and record what it returned or raised."""
        handler = self._handlers[attempt.definition.target.handler or ""]
        if handler.own_process or attempt.started.lost_attempts >= LOSSES:
            return await self._isolated.run(attempt)
        try:
            payload = read_payload(attempt.payload, attempt.payload_content_type, handler)
        except ValueError as error:
            return unfit(error)
        if not handler.is_async:
            return await self._on_thread(attempt, handler, payload)
        writer = current.set(attempt)
        try:
            return await call_async(handler, make_context(attempt), payload)
        finally:
            current.reset(writer)

    async def _on_thread(self, attempt: Attempt, handler: Handler, payload: object) -> Outcome:
        """Run on a thread; the slot is free only when the function has really returned, however long ago we gave up."""
        loop = asyncio.get_running_loop()

        def work() -> Outcome:
            if (restart := attempt.restart_clock) is not None:
                loop.call_soon_threadsafe(restart)
            writer = current.set(attempt)
            try:
                return call(handler, make_context(attempt), payload)
            finally:
                current.reset(writer)

        attempt.on_thread = True
        if attempt.stop_clock:
            attempt.stop_clock()
        future = self._threads.submit(work)
        future.add_done_callback(lambda _: attempt.release())
        attempt.withdraw = future.cancel
        try:
            return await asyncio.shield(asyncio.wrap_future(future))
        except asyncio.CancelledError:
            # A thread cannot be stopped from outside: it is told, and fenced off.
            attempt.cancelled.set()
            future.cancel()
            raise

    async def close(self) -> None:
        """Let idle threads go; busy ones end with the process. Worker processes are killed."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        await asyncio.to_thread(self._isolated.close)


def python_runner(settings: ExecutorSettings, handlers: Mapping[str, Handler], completer: Completer) -> PythonRunner:
    """The runner of an executor."""
    setup = Setup(settings.handlers or modules_of(handlers), settings.worker_memory_bytes, completer)
    isolated = Isolated(setup, processes=settings.worker_processes or max(os.cpu_count() or 2, 2))
    return PythonRunner(handlers, threads=settings.threads, isolated=isolated)


def modules_of(handlers: Mapping[str, Handler]) -> str:
    """The modules that register these handlers, separated by commas."""
    return ",".join(sorted({handler.function.__module__ for handler in handlers.values()}))


def make_context(attempt: Attempt) -> Context:
    """The context of an attempt; its slots are set one by one, in half the time of a frozen dataclass's initialiser."""
    definition, request, started = attempt.definition, attempt.request, attempt.started
    context = object.__new__(Context)
    _set_run_id(context, started.run_id)
    _set_attempt(context, started.attempt)
    _set_job_key(context, definition.job_key)
    _set_tenant(context, definition.tenant)
    _set_scheduled_at(context, request.scheduled_at)
    _set_deadline_seconds(context, attempt.left_seconds)
    _set_labels(context, {**definition.labels, **(request.labels or {})})
    _set_idempotency_key(context, request.run_id)
    _set_traceparent(context, request.traceparent)
    _set_logger(context, logger_of(request.run_id, started.attempt, definition.job_key))
    _set_cancelled(context, attempt.cancelled)
    _set_channel(context, attempt)
    _set_checkpoint(context, request.checkpoint)
    _set_began(context, monotonic_seconds())
    return context
