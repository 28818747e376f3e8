"""The handler of all jobs of the trial: long enough for a kill to meet running attempts."""

import asyncio

import tidewheel

_SECONDS = 0.3


@tidewheel.handler("work")
async def work(ctx: tidewheel.Context, payload: object) -> None:
    """Wait, and succeed."""
    del ctx, payload
    await asyncio.sleep(_SECONDS)
