"""Handlers of the tests of `tidewheel.testing`."""

from collections.abc import Sequence

import tidewheel


@tidewheel.handler("testing.echo")
async def echo(context: tidewheel.Context, payload: object) -> object:
    """Return the payload."""
    del context
    return payload


@tidewheel.handler("testing.fail-until")
def fail_until(context: tidewheel.Context, payload: int) -> int:
    """Fail on every attempt before the one that the payload names."""
    if context.attempt < payload:
        message = f"attempt {context.attempt} fails"
        raise ValueError(message)
    return context.attempt


@tidewheel.handler("testing.together", chunk=tidewheel.Chunk(most=3))
async def together(items: Sequence[tidewheel.Item[object]]) -> None:
    """Succeed with the number of runs in the call, and fail the first run of two."""
    for item in items:
        if len(items) == 2 and item is items[0]:
            item.fail(ValueError("the first of two"))
        else:
            item.succeed(len(items))
