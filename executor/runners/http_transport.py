"""The guard of addresses, and an HTTP transport that checks the lease before each write.

The transports of asyncio and uvloop keep what the kernel does not take at once, and write it later by themselves; with
TLS, at the end of the loop's turn. A process that was stopped in between would complete a request after its lease. This
transport keeps the rest too, and drops the connection if the lease is over by then.

The resolver checks every address of a name. The socket factory checks the very address that a socket is made for, also
a literal one, which never reaches the resolver. There is no second look-up in between that a name server could answer
differently.
"""

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from contextvars import ContextVar
from ipaddress import ip_address
from typing import TypeAlias

from aiohttp.abc import AbstractResolver, ResolveResult

from tidewheel.executor.lease import ENDLESS, Lease
from tidewheel.jobs.http_values import is_public
from tidewheel.turns import SharedThreads

_READ_BYTES = 256 * 1024

CONNECT_SECONDS = 5.0  # for look-up and connection each; a working network answers within one retransmission

# Each look-up blocks a thread. It fails after 5 s, but an unresponsive name server may block its thread for half a
# minute. Tenants share the threads, so it blocks those of the tenants that call its hosts: a tenant alone has 32.
_LOOK_UPS = 64

# Family, kind, protocol, name, and the address itself, as `getaddrinfo` returns them.
AddressInfo: TypeAlias = tuple[int, int, int, str, tuple[object, ...]]
Resolve: TypeAlias = Callable[[str, int], Awaitable[Sequence[str]]]

# The tenant and the time limit of a look-up, set by the attempt whose task resolves.
look_up_of: ContextVar[tuple[str, float]] = ContextVar("look_up_of", default=("", CONNECT_SECONDS))


class Sending:
    """One request on its way to the kernel: begun at its first byte, cut by the end of the lease."""

    __slots__ = ("begun", "cut", "lease")

    def __init__(self, lease: Lease) -> None:
        self.lease, self.begun, self.cut = lease, False, False


