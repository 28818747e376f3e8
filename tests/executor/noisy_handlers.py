"""Handlers that write output, and one that blocks the event loop."""

import asyncio
import logging
import sys
import threading
import time

import tidewheel
from tests.executor.handlers import GATES

_TICK_SECONDS = 0.005
_LOG = logging.getLogger("shop.stock")


def _say(context: tidewheel.Context, name: str) -> None:
    print("out", name)  # noqa: T201
    print("err", name, file=sys.stderr)  # noqa: T201
    sys.stdout.buffer.write(f"bytes {name}\n".encode())
    _LOG.warning("log %s", name)
    context.logger.warning("ctx %s", name)


@tidewheel.handler("noisy.say")
async def say(context: tidewheel.Context, payload: str) -> str:
    """Write through every way there is, before and after others have had their turn."""
    _say(context, payload)
    await asyncio.sleep(_TICK_SECONDS)
    await asyncio.to_thread(print, "thread", payload)
    await asyncio.create_task(_later(payload))
    return payload


async def _later(payload: str) -> None:
    await asyncio.sleep(_TICK_SECONDS)
    print("task", payload)  # noqa: T201


@tidewheel.handler("noisy.say-on-thread")
def say_on_thread(context: tidewheel.Context, payload: str) -> str:
    _say(context, payload)
    threading.Event().wait(_TICK_SECONDS)
    print("late", payload, end="")  # noqa: T201
    return payload


@tidewheel.handler("noisy.log-wrong")
async def log_wrong(context: tidewheel.Context, payload: object) -> None:
    del context, payload
    _LOG.warning("%d", "no number")
    print("still here")  # noqa: T201


@tidewheel.handler("noisy.much")
def much(context: tidewheel.Context, payload: int) -> None:
    del context
    for number in range(payload):
        print(f"{number:99}")  # noqa: T201


@tidewheel.handler("noisy.wait")
def wait(context: tidewheel.Context, payload: str) -> None:
    print("before")  # noqa: T201
    GATES[payload].entered.append(str(context.run_id))
    GATES[payload].opened.wait(60)
    print("after")  # noqa: T201


@tidewheel.handler("noisy.say-and-wait")
def say_and_wait(context: tidewheel.Context, payload: list[str]) -> None:
    del context
    text, gate = payload
    print(text)  # noqa: T201
    GATES[gate].opened.wait(60)
    print("after")  # noqa: T201


@tidewheel.handler("noisy.silent")
async def silent(context: tidewheel.Context, payload: object) -> object:
    del context
    return payload


@tidewheel.handler("noisy.block")
async def block(context: tidewheel.Context, payload: str) -> int:
    """Block the event loop until another thread opens the gate."""
    gate = GATES[payload]
    gate.entered.append(str(context.run_id))
    ends = time.monotonic() + 60
    while not gate.opened.is_set() and time.monotonic() < ends:
        pass
    return context.attempt
