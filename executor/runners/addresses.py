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
from ipaddress import ip_address
from typing import TypeAlias

from aiohttp.abc import AbstractResolver, ResolveResult

from tidewheel.jobs.hosts import is_public

CONNECT_SECONDS = 5.0  # for look-up and connection each; a working network answers within one retransmission

# Each look-up blocks a thread. An unresponsive name server must not block the look-ups of other names: a look-up fails
# after 5 s, but its thread may be blocked for half a minute.
_LOOK_UPS = 32

# Family, kind, protocol, name, and the address itself, as `getaddrinfo` returns them.
AddressInfo: TypeAlias = tuple[int, int, int, str, tuple[object, ...]]
Resolve: TypeAlias = Callable[[str, int], Awaitable[Sequence[str]]]

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
        """Return all addresses of a name."""
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
        """Return a socket for one address, the one that is connected to next."""
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
