"""A receiver outside Tidewheel, as a process: it logs each whole request with run, attempt and time.

It serves HTTP targets, and functions in place of AWS. Run as `python -m tests.faults.arrivals LOG`; it prints its port.
"""

import asyncio
import base64
import json
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import TextIO

_ANSWER_SECONDS = 0.05
_CLOSED_SHARE = 2  # every second connection is closed after its response, so that others are made


async def serve(log: TextIO) -> None:
    """Serve until the process is killed."""
    served = 0

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal served
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
                await reader.readexactly(int(headers.get("content-length", 0)))
                log.write(json.dumps(arrival(headers)) + "\n")
                log.flush()
                await asyncio.sleep(_ANSWER_SECONDS)
                served += 1
                last = served % _CLOSED_SHARE == 0
                close = b"connection: close\r\n" if last else b""
                writer.write(b"HTTP/1.1 200 OK\r\n" + close + b"content-length: 2\r\n\r\n{}")
                if last:
                    break
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, backlog=1000)
    print(server.sockets[0].getsockname()[1], flush=True)  # noqa: T201 - for the test that starts it
    await server.serve_forever()


def arrival(headers: dict[str, str]) -> dict[str, object]:
    """Return the line about a request: of an HTTP target, or of an invocation with its client context."""
    target, found = "http", {name.removeprefix("tidewheel-").replace("-", "_"): text for name, text in headers.items()}
    if (context := headers.get("x-amz-client-context")) is not None:
        target, found = "lambda", json.loads(base64.b64decode(context))["custom"]
    return {"target": target, "run": found["run_id"], "attempt": int(found["attempt"]), "at": time.time()}


if __name__ == "__main__":
    with Path(sys.argv[1]).open("a", encoding="utf-8") as opened:
        asyncio.run(serve(opened))
