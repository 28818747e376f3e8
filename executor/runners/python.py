"""Runs users' Python handlers: coroutines on the loop, plain functions on threads."""

import asyncio
import json
import logging
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import cast

from pydantic import ValidationError
from pydantic_core import PydanticSerializationError, to_json

from tidewheel.executor.attempt import Attempt
from tidewheel.executor.context import Context
from tidewheel.executor.handlers import Handler
from tidewheel.executor.outcome import Outcome, failed, from_exception, succeeded

_LOG = logging.getLogger("tidewheel.handler")


class PythonRunner:
    """Runs handlers of this process."""

    def __init__(self, handlers: Mapping[str, Handler], *, threads: int) -> None:
        self._handlers = handlers
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="handler")

    async def run(self, attempt: Attempt) -> Outcome:
        """Call the handler and record what it returned or raised."""
        handler = self._handlers[attempt.definition.target.handler or ""]
        try:
            payload = read_payload(attempt, handler)
        except (ValidationError, ValueError) as error:
            # The same bytes fail again on every attempt.
            return failed("InvalidPayload", str(error), permanent=True)
        context = make_context(attempt)
        if not handler.is_async:
            return await self._on_thread(attempt, handler, context, payload)
        try:
            returned = await cast("asyncio.Future[object]", handler.function(context, payload))
        except Exception as error:  # noqa: BLE001 - whatever a handler raises is its attempt's outcome
            return from_exception(error)
        except (SystemExit, KeyboardInterrupt) as error:
            return _would_not_end(error)
        return record(returned)

    async def _on_thread(self, attempt: Attempt, handler: Handler, context: Context, payload: object) -> Outcome:
        """Run on a thread; the slot is free only when the function has really returned, however long ago we gave up."""
        loop = asyncio.get_running_loop()

        def call() -> Outcome:
            if attempt.restart_clock:
                loop.call_soon_threadsafe(attempt.restart_clock)
            return _call(handler, context, payload)

        attempt.on_thread = True
        if attempt.stop_clock:
            attempt.stop_clock()
        future = self._threads.submit(call)
        future.add_done_callback(lambda _: attempt.release())
        try:
            return await asyncio.shield(asyncio.wrap_future(future))
        except asyncio.CancelledError:
            # A thread cannot be stopped from outside: it is told, and fenced off.
            attempt.cancelled.set()
            future.cancel()
            raise

    async def close(self) -> None:
        """Let idle threads go; busy ones end with the process."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def _call(handler: Handler, context: Context, payload: object) -> Outcome:
    try:
        return record(handler.function(context, payload))
    except Exception as error:  # noqa: BLE001 - whatever a handler raises is its attempt's outcome
        return from_exception(error)
    except (SystemExit, KeyboardInterrupt) as error:
        return _would_not_end(error)


def _would_not_end(error: BaseException) -> Outcome:
    return failed(type(error).__name__, f"the handler tried to end the process: {error}")


def make_context(attempt: Attempt) -> Context:
    """The context of an attempt."""
    definition, request = attempt.definition, attempt.request
    extra = {"run_id": request.run_id, "attempt": attempt.started.attempt, "job_key": definition.job_key}
    return Context(
        run_id=attempt.run_id,
        attempt=attempt.started.attempt,
        job_key=definition.job_key,
        tenant=definition.tenant,
        scheduled_at=request.scheduled_at,
        deadline_seconds=attempt.start_to_close_seconds,
        labels={**definition.labels, **(request.labels or {})},
        idempotency_key=request.run_id,
        traceparent=request.traceparent,
        logger=logging.LoggerAdapter(_LOG, extra),
        _cancelled=attempt.cancelled,
    )


def read_payload(attempt: Attempt, handler: Handler) -> object:
    """The payload as the handler wants it: its model, a JSON value, or bytes.

    Raises:
        ValueError: It does not fit the model (pydantic's error is a ValueError too).
    """
    if attempt.payload_content_type != "application/json":
        return attempt.payload
    written = attempt.payload or b"null"  # empty JSON is how a job without a payload says so
    if handler.payload is not None:
        return handler.payload.validate_json(written)
    return json.loads(written)


def record(returned: object) -> Outcome:
    """A success with what the handler returned, as JSON."""
    if returned is None:
        return succeeded(None)
    try:
        return succeeded(to_json(returned, inf_nan_mode="strings"))
    except (PydanticSerializationError, ValueError, RecursionError) as error:
        # Its effect is done: a retry would repeat it for the sake of a return value.
        return failed("ResultNotSerializable", str(error), permanent=True)
