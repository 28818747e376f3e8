"""Handlers that set the next interval of their job: on the loop, on a thread and in a process."""

import pytest

import tidewheel
from tidewheel.executor.handlers import Handler, registered


def _next(context: tidewheel.Context, payload: float) -> None:
    with pytest.raises(ValueError, match="write 1s to 400d"):
        context.next_in("1ms")
    context.next_in("99s")
    context.next_in(payload)


tidewheel.handler("next.thread")(_next)


@tidewheel.handler("next.loop")
async def on_loop(context: tidewheel.Context, payload: float) -> None:
    """Set it, and fail for good."""
    _next(context, payload)
    raise tidewheel.Permanent("nothing to do")


@tidewheel.handler("next.process", isolation="process")
def in_process(context: tidewheel.Context, payload: float) -> None:
    """Set it in a worker process."""
    _next(context, payload)


@tidewheel.handler("next.complete")
def complete(context: tidewheel.Context, payload: object) -> None:
    """Set it beside `complete_in`, which does not save it."""
    del payload
    context.next_in("30s")
    context.complete_in(None)  # type: ignore[arg-type]  # it is refused before the connection is used


def handlers() -> dict[str, Handler]:
    return {name: found for name, found in registered().items() if name.startswith("next.")}
