"""Connections that ask nothing do not stand in the way of those that do.

uvicorn closes a connection only if nothing comes after an answer: one that never asks, or stops in the middle of a
head, would be kept for ever, and each counts towards `limit_concurrency`, beyond which everybody is told 503. Here a
connection has a request under way or is closed after `timeout_keep_alive` seconds; and when there are as many as there
may be, the one that has been quiet for longest makes room.
"""

import asyncio
from typing import cast

from uvicorn.protocols.http.h11_impl import H11Protocol


class Connection(H11Protocol):
    """HTTP on one connection."""

    _closing: asyncio.TimerHandle | None = None
    _quiet_since = 0.0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        """Begin to wait for a request's head."""
        super().connection_made(transport)
        self._quiet_since = self.loop.time()
        self._make_room()
        self._watch()

    def data_received(self, data: bytes) -> None:
        """Read on. uvicorn has given up waiting with the first byte, whatever that is of."""
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        """Begin to wait for the next head; what has come of it already is read on the way."""
        self._quiet_since = self.loop.time()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        super().connection_lost(exc)
        self._unwatch()

    def _is_quiet(self) -> bool:
        """Whether nothing is being answered: a head has not come yet, or the rest of a body that nobody wants."""
        # uvicorn has None there until the first request, which its annotation does not say.
        return cast("object", self.cycle) is None or self.cycle.response_complete

    def _watch(self) -> None:
        """Close it in so long from now, unless a whole head comes; more bytes do not put that off."""
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
        connections = cast("set[object]", self.connections)  # of protocols that are not installed, by its annotation
        others = [other for other in connections if isinstance(other, Connection) and other is not self]
        quiet = [other for other in others if other._is_quiet()]
        if quiet:
            min(quiet, key=lambda other: other._quiet_since)._drop()

    def _drop(self) -> None:
        self.connections.discard(self)
        # Not closed: that would wait for who does not read either.
        self.transport.abort()
