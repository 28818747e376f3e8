"""Handlers of the test of traces: each makes a span of its own and logs a line."""

import logging
from collections.abc import Sequence

from opentelemetry import trace

import tidewheel
from tidewheel.executor.context import Context

_LOG = logging.getLogger(__name__)


@tidewheel.handler("traced")
async def traced(context: Context, payload: object) -> str | None:
    """A coroutine whose first attempt fails."""
    _work("a coroutine")
    if context.attempt == 1:
        message = "as the first attempt always does"
        raise ValueError(message)
    return context.traceparent


@tidewheel.handler("traced-sync")
def traced_sync(context: Context, payload: object) -> None:
    """A function on a thread."""
    _work("a thread")


@tidewheel.handler("traced-process", isolation="process")
def traced_process(context: Context, payload: object) -> None:
    """A function in a worker process."""
    _work("a process")


@tidewheel.handler("traced-chunk", chunk=tidewheel.Chunk(most=2, wait=0))
async def traced_chunk(items: Sequence[tidewheel.Item[object]]) -> None:
    """A coroutine that takes several runs."""
    _work("a chunk")
    for item in items:
        item.succeed()


@tidewheel.handler("traced-pair", chunk=tidewheel.Chunk(most=2, wait=10))
async def traced_pair(items: Sequence[tidewheel.Item[object]]) -> None:
    """A coroutine that waits for two runs."""
    _work("a pair")
    for item in items:
        item.succeed()


def _work(where: str) -> None:
    with trace.get_tracer("handlers").start_as_current_span(f"work in {where}"):
        _LOG.warning("worked in %s", where)
