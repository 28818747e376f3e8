"""Tidewheel: a distributed job scheduler on PostgreSQL and Kafka.

The documented names are resolved on first use, so that importing one part does not import all others.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidewheel.control.client.async_client import AsyncClient
    from tidewheel.control.client.client import Client
    from tidewheel.control.client.enqueue import enqueue, enqueue_async
    from tidewheel.control.client.own_runs import cancel, cancel_async, status, status_async
    from tidewheel.errors import AttemptOver, Cancel, Permanent, RetryAfter, Snooze
    from tidewheel.executor.chunk import Chunk, Item
    from tidewheel.executor.context import Context
    from tidewheel.executor.handlers import handler

__all__ = [
    "AsyncClient",
    "AttemptOver",
    "Cancel",
    "Chunk",
    "Client",
    "Context",
    "Item",
    "Permanent",
    "RetryAfter",
    "Snooze",
    "cancel",
    "cancel_async",
    "enqueue",
    "enqueue_async",
    "handler",
    "status",
    "status_async",
]

_WHERE = {
    "AsyncClient": "tidewheel.control.client.async_client",
    "Client": "tidewheel.control.client.client",
    "enqueue": "tidewheel.control.client.enqueue",
    "enqueue_async": "tidewheel.control.client.enqueue",
    "cancel": "tidewheel.control.client.own_runs",
    "cancel_async": "tidewheel.control.client.own_runs",
    "status": "tidewheel.control.client.own_runs",
    "status_async": "tidewheel.control.client.own_runs",
    "AttemptOver": "tidewheel.errors",
    "Cancel": "tidewheel.errors",
    "Permanent": "tidewheel.errors",
    "RetryAfter": "tidewheel.errors",
    "Snooze": "tidewheel.errors",
    "Chunk": "tidewheel.executor.chunk",
    "Context": "tidewheel.executor.context",
    "Item": "tidewheel.executor.chunk",
    "handler": "tidewheel.executor.handlers",
}


def __getattr__(name: str) -> object:
    """Import a documented name from where it is defined."""
    if name not in _WHERE:
        raise AttributeError(f"module 'tidewheel' has no attribute {name!r}")
    return getattr(import_module(_WHERE[name]), name)
