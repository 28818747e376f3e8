"""Handlers that take no time, or a time of their own."""

import asyncio

from tidewheel import Context, handler


@handler("noop")
async def noop(context: Context, payload: object) -> None:
    """Nothing."""


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
