"""`ctx.batch`: the batch of a run, as its handler sees it."""

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context

from pydantic_core import PydanticSerializationError

from tidewheel.errors import refuse
from tidewheel.executor.handler_channel import HandlerChannel, refuse_loop
from tidewheel.jobs.strict_json import MAX_DOCUMENT_BYTES, strict_json

ADDERS = 4
"""Calls of one executor that add at the same time; further ones wait."""

# Not the loop's own threads, for which other calls of handlers wait: each of these may wait seconds for a locked batch.
_THREADS = ThreadPoolExecutor(ADDERS, thread_name_prefix="batch-add")


class RunBatch:
    """The batch that a run belongs to."""

    __slots__ = ("_channel",)

    def __init__(self, channel: HandlerChannel) -> None:
        self._channel = channel

    def add(self, runs: Sequence[Mapping[str, object]]) -> bool:
        """Add runs to the batch; return False if it has all of them already, as in a later attempt.

        The runs are there when this returns, whatever becomes of the attempt. A later attempt that adds the same refs
        adds nothing. It blocks, so a coroutine awaits `add_async` instead.

        Args:
            runs: Each with `ref`, `key`, and `payload`, `delay` or `after` if needed; at most 10,000. `after` may also
                name runs that the batch has, such as this one.

        Raises:
            InvalidInput: The run belongs to no batch, the batch is being cancelled, or a run does not fit. No run was
                added.
            Unavailable: The database does not answer. The runs may be there: add the same refs again.
            RuntimeError: It was called on the event loop, which it would block, or after `complete_in`.
        """
        refuse_loop("batch.add", "…")
        return self._channel.add_runs(_document(runs))

    async def add_async(self, runs: Sequence[Mapping[str, object]]) -> bool:
        """As `add`, without blocking the loop."""
        context, document = copy_context(), _document(runs)
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(_THREADS, lambda: context.run(self._channel.add_runs, document))


def _document(runs: Sequence[Mapping[str, object]]) -> bytes:
    """Return the runs as the JSON text of a request."""
    try:
        text = strict_json({"runs": runs})
    except (PydanticSerializationError, ValueError, RecursionError) as error:
        refuse("runs", f"they cannot be serialized to JSON ({error})", "use plain values or pydantic models")
    if len(text) > MAX_DOCUMENT_BYTES:
        problem = f"they have {len(text)} bytes as JSON, more than {MAX_DOCUMENT_BYTES}"
        refuse("runs", problem, "add them by several calls")
    return text
