"""A handler of the fault tests that gets several runs in one call."""

import os
import signal
from collections.abc import Sequence

import tidewheel
from tests.faults.handlers import record


@tidewheel.handler("chunk", chunk=tidewheel.Chunk(most=3, wait="5s"))
async def chunk(items: Sequence[tidewheel.Item[object]]) -> None:
    """An effect a run; a call with three of them kills its process."""
    for item in items:
        record(item.context, together=len(items))
    if len(items) > 1:
        os.kill(os.getpid(), signal.SIGKILL)
    for item in items:
        item.succeed(item.attempt)
