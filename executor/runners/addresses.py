"""Guard of the addresses that HTTP targets may reach.

The resolver checks every address of a name. The socket factory checks the very address that a socket is made for, also
a literal one, which never reaches the resolver. There is no second look-up in between that a name server could answer
differently.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import TypeAlias

from aiohttp.abc import AbstractResolver, ResolveResult

CONNECT_SECONDS = 5.0  # for look-up and connection each; a working network answers within one retransmission

# Each look-up blocks a thread. An unresponsive name server must not block the look-ups of other names: a look-up fails
# after 5 s, but its thread may be blocked for half a minute.
_LOOK_UPS = 32

Address: TypeAlias = IPv4Address | IPv6Address
# Family, kind, protocol, name, and the address itself, as `getaddrinfo` returns them.
AddressInfo: TypeAlias = tuple[int, int, int, str, tuple[object, ...]]
Network: TypeAlias = IPv4Network | IPv6Network
Resolve: TypeAlias = Callable[[str, int], Awaitable[Sequence[str]]]

# The refused networks. Sources: IANA IPv4 and IPv6 Special-Purpose Address Registries (RFC 6890) with every entry, also
# those that are globally reachable, for no target is there; IANA IPv4 Multicast (RFC 5771) and IPv6 Address Space (RFC
# 4291), in which 2000::/3 alone is global unicast; the documentation of cloud providers for their metadata addresses.
_REFUSED = """
0.0.0.0/8            this network, RFC 791
10.0.0.0/8           private, RFC 1918
100.64.0.0/10        shared, RFC 6598; has 100.100.100.200, the metadata of Alibaba Cloud
127.0.0.0/8          loopback, RFC 1122
168.63.129.16/32     metadata of Azure ("What is IP address 168.63.129.16?")
169.254.0.0/16       link-local, RFC 3927; has 169.254.169.254, metadata, and 169.254.170.2, credentials of AWS ECS
172.16.0.0/12        private, RFC 1918
192.0.0.0/24         IETF protocol assignments, RFC 6890; has 192.0.0.192, the metadata of Oracle Cloud
192.0.2.0/24         documentation, RFC 5737
192.31.196.0/24      AS112, RFC 7535
192.52.193.0/24      automatic multicast tunneling, RFC 7450
192.88.99.0/24       6to4 relay, RFC 7526
192.168.0.0/16       private, RFC 1918
192.175.48.0/24      AS112, RFC 7534
198.18.0.0/15        benchmarking, RFC 2544
198.51.100.0/24      documentation, RFC 5737
203.0.113.0/24       documentation, RFC 5737
224.0.0.0/4          multicast, RFC 5771
240.0.0.0/4          reserved, RFC 1112; has the limited broadcast, RFC 919
::/3                 no global unicast: unspecified, loopback, 64:ff9b:1::/48 (RFC 8215), 100::/64, 100:0:0:1::/64
2001::/23            IETF protocol assignments, RFC 2928: Teredo, benchmarking, ORCHID and others
2001:db8::/32        documentation, RFC 3849
2620:4f:8000::/48    AS112, RFC 7534
3fff::/20            documentation, RFC 9637
4000::/2             no global unicast: 5f00::/16 (RFC 9602)
8000::/1             no global unicast: unique-local with fd00:ec2::254 of AWS, link-local, site-local, multicast
"""
REFUSED: tuple[Network, ...] = tuple(ip_network(line.split()[0]) for line in _REFUSED.strip().splitlines())

# The bits above an IPv4 address that alone decides: IPv4-mapped (RFC 4291 section 2.5.5.2), NAT64 (RFC 6052), 6to4 (RFC
# 3056). They are in the registries too.
_WITH_V4 = ((IPv6Network("::ffff:0:0/96"), 0), (IPv6Network("64:ff9b::/96"), 0), (IPv6Network("2002::/16"), 80))

# The time limit of a look-up, set by the attempt whose task resolves.
look_up_seconds = ContextVar("look_up_seconds", default=CONNECT_SECONDS)


class AddressRefused(Exception):
    """The target has an address that targets must not reach."""


class LookUpTimedOut(Exception):
    """No name server has answered in time."""


class AddressGuard(AbstractResolver):
    """Resolves names, and makes sockets for checked addresses only."""

    def __init__(self, *, allow_private: bool, resolve: Resolve | None = None) -> None:
        self._allow_private = allow_private
        self._threads = ThreadPoolExecutor(_LOOK_UPS, thread_name_prefix="look-up")
        self._resolve = resolve or self._look_up

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Return all addresses of a name.

        Raises:
            AddressRefused: Targets must not reach one of them.
            LookUpTimedOut: No name server has answered in time.
            OSError: The name has no address.
        """
        del family  # of the connector, which is for both
        seconds = look_up_seconds.get()
        try:
            async with asyncio.timeout(seconds):
                addresses = await self._resolve(host, port)
        except TimeoutError as error:
            message = f"{host} could not be resolved within {seconds:g} s"
            raise LookUpTimedOut(message) from error
        except OSError as error:
            message = f"{host} cannot be resolved: {error}"
            raise OSError(message) from error
        if not addresses:
            message = f"{host} has no address"
            raise OSError(message)
        self._check(host, addresses)
        return [
            ResolveResult(hostname=host, host=address, port=port, family=socket.AF_UNSPEC, proto=0, flags=0)
            for address in addresses
        ]

    def make_socket(self, address: AddressInfo) -> socket.socket:
        """Return a socket for one address, the one that is connected to next.

        Raises:
            AddressRefused: Targets must not reach it.
        """
        family, kind, protocol, _, peer = address
        host = str(peer[0])
        self._check(host, [host])
        return socket.socket(family, kind, protocol)

    async def close(self) -> None:
        """Stop the threads of the look-ups."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _check(self, host: str, addresses: Sequence[str]) -> None:
        if not self._allow_private and not all(is_public(ip_address(address)) for address in addresses):
            # Without the address of a name, which an attacker may want to find out.
            message = f"{host} is an address that targets must not reach; TIDEWHEEL_HTTP_ALLOW_PRIVATE allows it"
            raise AddressRefused(message)

    async def _look_up(self, host: str, port: int) -> Sequence[str]:
        def resolve() -> list[str]:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
            return list(dict.fromkeys(str(entry[4][0]).partition("%")[0] for entry in found))

        return await asyncio.get_running_loop().run_in_executor(self._threads, resolve)


def is_public(address: Address) -> bool:
    """Return True if targets may reach an address without a permission.

    >>> [is_public(ip_address(text)) for text in ("127.0.0.1", "::ffff:10.0.0.1", "1.1.1.1")]
    [False, False, True]
    """
    if isinstance(address, IPv6Address):
        address = IPv6Address(int(address))  # without a scope id, with which it equals no other address
        for network, bits in _WITH_V4:
            if address in network:
                return is_public(IPv4Address(int(address) >> bits & 0xFFFFFFFF))
    return not any(address in network for network in REFUSED)
