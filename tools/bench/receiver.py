"""The receiver of `http`: a process that answers each request with 200, and counts requests and runs.

It does the least an HTTP server can do, so that the figures are those of the callers.
"""

import asyncio
import json
import subprocess
import sys
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager
from typing import cast

import psutil
import uvloop

_OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
_BACKLOG = 2048  # connections at once, before any is accepted


class Receiver:
    """The process, as the bench sees it."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdout is not None
        self._port = int(process.stdout.readline())
        self.url = f"http://127.0.0.1:{self._port}/hook"
        self.process = psutil.Process(process.pid)

    def counts(self) -> tuple[int, int]:
        """Return the number of requests, and of distinct runs among them."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/counts") as response:
            requests, runs = json.load(response)
        return int(requests), int(runs)

    def count(self) -> int:
        """Return the number of requests."""
        return self.counts()[0]


@contextmanager
def receiving() -> Generator[Receiver]:
    """A receiver as long as the block."""
    command = [sys.executable, "-m", "tools.bench.receiver"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Receiver(process)
        finally:
            process.terminate()


class _Protocol(asyncio.Protocol):
    def __init__(self, runs: dict[bytes, int]) -> None:
        self._runs, self._read = runs, b""
        self._transport: asyncio.WriteTransport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.WriteTransport", transport)  # of uvloop, which derives from no class of asyncio

    def data_received(self, data: bytes) -> None:
        self._read += data
        while (end := self._read.find(b"\r\n\r\n") + 4) >= 4:
            head = self._read[:end].lower()
            whole = end + int(_field(head, b"content-length") or b"0")
            if len(self._read) < whole:
                return
            self._read = self._read[whole:]
            self._answer(head)

    def _answer(self, head: bytes) -> None:
        if head.startswith(b"get /counts "):
            body = json.dumps([sum(self._runs.values()), len(self._runs)]).encode()
            self._transport.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
            return
        run = _field(head, b"idempotency-key")
        self._runs[run] = self._runs.get(run, 0) + 1
        self._transport.write(_OK)


def _field(head: bytes, name: bytes) -> bytes:
    _, found, rest = head.partition(b"\r\n" + name + b": ")
    return rest.partition(b"\r\n")[0] if found else b""


async def _serve() -> None:
    runs: dict[bytes, int] = {}
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Protocol(runs), "127.0.0.1", 0, backlog=_BACKLOG)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(_serve())
