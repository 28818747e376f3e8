"""The band of every page while something that its reader sees is frozen: one read of a small table."""

from collections.abc import Mapping
from typing import cast

from tidewheel.control.client.connection import Connection
from tidewheel.control.console.listing import pairs
from tidewheel.control.console.rendering import Visitor
from tidewheel.control.reads.freezes import Freeze, standing_freezes
from tidewheel.errors import TidewheelError, Unavailable


def framed(connection: Connection, visitor: Visitor) -> Visitor:
    """Return the reader of a page with the freezes that it sees, each with the address of its thaw.

    A page does without the band if the freezes cannot be read.
    """
    try:
        with connection.snapshot() as reading:
            found = standing_freezes(reading, visitor.tenant)
    except Unavailable:
        raise
    except TidewheelError:
        return visitor
    return visitor._replace(frozen=[(each, thaw_filters(each)) for each in found])


def thaw_filters(freeze: Freeze) -> Mapping[str, object]:
    """Return the parts of the address at which a freeze is thawed."""
    document: dict[str, object] = {
        "scope": "fleet" if freeze.tenant is None else None, "queue": freeze.queue,
        "labels": dict(freeze.labels) if freeze.labels else None, "key_prefix": freeze.key_prefix,
    }  # fmt: skip
    named = {name: value for name, value in document.items() if value is not None}
    return scope_address(named or {"scope": "tenant"})


def scope_address(document: Mapping[str, object]) -> Mapping[str, object]:
    """Return a scope as parts of an address: labels as several `name=value`."""
    labels = cast("Mapping[str, str]", document.get("labels") or {})
    found = {name: value for name, value in document.items() if name != "labels"}
    return found | ({"label": pairs(labels)} if labels else {})
