"""Limit the runs of a tenant in flight, by the row of `run_keys` with an empty key (ADR 0053).

The claim decides. A claimer knows the limited tenants from a read each second. It sends their runs to the claims that
take places, which lock the tenant's row last. So runs of other tenants read and write nothing more.

When a limit begins, runs have started without a place. The scheduler marks and counts these until ten seconds later,
when no claimer can have an older list.
"""

import math
from collections.abc import Collection
from datetime import timedelta
from typing import NamedTuple, cast
from uuid import UUID

from tidewheel.clock import monotonic_seconds
from tidewheel.ids import tenant_key_id
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements
from tidewheel.runs import IN_FLIGHT, Gate
from tidewheel.transitions.installation import Installation
from tidewheel.transitions.run_keys import settle_keys

_SQL = Statements("tidewheel.transitions")
_FIND_LIMITED_TENANTS = _SQL["find_limited_tenants"]
_PUT_TENANT_KEY = _SQL["put_tenant_key"]
_COUNT_STARTED_RUNS = _SQL["count_started_runs"]
_ADD_COUNTED_RUNS = _SQL["add_counted_runs"]

_MAX_READ = 2000  # open runs in one transaction: about twenty milliseconds if all are counted
COUNTED_FOR = timedelta(seconds=10)
_FRESH_SECONDS = 1.0


class LimitedTenants:
    """The tenants that limit their runs in flight, as one thread reads them once a second."""

    def __init__(self) -> None:
        self.known: Collection[str] = frozenset()
        self._until = -math.inf

    def read(self, connection: Conn) -> Collection[str]:
        """Return their names, in a transaction that claims."""
        now = monotonic_seconds()
        if now >= self._until:
            self.known = frozenset(str(row[0]) for row in connection.execute(_FIND_LIMITED_TENANTS))
            self._until = now + _FRESH_SECONDS
        return self.known


def limit_in_flight(connection: Conn, installation: Installation, tenant: str, at_once: int | None) -> int:
    """Write the limit of a tenant and give free places to waiting runs; return the number that got one."""
    key = tenant_key_id(tenant)
    connection.execute(_PUT_TENANT_KEY, {"key_id": key, "tenant": tenant, "at_once": at_once})
    return settle_keys(connection, installation, woken=[key]).promoted


class Count(NamedTuple):
    """The runs that a step counted and read, and the run to go on after; None at the end."""

    counted: int
    read: int
    after: UUID | None


def count_started_runs(connection: Conn, tenant: str, after: UUID) -> Count:
    """Count the runs that have started without a place, among the next open runs of a tenant by id."""
    columns: dict[str, object] = {
        "tenant": tenant,
        "states": list(IN_FLIGHT),
        "holds": Gate.HOLDS_TENANT,
        "after": after,
        "limit": _MAX_READ,
    }
    row = connection.execute(_COUNT_STARTED_RUNS, columns, binary=True).fetchone()
    assert row is not None  # noqa: S101 - an aggregate
    counted, read, last = cast("tuple[int, int, UUID | None]", row)
    if counted:
        connection.execute(_ADD_COUNTED_RUNS, {"key_id": tenant_key_id(tenant), "runs": counted})
    return Count(counted, read, last if read == _MAX_READ else None)
