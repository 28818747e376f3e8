"""Answers that last: server-sent events."""

from collections.abc import AsyncGenerator, Callable

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}  # a proxy that collects answers would hold events


class Streaming(StreamingResponse):
    """A stream that gives its place back, also if its client leaves before it begins."""

    def __init__(self, events: AsyncGenerator[bytes], end: Callable[[], None]) -> None:
        super().__init__(events, media_type="text/event-stream", headers=HEADERS)
        self._end = end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._end()
