"""Handlers that take no time, or a time of their own; those that are measured note when they began."""

import asyncio
import threading
import time
from collections.abc import Sequence

from tidewheel import Chunk, Context, Item, handler
from tools.bench.starts import Notes

AWAITED_SECONDS = 0.01
BLOCKED_SECONDS = 0.001
RESULT = "r" * 1022  # as JSON 1,024 bytes
LINE = "o" * 127
LINES = 8  # 1,024 bytes with their ends

_notes = Notes()
_counting = threading.Lock()  # `Notes` is for one thread


@handler("noop")
async def noop(context: Context, payload: object) -> None:
    """Nothing."""
    _notes.note()


@handler("chunked", chunk=Chunk(most=500))
async def chunked(items: Sequence[Item[object]]) -> None:
    """Nothing, for many runs in one call."""
    for item in items:
        _notes.note()
        item.succeed()


@handler("noted")
async def noted(context: Context, payload: object) -> None:
    """Nothing, but a note of which run began, and when it was due."""
    _notes.note(context.scheduled_at.timestamp(), context.run_id)


@handler("requested")
async def requested(context: Context, payload: float) -> None:
    """Record the start of the run and the instant of its request, the payload."""
    _notes.note(payload, context.run_id)


@handler("awaits")
async def awaits(context: Context, payload: object) -> None:
    """Await ten milliseconds."""
    _notes.note()
    await asyncio.sleep(AWAITED_SECONDS)


@handler("blocks")
def blocks(context: Context, payload: object) -> None:
    """Block a thread for a millisecond, as a call into the operating system does."""
    with _counting:
        _notes.note()
    time.sleep(BLOCKED_SECONDS)  # noqa: TID251 - the work


@handler("isolated", isolation="process")
async def isolated(context: Context, payload: object) -> None:
    """Nothing, in a worker process."""
    _notes.note()


@handler("fails_first")
async def fails_first(context: Context, payload: object) -> None:
    """Fail at each odd attempt, so that every second one succeeds."""
    _notes.note()
    if context.attempt % 2:
        raise ConnectionError


@handler("writes")
async def writes(context: Context, payload: object) -> str:
    """Return 1 KB and print 1 KB."""
    _notes.note()
    for _ in range(LINES):
        print(LINE)
    return RESULT
