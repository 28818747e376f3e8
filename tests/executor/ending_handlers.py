"""Handlers that end as the payload names: on the loop, on a thread, in a process."""

import asyncio
import os
import threading
from typing import Any

import psycopg

import tidewheel

_TICK_SECONDS = 0.01
_TOO_LONG_SECONDS = 30.0


def _end(context: tidewheel.Context, act: str, url: str) -> object:
    match act:
        case "raise":
            message = "no such order"
            raise ValueError(message)
        case "permanent":
            message = "no such address"
            raise tidewheel.Permanent(message)
        case "snooze":
            raise tidewheel.Snooze(1)
        case "cancel":
            raise tidewheel.Cancel
        case "die":
            os._exit(3)
        case "return":
            pass
        case _:
            _complete(context, act, url)
    return "returned"


def _complete(context: tidewheel.Context, act: str, url: str) -> None:
    """Complete the run in a transaction that is committed, rolled back or forgotten."""
    with psycopg.connect(url) as own:
        context.complete_in(own, "completed")
        if act in {"complete-forget", "complete-roll-back"}:
            own.rollback()
    if act == "complete-raise":
        message = "after the commit"
        raise ValueError(message)


def _after_a_stop(act: str) -> object:
    """End as the word says, for an attempt that was requested to stop."""
    if act == "hold-raise":
        message = "stopped"
        raise ValueError(message)
    if act == "hold":
        raise tidewheel.Cancel
    return "returned"


def _sync(context: tidewheel.Context, payload: dict[str, Any]) -> object:
    act = payload["do"][context.attempt - 1]
    if act.startswith("hold"):
        context.heartbeat("holds")
        while not context.cancelled:
            threading.Event().wait(_TICK_SECONDS)
        return _after_a_stop(act)
    return _end(context, act, payload["url"])


@tidewheel.handler("ends.thread")
def on_thread(context: tidewheel.Context, payload: dict[str, Any]) -> object:
    return _sync(context, payload)


@tidewheel.handler("ends.process", isolation="process")
def in_process(context: tidewheel.Context, payload: dict[str, Any]) -> object:
    return _sync(context, payload)


@tidewheel.handler("ends.loop")
async def on_loop(context: tidewheel.Context, payload: dict[str, Any]) -> object:
    """On the loop; a completion may overrun its time there."""
    act = payload["do"][context.attempt - 1]
    if act.startswith("hold"):
        context.heartbeat("holds")
        try:
            await asyncio.sleep(_TOO_LONG_SECONDS)
        except asyncio.CancelledError:
            return _after_a_stop(act)
    if act.startswith("complete"):
        async with await psycopg.AsyncConnection.connect(payload["url"]) as own:
            await context.complete_in_async(own, "completed")
            if act == "complete-forget":
                await own.rollback()
        if act == "complete-raise":
            message = "after the commit"
            raise ValueError(message)
        if act == "complete-overrun":
            await asyncio.sleep(_TOO_LONG_SECONDS)
        return "returned"
    return _end(context, act, payload["url"])
