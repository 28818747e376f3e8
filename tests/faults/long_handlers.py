"""Handlers that go on until they are let go, telling all the while how far they are."""

import asyncio
import threading
from pathlib import Path

import tidewheel
from tests.faults.handlers import note, note_sync
from tidewheel.executor.context import Context

_LAP_SECONDS = 0.05


@tidewheel.handler("marathon")
async def marathon(context: Context, payload: object) -> int:
    """One effect, then lap after lap; returns how many."""
    await note(context, payload)
    laps = 0
    while not Path(str(payload)).exists():
        laps += 1
        context.heartbeat(laps, checkpoint={"laps": laps})
        await asyncio.sleep(_LAP_SECONDS)
    return laps


@tidewheel.handler("marathon-sync")
def marathon_sync(context: Context, payload: object) -> int:
    """The same on a thread."""
    note_sync(context, payload)
    return _run(context, payload)


@tidewheel.handler("marathon-process", isolation="process")
def marathon_process(context: Context, payload: object) -> int:
    """The same in a process of its own."""
    note_sync(context, payload)
    return _run(context, payload)


def _run(context: Context, payload: object) -> int:
    laps, never = 0, threading.Event()
    while not Path(str(payload)).exists():
        laps += 1
        context.heartbeat(laps, checkpoint={"laps": laps})
        never.wait(_LAP_SECONDS)
    return laps
