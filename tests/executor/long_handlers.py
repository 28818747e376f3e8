"""Handlers that take their time, and tell of it."""

import asyncio
import threading

import tidewheel
from tests.executor.handlers import GATES

_TICK_SECONDS = 0.02


@tidewheel.handler("long.beat")
async def beat(context: tidewheel.Context, payload: str) -> int:
    beats, gate = 0, GATES[payload]
    gate.entered.append(str(context.run_id))
    while not gate.opened.is_set():
        beats += 1
        context.heartbeat({"beats": beats})
        await asyncio.sleep(_TICK_SECONDS)
    return beats


@tidewheel.handler("long.beat-on-thread")
def beat_on_thread(context: tidewheel.Context, payload: str) -> int:
    beats, gate = 0, GATES[payload]
    gate.entered.append(str(context.run_id))
    while not gate.opened.wait(_TICK_SECONDS):
        beats += 1
        context.heartbeat({"beats": beats})
    return beats


@tidewheel.handler("long.fall-silent")
async def fall_silent(context: tidewheel.Context, payload: str) -> object:
    """On the first attempt beat once with a checkpoint; on later ones return the saved checkpoint."""
    if context.attempt > 1:
        return context.checkpoint
    context.heartbeat("three of ten", {"done": 3})
    GATES[payload].entered.append(str(context.run_id))
    await asyncio.sleep(60)
    return None


@tidewheel.handler("long.fall-silent-on-thread")
def fall_silent_on_thread(context: tidewheel.Context, payload: str) -> object:
    """The same on a thread, which sees that it is given up."""
    if context.attempt > 1:
        return context.checkpoint
    context.heartbeat("three of ten", {"done": 3})
    GATES[payload].entered.append(str(context.run_id))
    never = threading.Event()
    while not context.cancelled:
        never.wait(_TICK_SECONDS)
    GATES[payload].stopped.append(str(context.run_id))
    return None


@tidewheel.handler("long.refuse")
async def refuse(context: tidewheel.Context, payload: dict[str, str]) -> str:
    gate = GATES[payload["gate"]]
    gate.entered.append(str(context.run_id))
    while not gate.opened.is_set():
        try:
            await asyncio.sleep(_TICK_SECONDS)
        except asyncio.CancelledError:
            gate.stopped.append(str(context.run_id))
            if payload["does"] == "fail":
                message = "interrupted"
                raise ValueError(message) from None
            if payload["does"] == "return":
                return "just done"
    return "at last"


@tidewheel.handler("long.count-on")
async def count_on(context: tidewheel.Context, payload: int) -> int:
    """Count one further at each attempt, and fail at once, until it has come to what the payload says."""
    count = int(str(context.checkpoint or 0)) + 1
    context.heartbeat(checkpoint=count)
    if count < payload:
        message = f"only {count} so far"
        raise ValueError(message)
    return count


@tidewheel.handler("long.previous")
async def previous(context: tidewheel.Context, payload: int) -> object:
    before = await context.previous_async()
    return [before.result, payload]


@tidewheel.handler("long.previous-on-thread")
def previous_on_thread(context: tidewheel.Context, payload: int) -> object:
    return [context.previous().result, payload]


@tidewheel.handler("long.deadline")
async def deadline(context: tidewheel.Context, payload: object) -> float:
    del payload
    return context.deadline_seconds
