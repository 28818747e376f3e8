"""Free TCP ports on 127.0.0.1, remembered by the stack."""

import random
import socket
from collections.abc import Collection

from tidewheel.errors import StackError

# Below the ephemeral ranges of Linux (32768 and up) and of IANA (49152 and up). A client that retries a stopped
# broker's port from that very port would connect to itself and hold the port against the broker's return.
_LOWEST = 20_000
_HIGHEST = 32_000
_TRIES = 200


def free_port(taken: Collection[int] = ()) -> int:
    """Return a port without a listener, and none of `taken`."""
    for _ in range(_TRIES):
        port = random.randrange(_LOWEST, _HIGHEST)  # noqa: S311 - a port is no secret
        if port not in taken and is_free(port):
            return port
    message = f"none of {_TRIES} ports tried between {_LOWEST} and {_HIGHEST} is free on 127.0.0.1"
    raise StackError(message)


def is_free(port: int) -> bool:
    """Return True if a server could listen on this port of 127.0.0.1 now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as servers do: ended connections hold no port
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def answers(port: int) -> bool:
    """Return True if a server accepts connections on this port of 127.0.0.1."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True
