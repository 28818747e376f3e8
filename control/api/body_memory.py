"""Memory for bodies of requests: of each kind of caller, shared by those who send them.

A sharer, which is a tenant, an address or an executor, may take as much as all of its kind leave free: half of the
memory if it is alone. So there is always room for a body of another one. A key may take nine tenths of that.
"""

from collections import Counter
from typing import NamedTuple

from starlette.types import Message, Receive

from tidewheel.control.api.problems import Overloaded

# Bytes at once. A parsed document takes up to twenty times as much as its text.
ALLOWANCES = {"executors": 8 << 20, "keys": 8 << 20, "reports": 4 << 20, "strangers": 4 << 20}
_OF_KEY = 0.45  # 3.6 MiB: a form that is too long is read up to 3 MiB before it is refused, as browsers need it


class BodyMemory:
    """The bodies that are in memory."""

    def __init__(self) -> None:
        self._held = Counter[str]()  # bytes by kind of caller
        self._held_by = Counter[Sharer]()

    def body(self, sharer: "Sharer", receive: Receive) -> "Body":
        """Return the body of a request, of which nothing has been read."""
        return Body(self, sharer, receive)

    def add(self, sharer: "Sharer", size: int) -> None:
        """Count bytes, or take back a negative `size`; raise Overloaded beyond the sharer's part."""
        kind, whole = sharer.kind, sharer._replace(key=None)
        self._held[kind] += size
        for each in {whole, sharer}:
            self._held_by[each] += size
            if not self._held_by[each]:
                del self._held_by[each]
        of_key = self._held_by[sharer] if sharer.key else 0
        left = ALLOWANCES[kind] - self._held[kind]
        if size > 0 and (self._held_by[whole] > left or of_key > ALLOWANCES[kind] * _OF_KEY):
            text = "the bodies of other requests take all the memory for them; repeat the request in a moment"
            raise Overloaded(text)


class Sharer(NamedTuple):
    """A sender of bodies: its kind of caller, its name in it, and its key if it has one."""

    kind: str
    name: str
    key: str | None = None


class Body:
    """The body of one request."""

    def __init__(self, memory: BodyMemory, sharer: Sharer, receive: Receive) -> None:
        self._memory, self._sharer, self._receive = memory, sharer, receive
        self._size = 0

    async def receive(self) -> Message:
        """Return the next message of the request."""
        message = await self._receive()
        size = len(message.get("body", b""))
        self._size += size
        self._memory.add(self._sharer, size)
        return message

    def free(self) -> None:
        """Give its memory back."""
        self._memory.add(self._sharer, -self._size)
