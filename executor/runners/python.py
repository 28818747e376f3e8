"""Runs users' Python handlers: coroutines on the loop, plain functions on threads, either in a process of its own.

That is where a handler is told to run so, or where the executor of its run has been lost twice.
"""

import asyncio
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from tidewheel.executor.attempt import Attempt
from tidewheel.executor.calling import call, call_async, logger_of, read_payload, unfit
from tidewheel.executor.capture import current
from tidewheel.executor.complete_in import Completer
from tidewheel.executor.context import Context
from tidewheel.executor.handlers import Handler
from tidewheel.executor.outcome import Outcome
from tidewheel.executor.runners.isolated import Isolated
from tidewheel.executor.runners.worker_process import Setup
from tidewheel.settings import ExecutorSettings

_LOSSES = 2  # of its executor, after which a run is not trusted with another's neighbours


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
        if handler.own_process or attempt.started.lost >= _LOSSES:
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
            if attempt.restart_clock:
                loop.call_soon_threadsafe(attempt.restart_clock)
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
    """The context of an attempt."""
    definition, request = attempt.definition, attempt.request
    return Context(
        run_id=attempt.run_id,
        attempt=attempt.started.attempt,
        job_key=definition.job_key,
        tenant=definition.tenant,
        scheduled_at=request.scheduled_at,
        deadline_seconds=attempt.left_seconds,
        labels={**definition.labels, **(request.labels or {})},
        idempotency_key=request.run_id,
        traceparent=request.traceparent,
        logger=logger_of(attempt.run_id, attempt.started.attempt, definition.job_key),
        _cancelled=attempt.cancelled,
        _channel=attempt,
        _checkpoint=request.checkpoint,
    )
