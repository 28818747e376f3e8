"""Isolated handlers and their failures; the worker processes import this module too."""

import asyncio
import ctypes
import os
import resource
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import tidewheel
from tidewheel.errors import Unavailable

_TICK_SECONDS = 0.01
_LEFT: list[asyncio.Task[None]] = []


@tidewheel.handler("alone.echo", isolation="process")
async def echo(context: tidewheel.Context, payload: object) -> object:
    del context
    return payload


@tidewheel.handler("alone.refuse", isolation="process")
def refuse(context: tidewheel.Context, payload: object) -> None:
    del context
    raise ValueError(payload)


@tidewheel.handler("alone.environment", isolation="process")
def environment(context: tidewheel.Context, payload: object) -> list[str]:
    del context, payload
    return [*os.environ.values(), Path(f"/proc/{os.getppid()}/environ").read_text()]


@tidewheel.handler("alone.where", isolation="process")
def where(context: tidewheel.Context, payload: object) -> dict[str, object]:
    return {
        "pid": os.getpid(),
        "group": os.getpgid(0),
        "session": os.getsid(0),
        "main_thread": threading.current_thread() is threading.main_thread(),
        "run_id": str(context.run_id),
        "attempt": context.attempt,
        "labels": context.labels,
        "scheduled_at": context.scheduled_at.isoformat(),
        "checkpoint": context.checkpoint,
        "payload": repr(payload),
    }


@tidewheel.handler("alone.limits", isolation="process")
def limits(context: tidewheel.Context, payload: object) -> list[int]:
    del context, payload
    return [resource.getrlimit(resource.RLIMIT_CORE)[0], resource.getrlimit(resource.RLIMIT_AS)[0]]


@tidewheel.handler("alone.die", isolation="process")
def die(context: tidewheel.Context, payload: str) -> None:
    del context
    if payload == "exit":
        os._exit(3)
    if payload == "sys-exit":
        sys.exit(3)
    if payload == "segfault":
        ctypes.string_at(0)
    if payload == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if payload == "close":
        os.closerange(3, 256)
        threading.Event().wait(60)
    if payload == "garbage":
        for pipe in range(3, 64):
            try:
                os.write(pipe, b"\xff" * 64)
            except OSError:
                continue
        threading.Event().wait(60)


@tidewheel.handler("alone.eat", isolation="process")
async def eat(context: tidewheel.Context, payload: object) -> int:
    del context, payload
    return len(bytearray(1 << 44))


@tidewheel.handler("alone.return", isolation="process")
def return_it(context: tidewheel.Context, payload: str) -> object:
    del context
    return {"object": object(), "huge": "x" * 70_000, "nothing": None}[payload]


@tidewheel.handler("alone.print", isolation="process")
def print_much(context: tidewheel.Context, payload: int) -> None:
    """Print so many bytes in lines of a hundred, and a last one through each way there is."""
    line = "x" * 99 + "\n"
    for _ in range(payload // len(line)):
        sys.stdout.write(line)
    sys.stderr.write("an error\n")
    context.logger.warning("a log line")
    subprocess.run(["/bin/echo", "a program"], check=True)
    print("the end")  # noqa: T201


@tidewheel.handler("alone.fork", isolation="process")
def fork(context: tidewheel.Context, payload: str) -> int:
    del context
    child = os.fork()
    if child == 0 and payload == "stay":
        threading.Event().wait(120)
        os._exit(0)
    return child


@tidewheel.handler("alone.hold", isolation="process")
def hold(context: tidewheel.Context, payload: dict[str, str]) -> str:
    """Write the process ids of itself and a child to the file, then wait; ignore signals if requested."""
    if payload.get("deaf"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = os.fork()
    if child == 0:
        threading.Event().wait(120)
        os._exit(0)
    scratch = Path(payload["file"] + ".new")
    scratch.write_text(f"{os.getpid()} {child}")
    scratch.rename(payload["file"])
    while not (context.cancelled and not payload.get("deaf")):
        threading.Event().wait(_TICK_SECONDS)
    raise tidewheel.Cancel


@tidewheel.handler("alone.await", isolation="process")
async def await_it(context: tidewheel.Context, payload: str) -> None:
    """Write to the file when it waits, and again when a stop is requested."""
    Path(payload).write_text(f"{os.getpid()}")
    try:
        await asyncio.sleep(60)
    except asyncio.CancelledError:
        Path(payload).write_text(f"stopped {context.cancelled}")
        raise


@tidewheel.handler("alone.beat", isolation="process")
def beat(context: tidewheel.Context, payload: object) -> object:
    """Tell how far it is; return what came before."""
    del payload
    context.heartbeat({"done": 1}, {"next": 2})
    found = context.previous()
    return [found.result, found.scheduled_at and found.scheduled_at.isoformat()]


@tidewheel.handler("alone.leave", isolation="process")
async def leave(context: tidewheel.Context, payload: object) -> None:
    """Return and leave two tasks: one keeps beating, one keeps requesting previous runs."""

    async def go_on() -> None:
        while True:
            context.heartbeat("left", payload)
            await asyncio.sleep(_TICK_SECONDS)

    async def ask_on() -> None:
        while True:
            with suppress(Unavailable):
                await context.previous_async()
            await asyncio.sleep(_TICK_SECONDS)

    _LEFT.extend([asyncio.create_task(go_on()), asyncio.create_task(ask_on())])
    await asyncio.sleep(_TICK_SECONDS)


@tidewheel.handler("alone.ask", isolation="process")
async def ask(context: tidewheel.Context, payload: object) -> object:
    """Take its time; return what came before."""
    del payload
    await asyncio.sleep(20 * _TICK_SECONDS)
    return (await context.previous_async()).result


@tidewheel.handler("alone.lost")
def lost(context: tidewheel.Context, payload: object) -> int:
    """Without isolation: in which process it runs."""
    del context, payload
    return os.getpid()
