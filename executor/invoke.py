"""Calling users' functions, what they are given, and what becomes of what they return or raise.

The same on the loop, on threads and in worker processes.
"""

import json
import logging
from collections.abc import Awaitable
from typing import cast

from pydantic_core import from_json

from tidewheel.executor.context import Context
from tidewheel.executor.handlers import Handler
from tidewheel.executor.outcome import Outcome, failed, from_exception, written

_LOG = logging.getLogger("tidewheel.handler")


def call(handler: Handler, context: Context, payload: object) -> Outcome:
    """Call a plain function."""
    try:
        return written(handler.function(context, payload))
    except Exception as error:  # noqa: BLE001 - whatever a handler raises is its attempt's outcome
        return from_exception(error)
    except (SystemExit, KeyboardInterrupt) as error:
        return _would_not_end(error)


async def call_async(handler: Handler, context: Context, payload: object) -> Outcome:
    """Call a coroutine function; what cancels it is let pass."""
    try:
        returned = await cast("Awaitable[object]", handler.function(context, payload))
    except Exception as error:  # noqa: BLE001 - whatever a handler raises is its attempt's outcome
        return from_exception(error)
    except (SystemExit, KeyboardInterrupt) as error:
        return _would_not_end(error)
    return written(returned)


def read_payload(payload: bytes, content_type: str, handler: Handler) -> object:
    """The payload as the handler wants it: its model, a JSON value, or bytes.

    Raises:
        ValueError: It does not fit the model (pydantic's error is a ValueError too).
    """
    if content_type != "application/json":
        return payload
    text = payload or b"null"  # empty JSON is how a job without a payload says so
    if handler.payload is not None:
        return handler.payload.validate_json(text)
    try:
        return from_json(text)
    except ValueError:
        return json.loads(text)  # reads a few texts that the quick one refuses: lone surrogates, what lies very deep


def unfit(error: ValueError) -> Outcome:
    """The end of an attempt whose payload does not fit: the same bytes fail again on every attempt."""
    return failed("InvalidPayload", str(error), permanent=True)


def logger_of(run_id: str, attempt: int, job_key: str) -> "logging.LoggerAdapter[logging.Logger]":
    """A logger that says whose lines they are."""
    return logging.LoggerAdapter(_LOG, {"run_id": run_id, "attempt": attempt, "job_key": job_key})


def _would_not_end(error: BaseException) -> Outcome:
    return failed(type(error).__name__, f"the handler tried to end the process: {error}")
