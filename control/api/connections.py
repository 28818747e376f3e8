"""Limit connections, so that idle and slow ones do not block others.

uvicorn closes a connection only if no byte follows a response. A connection without a request, or with part of a head,
would stay open for ever. Each counts towards `limit_concurrency`, beyond which every request is answered with 503.

A stranger is a connection whose last request showed neither the token of executors nor an API key. It has ten seconds
for a complete head and a minute for a request. In the limits that follow, connections with a key count as strangers.
One address has a limited number of strangers, unless it is a trusted proxy. All strangers have at most half of the
connections. Above a limit, a new connection closes the stranger that has been idle for longest. If none is idle, it
closes the one that has been at its request for longest. So a new executor always has time to show its token. Other
connections are closed after `timeout_keep_alive` seconds without a request.

A client that does not read its answer leaves it in memory. It is disconnected after half a minute, and at once if all
such answers take more than their part of memory: then the one that has read nothing for longest.
"""

import asyncio
from collections.abc import Container, Mapping, Sequence
from operator import itemgetter
from typing import ClassVar, cast

from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware
from uvicorn.protocols.http.h11_impl import H11Protocol

from tidewheel.control.api.authorization import KEY, TRUSTED

_HEAD_SECONDS = 10.0
_REQUEST_SECONDS = 60.0  # more than the waits for locks that one request may have
_UNREAD_SECONDS = 30.0  # for a client to read what is more than uvicorn's 64 KiB
# Of all answers: the largest pages of four clients. A transport may hold twice as much as it counts: the array that it
# sends from shrinks only at the half.
_UNREAD_BYTES = 16 * 1024 * 1024
_READ_BYTES = 64 * 1024  # from the socket at once; asyncio's own 256 KiB would count for each stranger


class Connection(H11Protocol):
    """HTTP protocol of one connection, with timeouts."""

    per_address: ClassVar[int]
    proxies: ClassVar[Container[str]]

    _closing: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None  # while more of an answer waits than uvicorn takes
    _state: tuple[bool, bool] | None = None  # quiet, trusted
    _since = 0.0  # when it became quiet, or stopped being quiet

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        """Start the timeout, and close another connection at a limit."""
        super().connection_made(transport)
        if hasattr(transport, "max_size"):
            setattr(transport, "max_size", _READ_BYTES)  # noqa: B010 - of asyncio's own transport, which has no stub for it
        self._watch()
        self._make_room()

    def data_received(self, data: bytes) -> None:
        """Read data; further bytes of a head do not extend its timeout."""
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        """Note the start of the idle time; uvicorn reads the part of the next head that has arrived."""
        self._watch()
        super().on_response_complete()
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timeout."""
        super().connection_lost(exc)
        self._unwatch()
        self._end_unread()

    def pause_writing(self) -> None:
        """Start the timeout of an answer that the client does not read, and bound the memory of all of them."""
        super().pause_writing()
        if self._unread is None:
            self._unread = self.loop.call_later(_UNREAD_SECONDS, self._drop)
        self.loop.call_soon(self._bound_unread)  # after the socket has taken its part

    def resume_writing(self) -> None:
        """Stop that timeout: the client reads."""
        super().resume_writing()
        self._end_unread()

    @property
    def _quiet(self) -> bool:
        """True if no request is in progress: its head, or an unread rest of a body, is incomplete."""
        # uvicorn's value is None until the first request, contrary to its annotation.
        return cast("object", self.cycle) is None or self.cycle.response_complete

    @property
    def _trusted(self) -> bool:
        return self._is_executors or KEY in self._last_scope

    @property
    def _all(self) -> Sequence["Connection"]:
        connections = cast("set[object]", self.connections)  # annotated with protocols that are not installed
        return [each for each in connections if isinstance(each, Connection)]

    @property
    def _is_executors(self) -> bool:
        return bool(self._last_scope.get(TRUSTED))

    @property
    def _last_scope(self) -> Mapping[str, object]:
        return cast("Mapping[str, object] | None", self.scope) or {}  # None as above

    def _watch(self) -> None:
        """Start the timeout of the present state, if the state has changed."""
        before, self._state = self._state, (self._quiet, self._trusted)
        if before == self._state or self.transport.is_closing():
            return
        self._unwatch()
        if before is None or before[0] != self._quiet:
            self._since = self.loop.time()
        match self._state:
            case True, trusted:
                idle = float(self.timeout_keep_alive)
                self._closing = self.loop.call_at(
                    self._since + (idle if trusted else min(idle, _HEAD_SECONDS)), self._drop
                )
            case False, False:
                self._closing = self.loop.call_at(self._since + _REQUEST_SECONDS, self._drop_stranger)
            case _:  # the request of an executor or of a key takes as long as it takes
                pass

    def _drop_stranger(self) -> None:
        # The guard reads the token or the key after the timeout has been set.
        if not self._trusted:
            self._drop()

    def _unwatch(self) -> None:
        if self._closing is not None:
            self._closing.cancel()
            self._closing = None

    def _end_unread(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _bound_unread(self) -> None:
        waiting = [(each._unread.when(), each) for each in self._all if each._unread is not None]
        total = sum(each.transport.get_write_buffer_size() for _, each in waiting)
        for _, each in sorted(waiting, key=itemgetter(0)):
            if total <= _UNREAD_BYTES:
                break
            total -= each.transport.get_write_buffer_size()
            each._drop()

    def _make_room(self) -> None:
        others = [other for other in self._all if other is not self]
        strangers = [other for other in others if not other._is_executors]
        neighbours = [other for other in strangers if other._address == self._address]
        if len(neighbours) >= self.per_address and self._address not in self.proxies:
            self._drop_oldest(neighbours)
        elif self.limit_concurrency is not None and len(strangers) >= self.limit_concurrency // 2:
            self._drop_oldest(strangers)
        elif self.limit_concurrency is not None and len(others) + 1 >= self.limit_concurrency:
            self._drop_oldest([other for other in others if other._quiet])

    @staticmethod
    def _drop_oldest(connections: Sequence["Connection"]) -> None:
        """Close the connection that is quiet for longest; if none is, the one longest at its request."""
        if connections:
            min(connections, key=lambda other: (not other._quiet, other._since))._drop()

    @property
    def _address(self) -> str:
        return self.client[0] if self.client else ""

    def _drop(self) -> None:
        self.connections.discard(self)
        # Aborted, not closed: a close would wait for a peer that does not read.
        self.transport.abort()


def connection_type(per_address: int, proxies: str | None) -> type[Connection]:
    """Return the protocol with a limit on the strangers of one address that is none of these proxies."""
    trusted = ProxyHeadersMiddleware(_none, proxies).trusted_hosts if proxies else ()
    return type("LimitedConnection", (Connection,), {"per_address": per_address, "proxies": trusted})


async def _none(*_: object) -> None:
    """Stand for the application of the middleware, which alone reads a list of proxies."""
