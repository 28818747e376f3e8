"""Baselines of bare libraries: awaiting coroutines, a thread pool, processes behind pipes."""

import asyncio
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import IO, cast

from tidewheel.clock import monotonic_seconds

_BLOCK = 65536
# Replies to each message with the JSON text of a handler without a result.
_REPLYING = f"import os\nwhile os.read(0, {_BLOCK}): os.write(1, b'null')"


def awaited(calls: int, *, at_once: int, seconds: float) -> float:
    """Coroutines a second that await so long, with so many at once."""
    return calls / asyncio.run(_await_all(calls, at_once, seconds))


def on_threads(calls: int, *, threads: int, seconds: float) -> float:
    """Functions a second that block so long, on a thread pool of this process."""
    started = monotonic_seconds()
    with ThreadPoolExecutor(threads) as pool:
        for future in [pool.submit(time.sleep, seconds) for _ in range(calls)]:  # noqa: TID251 - the work
            future.result()
    return calls / (monotonic_seconds() - started)


def in_processes(calls: int, *, processes: int, message: bytes) -> float:
    """Messages a second that processes read from their pipes and answer, one message at a time each."""
    program = [sys.executable, "-I", "-c", _REPLYING]
    with ExitStack() as stack, selectors.DefaultSelector() as selector:
        for _ in range(processes):
            child = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
            stack.enter_context(child)
            to_child, from_child = cast("IO[bytes]", child.stdin), cast("IO[bytes]", child.stdout)
            selector.register(from_child, selectors.EVENT_READ, to_child.fileno())
            os.write(to_child.fileno(), message)
            os.read(from_child.fileno(), _BLOCK)  # it has started
        started, sent, replied = monotonic_seconds(), 0, 0
        for key in selector.get_map().values():
            sent += os.write(key.data, message) > 0
        while replied < calls:
            for key, _ in selector.select():
                replied += len(os.read(key.fd, _BLOCK)) > 0
                if sent < calls:
                    sent += os.write(key.data, message) > 0
        return calls / (monotonic_seconds() - started)


async def _await_all(calls: int, at_once: int, seconds: float) -> float:
    left = iter(range(calls))
    started = monotonic_seconds()
    async with asyncio.TaskGroup() as group:
        for _ in range(at_once):
            group.create_task(_await_some(left, seconds))
    return monotonic_seconds() - started


async def _await_some(left: Iterator[int], seconds: float) -> None:
    for _ in left:
        await asyncio.sleep(seconds)
