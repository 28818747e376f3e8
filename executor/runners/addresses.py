"""Guard of the addresses that HTTP targets may reach.

Every address that a name resolves to is checked, and the checked address is the one connected to. There is no second
look-up in between that a name server could answer differently.
"""

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeAlias, cast

import httpcore

CONNECT_SECONDS = 5.0  # for look-up, connection and TLS each; a working network answers within one retransmission

# Each look-up blocks a thread. An unresponsive name server must not block the look-ups of other names: a look-up fails
# after 5 s, but its thread may be blocked for half a minute.
_LOOK_UPS = 32

# IPv4 in the last four bytes: NAT64 (RFC 6052), IPv4-compatible (RFC 4291 section 2.5.5.1), IPv4-translated (RFC 2765).
_V4_IN_V6 = tuple(ipaddress.ip_network(text) for text in ("64:ff9b::/96", "::/96", "::ffff:0:0:0/96"))
# Missing in Python 3.11's `is_global`: local-use NAT64 (RFC 8215), site-local (RFC 3879).
_INSIDE_V6 = tuple(ipaddress.ip_network(text) for text in ("64:ff9b:1::/48", "fec0::/10"))

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
Resolve: TypeAlias = Callable[[str, int], Awaitable[Sequence[str]]]


class AddressRefused(Exception):
    """The target resolves to an address that targets must not reach."""


class GuardedBackend(httpcore.AsyncNetworkBackend):
    """Resolves, checks every answer, and connects to the address that was checked."""

    def __init__(self, *, allow_private: bool, resolve: Resolve | None = None) -> None:
        self._allow_private = allow_private
        self._threads = ThreadPoolExecutor(_LOOK_UPS, thread_name_prefix="look-up")
        self._resolve = resolve or self._look_up
        self._backend = cast("httpcore.AsyncNetworkBackend", httpcore.AnyIOBackend())

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Connect to the first address of `host` that answers."""
        seconds = CONNECT_SECONDS if timeout is None else timeout
        addresses = await self._checked(host, port, seconds)
        failure: httpcore.ConnectError | httpcore.ConnectTimeout = httpcore.ConnectError(f"{host} has no address")
        # Together they have the time limit of one, so that a name with many dead addresses takes no longer.
        each = seconds / max(len(addresses), 1)
        for address in addresses:
            try:
                return await self._backend.connect_tcp(address, port, each, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failure = error
        raise failure

    async def connect_unix_socket(
        self,
        path: str,
        timeout: float | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Refuse: a URL cannot name a socket."""
        raise httpcore.ConnectError(path)

    async def sleep(self, seconds: float) -> None:
        """Sleep on the loop."""
        await self._backend.sleep(seconds)

    def close(self) -> None:
        """Stop the threads of the look-ups."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _checked(self, host: str, port: int, seconds: float) -> Sequence[str]:
        try:
            async with asyncio.timeout(seconds):
                addresses = await self._resolve(host, port)
        except TimeoutError as error:
            message = f"{host} could not be resolved within {seconds:g} s"
            raise httpcore.ConnectTimeout(message) from error
        except OSError as error:
            message = f"{host} cannot be resolved: {error}"
            raise httpcore.ConnectError(message) from error
        if not self._allow_private and not all(is_public(ipaddress.ip_address(address)) for address in addresses):
            # Without the address itself, which an attacker may want to find out.
            message = f"{host} is an address that targets must not reach; TIDEWHEEL_HTTP_ALLOW_PRIVATE allows it"
            raise AddressRefused(message)
        return addresses

    async def _look_up(self, host: str, port: int) -> Sequence[str]:
        def resolve() -> list[str]:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            return list(dict.fromkeys(str(entry[4][0]).partition("%")[0] for entry in found))

        return await asyncio.get_running_loop().run_in_executor(self._threads, resolve)


def is_public(address: Address) -> bool:
    """Return True if targets may reach an address without a permission.

    >>> [is_public(ipaddress.ip_address(text)) for text in ("127.0.0.1", "::ffff:10.0.0.1", "1.1.1.1")]
    [False, False, True]
    """
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        if inner is None and any(address in network for network in _V4_IN_V6):
            inner = ipaddress.IPv4Address(address.packed[-4:])
        if address.teredo is not None or any(address in network for network in _INSIDE_V6):
            return False
        if inner is not None:
            return is_public(inner)
    return address.is_global and not address.is_multicast
