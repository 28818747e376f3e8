"""Handlers that do what tests want of them."""

import asyncio
import threading
from dataclasses import dataclass, field
from types import ModuleType

from pydantic import BaseModel

import tidewheel
from tidewheel.executor.handlers import Handler, registered

_TICK_SECONDS = 0.005


@dataclass
class Gate:
    """A gate at which handlers of this process wait, and their notes."""

    opened: threading.Event = field(default_factory=threading.Event)
    entered: list[str] = field(default_factory=list[str])
    stopped: list[str] = field(default_factory=list[str])


GATES: dict[str, Gate] = {}


class Order(BaseModel):
    to: str
    copies: int = 1


@tidewheel.handler("acts.echo")
async def echo(context: tidewheel.Context, payload: object) -> object:
    del context
    return payload


@tidewheel.handler("acts.echo-on-thread")
def echo_on_thread(context: tidewheel.Context, payload: object) -> object:
    del context
    return payload


@tidewheel.handler("acts.order")
async def order(context: tidewheel.Context, payload: Order) -> int:
    del context
    return payload.copies


@tidewheel.handler("acts.fail-until")
async def fail_until(context: tidewheel.Context, payload: int) -> int:
    if context.attempt < payload:
        message = f"attempt {context.attempt} fails"
        raise ValueError(message)
    return context.attempt


@tidewheel.handler("acts.raise")
async def raise_it(context: tidewheel.Context, payload: str) -> int:
    if context.attempt > 1:
        return context.attempt
    signals: dict[str, BaseException] = {
        "retry-after": tidewheel.RetryAfter(0.3),
        "cancelled-error": asyncio.CancelledError(),
        "system-exit": SystemExit(3),
    }
    raise signals[payload]


@tidewheel.handler("acts.wait")
async def wait(context: tidewheel.Context, payload: str) -> str:
    gate = GATES[payload]
    gate.entered.append(str(context.run_id))
    try:
        while not gate.opened.is_set():
            await asyncio.sleep(_TICK_SECONDS)
    except asyncio.CancelledError:
        gate.stopped.append(str(context.run_id))
        raise
    return payload


@tidewheel.handler("acts.brief")
async def brief(context: tidewheel.Context, payload: object) -> object:
    del context
    await asyncio.sleep(0.05)
    return payload


@tidewheel.handler("acts.wait-on-thread")
def wait_on_thread(context: tidewheel.Context, payload: str) -> str:
    """Wait at a gate on a thread, until it opens or a stop is requested."""
    gate = GATES[payload]
    gate.entered.append(str(context.run_id))
    while not gate.opened.wait(_TICK_SECONDS):
        if context.cancelled:
            gate.stopped.append(str(context.run_id))
            raise tidewheel.Cancel
    return payload


@tidewheel.handler("acts.wait-deaf")
def wait_deaf(context: tidewheel.Context, payload: str) -> str:
    """Wait at a gate on a thread and ignore every stop request."""
    gate = GATES[payload]
    gate.entered.append(str(context.run_id))
    gate.opened.wait(60)
    return payload


def handlers(*modules: ModuleType) -> dict[str, Handler]:
    """Return the handlers of these modules; without any those of this one."""
    names = {module.__name__ for module in modules} or {__name__}
    return {name: found for name, found in registered().items() if found.function.__module__ in names}
