"""Answers that last, and the places of their clients."""

from collections import Counter
from collections.abc import AsyncGenerator, Callable

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from tidewheel.control.api.problems import Overloaded

HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}  # a proxy that collects answers would hold events


class Places:
    """The streams of one kind that a process may have open: of all tenants, of one tenant, of one key.

    Args:
        most: Of all; a tenant may have half of them.
    """

    def __init__(self, kind: str, most: int, of_key: int) -> None:
        self._kind, self._most, self._of_tenant, self._of_key = kind, most, most // 2, of_key
        self._open = Counter[tuple[str, str | None]]()  # by tenant and key

    def take(self, tenant: str, key_id: str | None) -> Callable[[], None]:
        """Take a place for a client's key, or for none; return what gives it back, once."""
        of_key = sum(count for (_, each), count in self._open.items() if key_id is not None and each == key_id)
        of_tenant = sum(count for (each, _), count in self._open.items() if each == tenant)
        for count, most, whose in (
            (of_key, self._of_key, f"the key {key_id}"),
            (of_tenant, self._of_tenant, f"tenant {tenant}"),
            (self._open.total(), self._most, "this process"),
        ):
            if count >= most:
                raise Overloaded(f"{whose} has {most} open {self._kind}, the limit; close one first")
        self._open[tenant, key_id] += 1
        taken = [(tenant, key_id)]

        def give_back() -> None:
            while taken:
                place = taken.pop()
                self._open[place] -= 1
                self._open += Counter[tuple[str, str | None]]()  # forgets who has none

        return give_back


class Streaming(StreamingResponse):
    """A stream that gives its place back, also if its client leaves before it begins."""

    def __init__(self, events: AsyncGenerator[bytes | memoryview], end: Callable[[], None]) -> None:
        super().__init__(events, media_type="text/event-stream", headers=HEADERS)
        self._end = end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._end()
