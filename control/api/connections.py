"""Close idle connections, so that they do not block active ones.

uvicorn closes a connection only if no byte follows a response. A connection without a request, or with part of a head,
would stay open for ever. Each counts towards `limit_concurrency`, beyond which every request is answered with 503. Here
a connection has a request in progress or is closed after `timeout_keep_alive` seconds. At the limit, a new connection
closes the one that has been idle for longest.
"""

import asyncio
from typing import cast

from uvicorn.protocols.http.h11_impl import H11Protocol


class Connection(H11Protocol):
    """HTTP protocol of one connection, with an idle timeout."""

    _closing: asyncio.TimerHandle | None = None
    _quiet_since = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        """Start the idle timeout, and close an idle connection at the limit."""
        super().connection_made(transport)
        self._quiet_since = self.loop.time()
        self._make_room()
        self._watch()

    def data_received(self, data: bytes) -> None:
        """Read data, then start or stop the idle timeout; uvicorn's own ends at the first byte."""
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        """Note the start of the idle time; uvicorn reads the part of the next head that has arrived."""
        self._quiet_since = self.loop.time()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the idle timeout."""
        super().connection_lost(exc)
        self._unwatch()

    def _is_quiet(self) -> bool:
        """Return True if no request is in progress: its head, or an unread rest of a body, is incomplete."""
        # uvicorn's value is None until the first request, contrary to its annotation.
        return cast("object", self.cycle) is None or self.cycle.response_complete

    def _watch(self) -> None:
        """Start the idle timeout; only a complete head stops it, further bytes do not extend it."""
        if not self._is_quiet():
            self._unwatch()
        elif self._closing is None and not self.transport.is_closing():
            self._closing = self.loop.call_later(self.timeout_keep_alive, self._drop)

    def _unwatch(self) -> None:
        if self._closing is not None:
            self._closing.cancel()
            self._closing = None

    def _make_room(self) -> None:
        if self.limit_concurrency is None or len(self.connections) < self.limit_concurrency:
            return
        connections = cast("set[object]", self.connections)  # annotated with protocols that are not installed
        others = [other for other in connections if isinstance(other, Connection) and other is not self]
        quiet = [other for other in others if other._is_quiet()]
        if quiet:
            min(quiet, key=lambda other: other._quiet_since)._drop()

    def _drop(self) -> None:
        self.connections.discard(self)
        # Aborted, not closed: a close would wait for a peer that does not read.
        self.transport.abort()