class LeasedTransport(asyncio.Transport):
    """A connection over a non-blocking socket, which it closes, with TLS after its handshake or without."""

    def __init__(self, sock: socket.socket, protocol: asyncio.Protocol, tls: "Tls | None") -> None:
        secured = {} if tls is None else {"ssl_object": tls.object, "sslcontext": tls.object.context}
        super().__init__({"socket": sock, "peername": sock.getpeername(), **secured})
        self.sending = Sending(ENDLESS)  # the request that the connection carries now
        self._loop, self._socket, self._fd = asyncio.get_running_loop(), sock, sock.fileno()
        self._protocol, self._tls = protocol, tls
        self._unsent = bytearray()
        self._closing = self._waits = self._reads = False
        protocol.connection_made(self)
        self.resume_reading()
        if tls is not None:
            self._loop.call_soon(self._decrypt)  # what came with the end of the handshake

    def is_closing(self) -> bool:
        """Return True if it is closed, or about to be."""
        return self._closing

    def is_reading(self) -> bool:
        """Return True unless reading is paused."""
        return self._reads

    def pause_reading(self) -> None:
        """Read nothing until `resume_reading`."""
        if self._reads:
            self._reads = False
            self._loop.remove_reader(self._fd)

    def resume_reading(self) -> None:
        """Read again."""
        if not self._reads and not self._closing:
            self._reads = True
            self._loop.add_reader(self._fd, self._read)

    def get_write_buffer_size(self) -> int:
        """Return the number of bytes that the kernel has not taken yet."""
        return len(self._unsent)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Hand bytes to the kernel at once, as many as it takes; the rest when it takes more."""
        if self._closing:
            return
        self._unsent += data if self._tls is None else self._tls.encrypt(data)
        if not self._waits:
            self._send()

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        """Write all of these at once."""
        self.write(b"".join(list_of_data))

    def close(self) -> None:
        """Close it; what the kernel has not taken is dropped."""
        if self._tls is not None and not self._closing and not self._unsent:
            with suppress(OSError):
                self._socket.send(self._tls.end())
        self._end(None)

    def abort(self) -> None:
        """Close it."""
        self._end(None)

    def _send(self) -> None:
        sending = self.sending
        try:
            while self._unsent:
                if sending.lease.is_over():  # nothing may come between this look and the write
                    sending.cut = True
                    self._end(ConnectionAbortedError("the lease is over"))
                    return
                sent = self._socket.send(self._unsent)
                sending.begun = True
                del self._unsent[:sent]
        except (BlockingIOError, InterruptedError):
            if not self._waits:
                self._waits = True
                self._loop.add_writer(self._fd, self._send)
                self._protocol.pause_writing()
        except OSError as error:
            self._end(error)
        else:
            if self._waits:
                self._waits = False
                self._loop.remove_writer(self._fd)
                self._protocol.resume_writing()

    def _read(self) -> None:
        try:
            data = self._socket.recv(_READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._end(error)
            return
        if self._tls is not None:
            self._tls.take(data)
            self._decrypt()
        elif data:
            self._protocol.data_received(data)
        else:
            self._end_of_input()

    def _decrypt(self) -> None:
        if self._tls is None or self._closing:
            return
        try:
            data, ended = self._tls.decrypt()
        except ssl.SSLError as error:
            self._end(error)
            return
        self._unsent += self._tls.pending()
        if self._unsent and not self._waits:
            self._send()
        if data:
            self._protocol.data_received(data)
        if ended:
            self._end_of_input()

    def _end_of_input(self) -> None:
        if not self._closing:
            self._protocol.eof_received()
            self.close()

    def _end(self, error: Exception | None) -> None:
        if self._closing:
            return
        self._closing = True
        self._unsent.clear()
        self.pause_reading()
        if self._waits:
            self._loop.remove_writer(self._fd)
        self._loop.call_soon(self._lose, error)

    def _lose(self, error: Exception | None) -> None:
        try:
            self._protocol.connection_lost(error)
        finally:
            self._socket.close()


class Tls:
    """TLS of one connection, between bytes in memory."""

    def __init__(self, context: ssl.SSLContext, server_hostname: str | None) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.object = context.wrap_bio(self._incoming, self._outgoing, server_hostname=server_hostname)

    async def shake_hands(self, sock: socket.socket) -> None:
        """Exchange keys and check the certificate; none of the request is sent.

        Raises:
            ssl.SSLError: The other side speaks no TLS, or its certificate is refused.
        """
        loop = asyncio.get_running_loop()
        while True:
            try:
                self.object.do_handshake()
            except ssl.SSLWantReadError:
                done = False
            except ssl.SSLError:
                with suppress(OSError):
                    await loop.sock_sendall(sock, self.pending())  # the alert with the reason
                raise
            else:
                done = True
            if pending := self.pending():
                await loop.sock_sendall(sock, pending)
            if done:
                return
            data = await loop.sock_recv(sock, _READ_BYTES)
            if not data:
                raise ConnectionResetError("the server closed the connection during the TLS handshake")
            self.take(data)

    def take(self, data: bytes) -> None:
        """Keep received bytes to decrypt; no bytes are the end."""
        if data:
            self._incoming.write(data)
        else:
            self._incoming.write_eof()

    def decrypt(self) -> tuple[bytes, bool]:
        """Return what can be decrypted, and True if the other side sends no more."""
        data = bytearray()
        try:
            while piece := self.object.read(_READ_BYTES):
                data += piece
        except ssl.SSLWantReadError:
            return bytes(data), False
        except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
            pass  # many servers close without the end of TLS; the length of a body shows if it was cut
        return bytes(data), True

    def encrypt(self, data: bytes | bytearray | memoryview) -> bytes:
        """Return bytes encrypted."""
        left = memoryview(data)
        while left:
            left = left[self.object.write(left) :]
        return self.pending()

    def pending(self) -> bytes:
        """Return bytes that TLS itself has to send."""
        return self._outgoing.read()

    def end(self) -> bytes:
        """Return the end of TLS."""
        with suppress(ssl.SSLError):
            self.object.unwrap()
        return self.pending()


class AddressRefused(Exception):
    """The target has an address that targets must not reach."""


class LookUpTimedOut(Exception):
    """No name server has answered in time."""


class AddressGuard(AbstractResolver):
    """Resolves names, and makes sockets for checked addresses only."""

    def __init__(self, *, allow_private: bool, resolve: Resolve | None = None) -> None:
        self._allow_private = allow_private
        self._threads = SharedThreads(_LOOK_UPS, "look-up")
        self._resolve = resolve or self._look_up

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Return all addresses of a name."""
        del family  # of the connector, which is for both
        _, seconds = look_up_of.get()
        try:
            async with asyncio.timeout(seconds):
                addresses = await self._resolve(host, port)
        except TimeoutError as error:
            raise LookUpTimedOut(f"{host} could not be resolved within {seconds:g} s") from error
        except OSError as error:
            raise OSError(f"{host} cannot be resolved: {error}") from error
        if not addresses:
            raise OSError(f"{host} has no address")
        self._check(host, addresses)
        return [
            ResolveResult(hostname=host, host=address, port=port, family=socket.AF_UNSPEC, proto=0, flags=0)
            for address in addresses
        ]

    def make_socket(self, address: AddressInfo) -> socket.socket:
        """Return a socket for one address, the one that is connected to next."""
        family, kind, protocol, _, peer = address
        host = str(peer[0])
        self._check(host, [host])
        return socket.socket(family, kind, protocol)

    async def close(self) -> None:
        """Stop the threads of the look-ups."""
        self._threads.close()

    def _check(self, host: str, addresses: Sequence[str]) -> None:
        if not self._allow_private and not all(is_public(ip_address(address)) for address in addresses):
            # Without the address of a name, which an attacker may want to find out.
            message = f"{host} is an address that targets must not reach; set TIDEWHEEL_HTTP_ALLOW_PRIVATE to allow it"
            raise AddressRefused(message)

    async def _look_up(self, host: str, port: int) -> Sequence[str]:
        def resolve() -> list[str]:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            return list(dict.fromkeys(str(entry[4][0]).partition("%")[0] for entry in found))

        tenant, _ = look_up_of.get()
        return await asyncio.wrap_future(self._threads.submit(tenant, resolve))
