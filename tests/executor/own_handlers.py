"""Handlers that complete their runs in transactions of their own, and then do what the payload names."""

import asyncio
from typing import Any

import psycopg

import tidewheel
from tests.executor.own_transactions import EFFECT
from tidewheel.executor.handlers import Handler, registered

_TOO_LONG_SECONDS = 30.0


def _work(context: tidewheel.Context, url: str, what: str) -> object:
    """An effect and the completion in one transaction; what comes then the payload says."""
    own = psycopg.connect(url)
    try:
        own.execute(EFFECT, [context.run_id, context.attempt])
        if what == "raise-before" and context.attempt == 1:
            message = "before the completion"
            raise ValueError(message)
        context.complete_in(own, {"attempt": context.attempt})
        if what == "forget-to-commit" and context.attempt == 1:
            return "as if all were well"
        own.commit()
        if what == "raise-after":
            message = "after the commit"
            raise ValueError(message)
        return "said too late"
    finally:
        own.close()


@tidewheel.handler("own.thread")
def on_thread(context: tidewheel.Context, payload: dict[str, Any]) -> object:
    """On a thread."""
    return _work(context, payload["url"], payload["do"])


@tidewheel.handler("own.process", isolation="process")
def in_process(context: tidewheel.Context, payload: dict[str, Any]) -> object:
    """In a process of its own."""
    return _work(context, payload["url"], payload["do"])


@tidewheel.handler("own.async")
async def on_loop(context: tidewheel.Context, payload: dict[str, Any]) -> object:
    """On the loop; after the commit it may go on for too long."""
    async with await psycopg.AsyncConnection.connect(payload["url"]) as own:
        await own.execute(EFFECT, [context.run_id, context.attempt])
        await context.complete_in_async(own, {"attempt": context.attempt})
        await own.commit()
        if payload["do"] == "overrun":
            await asyncio.sleep(_TOO_LONG_SECONDS)
    return "said too late"


def own_handlers() -> dict[str, Handler]:
    """All of them, by name."""
    return {name: found for name, found in registered().items() if name.startswith("own.")}
