"""HTTP client of the runner: checked connections, and a last look at the lease before each write.

It follows no redirect, uses no proxy of the environment, keeps no cookie, unpacks nothing, and repeats no request.
"""

import asyncio
import re
import select
import socket
import ssl
import string
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import NamedTuple, cast
from urllib.parse import quote
from weakref import WeakSet

import aiohttp
import certifi
from aiohttp.abc import AbstractStreamWriter
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection
from yarl import URL

from tidewheel.executor.runners.addresses import AddressGuard, AddressInfo, look_up_seconds
from tidewheel.jobs.hosts import read_url

_KEPT_CONNECTIONS = 200  # beyond those in use
_KEPT_SECONDS = 30
_FIELD_BYTES = 64 * 1024  # of each header field of a response, of which there may be 128: 8 MiB in all

# Characters that are sent as they are. Source: WHATWG URL, path and query percent-encode sets.
_IN_QUERY = "".join(set(string.punctuation) - set('"#<>'))
_IN_PATH = "".join(set(_IN_QUERY) - set("?`{}"))
_LONE_PERCENT = re.compile(r"%(?![0-9A-Fa-f]{2})")


class Place(NamedTuple):
    """A target's URL as it is requested, and as messages show it: without its query, often secret."""

    url: URL
    shown: str


class LeaseLost(Exception):
    """The executor's lease was over before the request was written: nothing was sent."""


class NotRepeated(Exception):
    """The connection was lost, and the session must not repeat the request; the cause is the error."""


class _ConnectionOver(Exception):
    """The other side has closed a kept connection, or has sent something on it: nothing was sent."""


class Body(aiohttp.BytesPayload):
    """The body of a request, and the last look at the lease.

    aiohttp writes head and body in one call, right after this look.
    """

    def __init__(self, content: bytes, lost_lease: Callable[[], bool]) -> None:
        super().__init__(content)
        self._lost_lease = lost_lease

    async def write_with_length(self, writer: AbstractStreamWriter, content_length: int | None) -> None:
        """Write the body, and the head that waits for it.

        Raises:
            LeaseLost: Nothing was sent.
        """
        if self._lost_lease():
            raise LeaseLost
        await super().write_with_length(writer, content_length)


class _Connection(ResponseHandler):
    """A connection. `used`: it has carried a request before."""

    used = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        # Written at once, not at the end of the loop's turn as uvloop would: nothing comes between look and write.
        cast("asyncio.WriteTransport", transport).set_write_buffer_limits(high=0)

    def data_received(self, data: bytes) -> None:
        # The head by itself, or an error in the body would keep the status of an accepted request from the runner.
        end = data.find(b"\r\n\r\n") + 4
        if 4 <= end < len(data):
            super().data_received(data[:end])
            data = data[end:]
        super().data_received(data)

    def set_exception(self, exc: BaseException, exc_cause: BaseException | None = None) -> None:
        super().set_exception(exc, exc_cause or exc)
        # aiohttp leaves the reader of a body waiting where a later part of it is no HTTP.
        if self._payload is not None and not self._payload.is_eof() and self._payload.exception() is None:
            self._payload.set_exception(aiohttp.ClientPayloadError(f"invalid response: {exc}"), exc)

    def is_over(self) -> bool:
        """Return True if the other side has closed it or has sent something, which no request is waiting for."""
        transport = self.transport
        if transport is None:
            return True
        poll = select.poll()
        poll.register(transport.get_extra_info("socket").fileno(), select.POLLIN)
        return bool(poll.poll(0))


class _Connector(aiohttp.TCPConnector):
    """Connections to checked addresses; `sockets` are the open ones, for a closed transport drops its own."""

    def __init__(self, guard: AddressGuard, ca_file: Path | None) -> None:
        super().__init__(  # pyright: ignore[reportUnknownMemberType]
            limit=0,  # slots bound them: no attempt waits behind targets that hang
            keepalive_timeout=_KEPT_SECONDS,
            use_dns_cache=False,  # each connection is checked anew
            resolver=guard,
            socket_factory=self._make_socket,
            ssl=_roots(ca_file),
        )
        self._factory = cast("partial[ResponseHandler]", partial(_Connection, loop=asyncio.get_running_loop()))
        self._guard, self.sockets = guard, WeakSet[socket.socket]()

    def _make_socket(self, address: AddressInfo) -> socket.socket:
        made = self._guard.make_socket(address)
        self.sockets.add(made)
        return made


