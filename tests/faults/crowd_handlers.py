"""Handlers that measure how many of them run at once, and when they start.

A handler locks one of the files that stand for places. The kernel releases the lock when the process is killed, before
another executor gets the place. So a handler that finds no free file is one too many.
"""

import asyncio
import fcntl
import os
from pathlib import Path

from typing_extensions import TypedDict

import tidewheel
from tests.faults.handlers import record
from tidewheel.executor.context import Context


class Crowd(TypedDict):
    """The payload: the folder of the files, the number of places, and the seconds that a run takes."""

    folder: str
    places: int
    seconds: float


@tidewheel.handler("crowd")
async def crowd(context: Context, payload: Crowd) -> None:
    """Hold a place for some time; record whether there was one."""
    held = _lock(payload)
    try:
        record(context, is_over=held is None)
        await asyncio.sleep(payload["seconds"])
    finally:
        if held is not None:
            os.close(held)


@tidewheel.handler("paced")
async def paced(context: Context, payload: object) -> None:
    """Record the start."""
    record(context)


def _lock(payload: Crowd) -> int | None:
    for place in range(payload["places"]):
        held = os.open(Path(payload["folder"]) / f"place-{place}", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(held)
        else:
            return held
    return None
