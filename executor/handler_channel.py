"""The connection from a handler's context to its executor, and the other runs that it looks up."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Protocol
from uuid import UUID

if TYPE_CHECKING:
    from psycopg import AsyncConnection, Connection


@dataclass(frozen=True, slots=True)
class Previous:
    """A job's runs before this one.

    Args:
        scheduled_at: The job's last earlier instant that became a run; None if there is none.
        result: Return value of the last earlier run that succeeded, as plain values. None if it returned nothing, or
            its result has expired.
        result_at: That run's nominal instant; None if no earlier run has succeeded.
    """

    scheduled_at: datetime | None = None
    result: object = None
    result_at: datetime | None = None


class Parent:
    """The latest run of a parent in the occurrence of a child.

    Args:
        run_id: The run; None if it is no longer stored.
        status: Its state, such as `succeeded` or `skipped`; None likewise.
        result: Its return value, as plain values.
        expired: True if the run or its result is no longer stored; the result is None then.
        left_out_bytes: The size of a result that is left out, because all together are larger than 64 KiB.
    """

    __slots__ = ("_result", "expired", "left_out_bytes", "run_id", "status")

    def __init__(
        self,
        run_id: UUID | None,
        status: str | None,
        result: object = None,
        *,
        expired: bool = False,
        left_out_bytes: int = 0,
    ) -> None:
        self.run_id, self.status, self.expired = run_id, status, expired
        self._result, self.left_out_bytes = result, left_out_bytes

    @property
    def result(self) -> object:
        """Its return value, as plain values; None if it returned nothing, or has expired.

        Raises:
            LookupError: All results together are larger than 64 KiB: read this one by `ctx.parent(key)`.
        """
        if self.left_out_bytes:
            message = (
                f"the parents' results have more than 64 KiB together, and this one of {self.left_out_bytes} bytes is"
                " left out; read it by ctx.parent(key), or await ctx.parent_async(key)"
            )
            raise LookupError(message)
        return self._result

    def __repr__(self) -> str:
        """Return its run and state."""
        return f"Parent({self.run_id!r}, {self.status!r})"


class Completing(Protocol):
    """Completion of a run inside a transaction of its handler."""

    def complete_in(self, connection: "Connection[object]", result: object) -> None:
        """As `Context.complete_in`."""
        ...

    async def complete_in_async(self, connection: "AsyncConnection[object]", result: object) -> None:
        """As `Context.complete_in_async`."""
        ...


class HandlerChannel(Protocol):
    """The connection from a handler to its executor: calls, or a pipe from the handler's own process."""

    def heartbeat(self, progress: bytes | None, checkpoint: bytes | None) -> None:
        """Record a heartbeat with JSON texts to be saved; never waits."""
        ...

    def wait_saved(self) -> None:
        """Wait until what was recorded is saved."""
        ...

    def previous(self) -> Previous:
        """Look up the job's earlier runs; waits for the database."""
        ...

    def parents(self, key: str | None) -> Mapping[str, Parent]:
        """Look up the parents' runs in the occurrence, or that of one parent; waits for the database."""
        ...

    def add_runs(self, document: bytes) -> bool:
        """Add runs to the batch of the run; return False if it has them already; waits for the database."""
        ...

    def completing(self) -> Completing:
        """Return the completion of the attempt's run inside a transaction of its handler."""
        ...


class NoChannel:
    """The channel of a context that no executor created, as in a unit test of a handler."""

    def heartbeat(self, progress: bytes | None, checkpoint: bytes | None) -> None:
        """Do nothing."""

    def wait_saved(self) -> None:
        """Return at once."""

    def previous(self) -> Previous:
        """Return that there are no earlier runs."""
        return Previous()

    def parents(self, key: str | None) -> Mapping[str, Parent]:
        """Return that there are no parents."""
        del key
        return {}

    def add_runs(self, document: bytes) -> bool:
        """Refuse: there is no run whose batch gets them."""
        del document
        message = "this context has no run; tidewheel.testing.run_handler creates one that accepts ctx.batch.add"
        raise RuntimeError(message)

    def completing(self) -> Completing:
        """Refuse: there is no run to complete."""
        message = "this context has no run; tidewheel.testing.run_handler creates one that accepts complete_in"
        raise RuntimeError(message)


def refuse_loop(method: str, arguments: str) -> None:
    """Refuse a call that blocks, on the event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    message = f"ctx.{method}({arguments}) would block the event loop; write `await ctx.{method}_async({arguments})`"
    raise RuntimeError(message)
