"""Handlers of the tests of `tidewheel.testing`."""

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
