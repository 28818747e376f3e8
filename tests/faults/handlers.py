"""Handlers of the fault tests: each effect is one line in a file, outside Tidewheel.

A line is written by one `write` to a file opened for appending, so that lines of several processes do not mix and a
process that is killed leaves a whole line or none. Executors of each release that the test of upgrades runs import this
module too, so it uses no name that the oldest of them lacks.
"""

import asyncio
import json
import os
import re
import signal
import threading
import time
from pathlib import Path

import tidewheel
from tests.fixtures.process import EFFECTS_VARIABLE
from tidewheel.executor.context import Context

_LOOK_SECONDS = 0.02  # between two looks at a gate


@tidewheel.handler("note")
async def note(context: Context, payload: object) -> object:
    """An effect, at once; returns what it was given."""
    record(context)
    return payload


@tidewheel.handler("shorten")
async def shorten(context: Context, payload: str) -> str:
    """An effect, at once; returns what a result may hold of its payload."""
    record(context)
    return payload[:60_000]


@tidewheel.handler("note-sync")
def note_sync(context: Context, payload: object) -> None:
    """An effect, at once, on a thread."""
    record(context)


@tidewheel.handler("note-process", isolation="process")
def note_process(context: Context, payload: object) -> None:
    """An effect, at once, in a worker process."""
    record(context)


@tidewheel.handler("shaky")
async def shaky(context: Context, payload: object) -> object:
    """An effect; the first attempt fails after it, a later one returns what it was given."""
    record(context)
    if context.attempt == 1:
        message = "as the first attempt always does"
        raise ValueError(message)
    return payload


@tidewheel.handler("lost-cause")
async def lost_cause(context: Context, payload: object) -> None:
    """An effect, and a failure every time."""
    record(context)
    message = "as it always does"
    raise ValueError(message)


@tidewheel.handler("gated")
async def gated(context: Context, payload: object) -> int:
    """An effect, then waiting to be let go."""
    record(context)
    while not _let_go(context, payload):
        await asyncio.sleep(_LOOK_SECONDS)
    return context.attempt


@tidewheel.handler("gated-sync")
def gated_sync(context: Context, payload: object) -> int:
    """The same on a thread."""
    record(context)
    never = threading.Event()
    while not _let_go(context, payload) and not context.cancelled:
        never.wait(_LOOK_SECONDS)
    return context.attempt


@tidewheel.handler("stubborn-process", isolation="process")
def stubborn_process(context: Context, payload: object) -> int:
    """The same in a worker process, ignoring every stop request."""
    record(context)
    never = threading.Event()
    while not _let_go(context, payload):
        never.wait(_LOOK_SECONDS)
    return context.attempt


@tidewheel.handler("blocking")
async def blocking(context: Context, payload: object) -> None:
    """An effect, then standing in the way of the whole event loop until it is let go."""
    record(context)
    never = threading.Event()
    while not _let_go(context, payload):
        never.wait(_LOOK_SECONDS)


@tidewheel.handler("steps")
async def steps(context: Context, payload: object) -> list[int]:
    """Three steps with an effect each; the first attempt's process is killed right after the second."""
    results: list[int] = []
    for number in range(3):
        results.append(await context.step_async(f"step-{number}", lambda number=number: _step(context, number)))
        _die_after_the_second(context, number)
    return results


@tidewheel.handler("steps-sync")
def steps_sync(context: Context, payload: object) -> list[int]:
    """The same on a thread."""
    results: list[int] = []
    for number in range(3):
        results.append(context.step(f"step-{number}", lambda number=number: _step(context, number)))
        _die_after_the_second(context, number)
    return results


@tidewheel.handler("steps-process", isolation="process")
def steps_process(context: Context, payload: object) -> list[int]:
    """The same in a worker process."""
    return steps_sync(context, payload)


def _step(context: Context, number: int) -> int:
    record(context, step=number)
    return number * 10 + context.attempt


def _die_after_the_second(context: Context, number: int) -> None:
    if context.attempt == 1 and number == 1:
        os.kill(os.getpid(), signal.SIGKILL)


def _let_go(context: Context, payload: object) -> bool:
    """Return True if the payload's file exists, or the one for this attempt alone."""
    return Path(str(payload)).exists() or Path(f"{payload}-{context.attempt}").exists()


def record(context: Context, **more: object) -> None:
    """Record an effect as one line."""
    line = {
        **more,
        "run_id": str(context.run_id),
        "attempt": context.attempt,
        "job_key": context.job_key,
        "scheduled_at": context.scheduled_at.isoformat(),
        "at": time.clock_gettime(time.CLOCK_REALTIME),  # the machine's, though this process's clock be wrong
        "pid": os.getpid(),
    }
    written = os.open(os.environ[EFFECTS_VARIABLE], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(written, json.dumps(line).encode() + b"\n")
    finally:
        os.close(written)


@tidewheel.handler("locking")
def locking(context: Context, payload: int) -> None:
    """Hold the interpreter's lock by a slow regular expression; each letter more doubles its time."""
    del context
    re.match("(a+)+$", "a" * payload + "b")
