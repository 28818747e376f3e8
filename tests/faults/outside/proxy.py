"""A TCP proxy in this process that delays, resets or swallows what passes."""

import asyncio
import random
import threading
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeAlias

_PIECE = 65536

Side: TypeAlias = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass
class Line:
    """The state of the line, read for each piece that passes."""

    delay: tuple[float, float] = (0.0, 0.0)  # seconds, from and to
    resets: float = 0.0  # the part of the pieces after which both sides are reset
    silent: bool = False  # True if nothing passes, while both connections stay open


class Proxy:
    """A proxy to a port of this machine."""

    def __init__(self, target: int, seed: int) -> None:
        self.line = Line()
        self._target, self._random = target, random.Random(seed)  # noqa: S311
        self._ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._serving: dict[asyncio.Task[None], asyncio.StreamWriter] = {}  # a lost one that is open warns
        self.port = 0
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)
        self._thread.start()
        self._ready.wait()

    def close(self) -> None:
        """Cut every connection and end."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._accept, "127.0.0.1", 0))
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        self._loop.run_forever()
        server.close()
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._loop.run_until_complete(asyncio.sleep(0))  # in which aborted connections close
        self._loop.close()

    def _accept(self, near: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        task = self._loop.create_task(self._serve((near, back)))
        self._serving[task] = back
        task.add_done_callback(self._close_near)  # also of a task that is cancelled before it begins

    def _close_near(self, task: "asyncio.Task[None]") -> None:
        back = self._serving.pop(task)
        back.transport.abort()

    async def _serve(self, near: Side) -> None:
        with suppress(OSError):
            far = await asyncio.open_connection("127.0.0.1", self._target)
            ways = [asyncio.ensure_future(way) for way in self._ways(near, far)]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                far[1].transport.abort()

    def _ways(self, near: Side, far: Side) -> list[Coroutine[None, None, None]]:
        """Return what passes from each side to the other, until one of them ends."""
        return [self._pass(near[0], far[1]), self._pass(far[0], near[1])]

    async def _pass(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while piece := await source.read(_PIECE):
                while self.line.silent:
                    await asyncio.sleep(0.05)
                if self.line.delay[1]:
                    await asyncio.sleep(self._random.uniform(*self.line.delay))
                if self._random.random() < self.line.resets:
                    return
                sink.write(piece)
                await sink.drain()
