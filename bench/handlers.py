"""Handlers that take no time, or a time of their own; those that are measured note when they began."""

import asyncio

from tidewheel import Context, handler
from tidewheel.bench.starts import Notes

_notes = Notes()


@handler("noop")
async def noop(context: Context, payload: object) -> None:
    """Nothing."""
    _notes.count()


@handler("noted")
async def noted(context: Context, payload: object) -> None:
    """Nothing, but a note of which run began, and when it was due."""
    _notes.note(context.scheduled_at.timestamp(), context.run_id)


@handler("requested")
async def requested(context: Context, payload: float) -> None:
    """Record the start of the run and the instant of its request, the payload."""
    _notes.note(payload, context.run_id)


@handler("sleep")
async def sleep(context: Context, payload: float) -> None:
    """So many seconds."""
    await asyncio.sleep(payload)


@handler("tenth")
async def tenth(context: Context, payload: object) -> None:
    """A tenth of a second."""
    await asyncio.sleep(0.1)


@handler("minute")
async def minute(context: Context, payload: object) -> None:
    """A minute."""
    await asyncio.sleep(60)
