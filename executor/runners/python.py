"""Run Python handlers: coroutines on the loop, functions on threads, isolated ones in processes.

A handler runs in a worker process if it is registered so, or if executors of its run have been lost twice.
"""

import asyncio
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial

from tidewheel.executor.attempt import LOSSES, Attempt
from tidewheel.executor.complete_in import CompletionConfig
from tidewheel.executor.context import Context
from tidewheel.executor.handlers import ChunkHandler, Handler, invalid_payload
from tidewheel.executor.isolation.pool import WorkerPool
from tidewheel.executor.isolation.process import Setup
from tidewheel.executor.outcome import NOT_STARTED, Outcome
from tidewheel.executor.output_capture import current
from tidewheel.executor.runners.chunk_calls import ChunkCall
from tidewheel.process import tracing
from tidewheel.settings.executor import ExecutorSettings


class PythonRunner:
    """Runs this process's handlers: plain ones on threads, isolated ones in a pool started on demand."""

    def __init__(self, handlers: Mapping[str, Handler], *, threads: int, pool: WorkerPool | None = None) -> None:
        self._handlers = handlers
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="handler")
        self._pool = pool or WorkerPool(Setup(modules_of(handlers)), processes=1)
        if any(handler.own_process for handler in handlers.values()):
            self._pool.warm()

    async def run(self, attempt: Attempt) -> Outcome:
        """Call the handler and return its outcome."""
        handler = self._handlers[attempt.definition.target.handler or ""]
        if handler.own_process or attempt.started.lost_attempts >= LOSSES:
            return await self._pool.run(attempt)
        try:
            payload = handler.read_payload(attempt.payload, attempt.payload_content_type)
        except ValueError as error:
            return invalid_payload(error)
        if not handler.is_async:
            return await self._on_thread(attempt, handler, payload)
        writer = current.set(attempt)
        try:
            return await handler.call_async(make_context(attempt), payload)
        finally:
            current.reset(writer)

    async def run_chunk(self, attempts: Sequence[Attempt]) -> None:
        """Call a chunk handler with these attempts, and report the end of each."""
        handler = self._handlers[attempts[0].definition.target.handler or ""]
        assert isinstance(handler, ChunkHandler)  # noqa: S101 - only its attempts are gathered
        await ChunkCall(handler, attempts).run(self._threads)

    async def _on_thread(self, attempt: Attempt, handler: Handler, payload: object) -> Outcome:
        """Run on a thread; the slot is free only when the function has returned, even long after a timeout."""
        loop = asyncio.get_running_loop()

        def work() -> Outcome:
            attempt.restart_clock(loop)
            writer = current.set(attempt)
            try:
                if attempt.lease.is_over():
                    return NOT_STARTED
                return handler.call(make_context(attempt), payload)
            finally:
                current.reset(writer)

        # With the span of the attempt, which is a context variable.
        future = self._threads.submit(work if tracing.spans is None else partial(copy_context().run, work))
        attempt.release_with(future)
        attempt.wait_for_worker(future.cancel)
        try:
            return await asyncio.shield(asyncio.wrap_future(future))
        except asyncio.CancelledError:
            # A thread cannot be stopped from outside: its flag is set, and its attempt is fenced off.
            attempt.cancelled.set()
            future.cancel()
            raise

    async def close(self) -> None:
        """Stop idle threads and kill worker processes; busy threads end with the process."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        await asyncio.to_thread(self._pool.close)


def python_runner(
    settings: ExecutorSettings, handlers: Mapping[str, Handler], completion: CompletionConfig
) -> PythonRunner:
    """Return the runner of an executor with these settings."""
    setup = Setup(settings.handlers or modules_of(handlers), settings.worker_memory_bytes, completion)
    pool = WorkerPool(setup, processes=settings.worker_processes or max(os.cpu_count() or 2, 2))
    return PythonRunner(handlers, threads=settings.threads, pool=pool)


def modules_of(handlers: Mapping[str, Handler]) -> str:
    """Return the modules that register these handlers, separated by commas."""
    return ",".join(sorted({handler.function.__module__ for handler in handlers.values()}))


def make_context(attempt: Attempt) -> Context:
    """Return the context of an attempt that starts now."""
    return Context.of_attempt(
        attempt.started,
        attempt.request,
        attempt.definition,
        traceparent=attempt.traceparent,
        deadline_seconds=attempt.left_seconds,
        cancelled=attempt.cancelled,
        channel=attempt,
    )
