"""HTTP client of the runner: checked connections that look at the lease before each write.

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
from contextvars import ContextVar
from functools import cache, lru_cache, partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, NamedTuple, cast
from urllib.parse import quote
from weakref import WeakSet

import aiohttp
from aiohappyeyeballs import start_connection  # pyright: ignore[reportUnknownVariableType] - an address has no type
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection
from aiohttp.http import RawResponseMessage
from aiohttp.http_exceptions import HttpProcessingError, LineTooLong
from yarl import URL

from tidewheel.executor.lease import Lease, LeaseOver
from tidewheel.executor.runners.http_transport import (
    AddressGuard,
    AddressInfo,
    LeasedTransport,
    Sending,
    Tls,
    look_up_of,
)
from tidewheel.jobs.http_values import TargetUrl, read_url

_KEPT_CONNECTIONS = 200  # beyond those in use
_KEPT_SECONDS = 30
_MOST_INTERIM = 10  # responses 1xx to a request: servers send one or two
_HEAD_BYTES = 64 * 1024  # of a response's head, with those of 1xx responses before it

# Characters that are sent as they are. Source: WHATWG URL, path and query percent-encode sets.
_IN_QUERY = "".join(set(string.punctuation) - set('"#<>'))
_IN_PATH = "".join(set(_IN_QUERY) - set("?`{}"))
_LONE_PERCENT = re.compile(r"%(?![0-9A-Fa-f]{2})")


_sending: ContextVar[Sending] = ContextVar("tidewheel_http_sending")


class Place(NamedTuple):
    """A target's URL in parts, as it is requested, and as messages show it: without its query."""

    parts: TargetUrl
    url: URL
    shown: str


class NotRepeated(Exception):
    """The connection was lost, and the session must not repeat the request; the cause is the error."""


class _ConnectionOver(Exception):
    """The other side has closed a kept connection, or has sent something on it: nothing was sent."""


class _Connection(ResponseHandler):
    """A connection, with the bytes of a head until that has ended."""

    used = idle = False
    interim = 0
    head_bytes: int | None = 0

    def rest(self) -> None:
        self.idle = True

    def data_received(self, data: bytes) -> None:
        if self.idle:
            # Else it would stay in memory without a bound, and be the response of the next request.
            if data and self.transport is not None:  # aiohttp calls this without data when reading resumes
                self.transport.abort()
            return
        # The head by itself, or an error in the body would keep the status of an accepted request from the runner.
        end = data.find(b"\r\n\r\n") + 4
        if 4 <= end < len(data):
            super().data_received(data[:end])
            data = data[end:]
        super().data_received(data)
        # The parser bounds each field, and 128 of the longest have 8 MiB.
        if self.head_bytes is not None:
            self.head_bytes += len(data)
            if self.head_bytes > _HEAD_BYTES and self.transport is not None and not self.transport.is_closing():
                self.set_exception(LineTooLong(b"the head", _HEAD_BYTES))
                self.transport.abort()

    def feed_data(self, data: tuple[RawResponseMessage, aiohttp.StreamReader], size: int = 0) -> None:
        """Pass a response on; end the connection after too many interim ones."""
        if data[0].code >= HTTPStatus.OK:
            self.head_bytes = None
        else:
            self.interim += 1
        if self.interim <= _MOST_INTERIM:
            super().feed_data(data, size)
            return
        if self.transport is not None:
            self.transport.abort()
        self.set_exception(HttpProcessingError(message=f"more than {_MOST_INTERIM} responses 1xx to one request"))

    def set_exception(self, exc: BaseException, exc_cause: BaseException | None = None) -> None:
        super().set_exception(exc, exc_cause or exc)
        # aiohttp leaves the reader of a body waiting where a later part of it is no HTTP.
        if self._payload is not None and not self._payload.is_eof() and self._payload.exception() is None:
            self._payload.set_exception(aiohttp.ClientPayloadError(f"invalid response: {exc}"), exc)

    def is_over(self) -> bool:
        """Return True if the other side has closed it or has sent something, which no request is waiting for."""
        transport = self.transport
        if transport is None or transport.is_closing():
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

    async def _wrap_create_connection(
        self,
        *args: Any,  # noqa: ANN401 - as aiohttp's own, and so below
        addr_infos: list[AddressInfo],
        req: aiohttp.ClientRequest,
        timeout: aiohttp.ClientTimeout,
        client_error: type[Exception] = aiohttp.ClientConnectorError,
        **kwargs: Any,  # noqa: ANN401
    ) -> tuple[asyncio.Transport, ResponseHandler]:
        del client_error
        context = cast("ssl.SSLContext | None", kwargs["ssl"])
        try:
            async with asyncio.timeout(timeout.sock_connect):
                sock = await start_connection(
                    addr_infos,
                    happy_eyeballs_delay=self._happy_eyeballs_delay,
                    interleave=self._interleave,
                    loop=self._loop,
                    socket_factory=self._make_socket,
                )
                try:
                    tls = None
                    if context is not None:
                        tls = Tls(context, cast("str", kwargs["server_hostname"]))
                        await tls.shake_hands(sock)
                    protocol = cast("Callable[[], ResponseHandler]", args[0])()
                    return LeasedTransport(sock, protocol, tls), protocol
                except BaseException:
                    sock.close()
                    raise
        except ssl.CertificateError as error:
            raise aiohttp.ClientConnectorCertificateError(req.connection_key, error) from error
        except ssl.SSLError as error:
            raise aiohttp.ClientConnectorSSLError(req.connection_key, error) from error
        except TimeoutError:
            raise
        except OSError as error:
            raise aiohttp.ClientConnectorError(req.connection_key, error) from error

    def _make_socket(self, address: AddressInfo) -> socket.socket:
        made = self._guard.make_socket(address)
        self.sockets.add(made)
        return made