class HttpClient:
    """A session and its connections; made and used on the event loop.

    Args:
        guard: Resolves names and makes sockets.
        lost_lease: Returns True if this executor may no longer start anything.
        ca_file: Roots that are accepted besides the bundled ones, in PEM.
    """

    def __init__(self, guard: AddressGuard, lost_lease: Callable[[], bool], ca_file: Path | None = None) -> None:
        self._lost_lease, self._in_use = lost_lease, 0
        self._connector = _Connector(guard, ca_file)
        self._session = aiohttp.ClientSession(
            connector=self._connector,
            cookie_jar=aiohttp.DummyCookieJar(),  # or other jobs' requests would carry them
            request_class=self._request_class(),
            middlewares=(_send_once,),
            auto_decompress=False,
            max_line_size=_FIELD_BYTES,
            max_field_size=_FIELD_BYTES,
        )

    @asynccontextmanager
    async def request(
        self, method: str, url: URL, *, headers: Mapping[str, str], content: bytes, seconds: float
    ) -> AsyncGenerator[aiohttp.ClientResponse]:
        """Send a request; the block has the response, whose body is still to be read.

        Args:
            method: GET, POST and so on.
            url: The target.
            headers: Of the request; aiohttp adds host and content-length.
            content: The body.
            seconds: The time limit of the look-up, and of the connection with TLS.

        Raises:
            LeaseLost, AddressRefused: Nothing was sent.
            LookUpTimedOut, aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError: Nothing was sent.
            NotRepeated, aiohttp.ClientError: The request may have been sent.
        """
        look_up_seconds.set(seconds)
        body = Body(content, self._lost_lease) if content else None
        self._in_use += 1
        try:
            response = await self._session.request(
                method, url, headers=headers, data=body, allow_redirects=False, timeout=_timeout(seconds)
            )
            try:
                yield response
            finally:
                response.close()  # drops a connection whose response was not read to its end
        finally:
            self._in_use -= 1

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()

    def _prepare(self, connection: Connection) -> None:
        """Look at the lease and at the connection before a request is written to it."""
        if self._lost_lease():
            raise LeaseLost
        protocol = connection.protocol
        assert isinstance(protocol, _Connection)  # noqa: S101 - of this connector
        if protocol.used:
            if protocol.is_over():
                raise _ConnectionOver
            return
        protocol.used = True
        if len(self._connector.sockets) - self._in_use > _KEPT_CONNECTIONS:
            protocol.force_close()

    def _request_class(self) -> type[aiohttp.ClientRequest]:
        prepare = self._prepare

        class Request(aiohttp.ClientRequest):
            async def send(self, conn: Connection) -> aiohttp.ClientResponse:
                prepare(conn)
                return await super().send(conn)

        return Request


@lru_cache(maxsize=1024)
def read_place(text: str) -> Place:
    """Return the place of a URL. Percent-escapes stay as they are, for some targets sign them.

    Raises:
        InvalidValue: It is no URL with a host that can exist, or holds a user name.

    >>> read_place("http://b\u00fccher.example/a%zzb%2f?q=%7e#part")
    Place(url=URL('http://xn--bcher-kva.example/a%25zzb%2f?q=%7e'), shown='http://xn--bcher-kva.example/a%25zzb%2f')
    """
    parts = read_url(text)
    authority = URL.build(scheme=parts.scheme, host=parts.host.text, port=parts.port).raw_authority
    shown = f"{parts.scheme}://{authority}{_escaped(parts.path or '/', _IN_PATH)}"
    query = f"?{_escaped(parts.query, _IN_QUERY)}" if parts.query else ""
    return Place(URL(shown + query, encoded=True), shown)


def _escaped(text: str, kept: str) -> str:
    return quote(_LONE_PERCENT.sub("%25", text), safe=kept)


@cache
def _roots(ca_file: Path | None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=certifi.where())
    if ca_file is not None:
        context.load_verify_locations(ca_file)
    return context


@lru_cache(maxsize=64)
def _timeout(seconds: float) -> aiohttp.ClientTimeout:
    # `connect` has the look-up in it, and further tries where a name has several addresses of which none answers.
    return aiohttp.ClientTimeout(total=None, connect=2 * seconds, sock_connect=seconds, ceil_threshold=2 * seconds)


async def _send_once(request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    """Send a request once, on a live connection: aiohttp would repeat lost GET, PUT and DELETE requests."""
    while True:
        try:
            return await handler(request)
        except _ConnectionOver:
            continue  # nothing was sent, and aiohttp has closed that connection
        except aiohttp.ClientConnectorError:
            raise
        except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
            raise NotRepeated from error