class HttpClient:
    """A session and its connections; made and used on the event loop."""

    def __init__(self, guard: AddressGuard, ca_file: Path | None = None) -> None:
        self._in_use = 0
        self._connector = _Connector(guard, ca_file)
        self._session = aiohttp.ClientSession(
            connector=self._connector,
            cookie_jar=aiohttp.DummyCookieJar(),  # or other jobs' requests would carry them
            request_class=self._request_class(),
            middlewares=(_send_once,),
            auto_decompress=False,
            max_line_size=_HEAD_BYTES,
            max_field_size=_HEAD_BYTES,
        )

    @asynccontextmanager
    async def request(
        self,
        method: str,
        url: URL,
        *,
        headers: Mapping[str, str],
        content: bytes,
        tenant: str,
        seconds: float,
        lease: Lease,
    ) -> AsyncGenerator[aiohttp.ClientResponse]:
        """Send a request; the block has the response, whose body is still to be read.

        The look-up takes a thread of the tenant. The seconds limit it, and the connection with TLS. Once the lease is
        over, nothing more is sent.

        Raises:
            LeaseOver: Nothing was sent, or no more than a part of the request.
            AddressRefused: Nothing was sent.
            LookUpTimedOut, aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError: Nothing was sent.
            NotRepeated, aiohttp.ClientError: The request may have been sent.
        """
        look_up_of.set((tenant, seconds))
        sending = Sending(lease)
        _sending.set(sending)
        self._in_use += 1
        try:
            try:
                response = await self._session.request(
                    method, url, headers=headers, data=content or None, allow_redirects=False, timeout=_timeout(seconds)
                )
            except Exception as error:
                if sending.cut:
                    raise LeaseOver(begun=sending.begun) from error
                raise
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
        """Look at the connection before a request is written to it, and give it the request's lease."""
        protocol, sending = connection.protocol, _sending.get()
        assert isinstance(protocol, _Connection)  # noqa: S101 - of this connector
        if sending.lease.is_over():
            sending.cut = True
            raise LeaseOver
        if protocol.transport is not None:
            cast("LeasedTransport", protocol.transport).sending = sending
        if protocol.used and protocol.is_over():
            raise _ConnectionOver
        protocol.idle, protocol.interim, protocol.head_bytes = False, 0, 0
        connection.add_callback(protocol.rest)
        if protocol.used:
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

    >>> read_place("http://b\u00fccher.example/a%zzb%2f?q=%7e#part")[1:]
    (URL('http://xn--bcher-kva.example/a%25zzb%2f?q=%7e'), 'http://xn--bcher-kva.example/a%25zzb%2f')
    """
    parts = read_url(text)
    authority = URL.build(scheme=parts.scheme, host=parts.host.text, port=parts.port).raw_authority
    shown = f"{parts.scheme}://{authority}{_escaped(parts.path or '/', _IN_PATH)}"
    query = f"?{_escaped(parts.query, _IN_QUERY)}" if parts.query else ""
    return Place(parts, URL(shown + query, encoded=True), shown)


def _escaped(text: str, kept: str) -> str:
    return quote(_LONE_PERCENT.sub("%25", text), safe=kept)


@cache
def _roots(ca_file: Path | None) -> ssl.SSLContext:
    context = ssl.create_default_context()
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
