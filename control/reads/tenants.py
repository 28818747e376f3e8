"""Read tenants: their limits, and what they use.

The operator owns the rows of `tenants`. A list for an unknown tenant is refused, because it would only be empty.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal, cast

from psycopg.rows import class_row

from tidewheel.errors import UnknownTenant
from tidewheel.ids import first_run_id
from tidewheel.postgres.database_clock import read_now
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements
from tidewheel.runs import IN_FLIGHT, RunState

_SQL = Statements("tidewheel.control")
_FIND_TENANT = _SQL["find_tenant"]
_LIST_TENANTS = _SQL["list_tenants"]
_SHOW_TENANT = _SQL["show_tenant"]
_COUNT_OPEN_RUNS = _SQL["count_open_runs"]
_COUNT_FINISHED_RUNS = _SQL["count_finished_runs"]
_COUNT_TENANT_JOBS = _SQL["count_tenant_jobs"]

MAX_COUNTED = 5_000
"""The rows of a kind that the usage of a tenant counts: more are shown as at least so many."""
_DAY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class TenantSummary:
    """A tenant with its limits; a limit that is None is no bound.

    Args:
        tenant: Its name.
        created_at: When it was created.
        triggers_per_second: The runs a second that may become due; more are delayed.
        in_flight: The runs that may be active at once; more wait.
        jobs: The number of its jobs.
        payload_bytes: The size of a payload.
        paused_at: When it was paused; None if it is not.
    """

    tenant: str
    created_at: datetime
    triggers_per_second: float | None
    in_flight: int | None
    jobs: int | None
    payload_bytes: int | None
    paused_at: datetime | None

    @property
    def state(self) -> Literal["active", "paused"]:
        """The state in one word."""
        return "active" if self.paused_at is None else "paused"


@dataclass(frozen=True, slots=True)
class Count:
    """A number of rows; `at_least` if there may be more."""

    count: int
    at_least: bool


@dataclass(frozen=True, slots=True)
class TenantUsage:
    """Present usage of a tenant.

    Args:
        tenant: Its name with its limits.
        open_runs: The number of its open runs.
        in_flight: How many of those are active: they run, or wait for an external completion.
        waiting: How many of those wait to start: for their time, a slot, a place or another run.
        finished_runs: The number of its runs of the last 24 hours that have ended, by their scheduled times.
        jobs: The number of its jobs.
    """

    tenant: TenantSummary
    open_runs: Count
    in_flight: Count
    waiting: Count
    finished_runs: Count
    jobs: Count


def require_tenant(connection: Conn, tenant: str) -> None:
    """Check that a tenant exists.

    Raises:
        UnknownTenant: There is none.
    """
    if connection.execute(_FIND_TENANT, {"tenant": tenant}).fetchone() is None:
        raise UnknownTenant(tenant)


def list_tenants(connection: Conn, *, after: str = "", limit: int = 50) -> list[TenantSummary]:
    """Return a page of the tenants, in the order of their names."""
    with connection.cursor(row_factory=class_row(TenantSummary), binary=True) as cursor:
        return cursor.execute(_LIST_TENANTS, {"after": after, "limit": limit}).fetchall()


def show_tenant(connection: Conn, tenant: str) -> TenantSummary:
    """Return a tenant.

    Raises:
        UnknownTenant: There is none.
    """
    with connection.cursor(row_factory=class_row(TenantSummary), binary=True) as cursor:
        found = cursor.execute(_SHOW_TENANT, {"tenant": tenant}).fetchone()
    if found is None:
        raise UnknownTenant(tenant)
    return found


def tenant_usage(connection: Conn, tenant: str) -> TenantUsage:
    """Return what a tenant uses; no read looks at more than some thousand rows.

    Raises:
        UnknownTenant: There is none.
    """
    summary = show_tenant(connection, tenant)
    columns: dict[str, object] = {
        "tenant": tenant,
        "limit": MAX_COUNTED + 1,
        "first_id": first_run_id(read_now(connection) - _DAY),
    }
    found = connection.execute(_COUNT_OPEN_RUNS, columns, binary=True).fetchall()
    states: Mapping[RunState, int] = {RunState(state): count for state, count in cast("list[tuple[str, int]]", found)}
    opened = sum(states.values())
    more = opened > MAX_COUNTED
    active = sum(count for state, count in states.items() if state in IN_FLIGHT)
    finished = connection.execute(_COUNT_FINISHED_RUNS, columns, binary=True).fetchone()
    jobs, looked_at = cast("tuple[int, int]", connection.execute(_COUNT_TENANT_JOBS, columns, binary=True).fetchone())
    return TenantUsage(
        summary,
        Count(min(opened, MAX_COUNTED), more),
        Count(active, more),
        Count(opened - active, more),
        _count(cast("tuple[int]", finished)[0]),
        Count(min(jobs, MAX_COUNTED), looked_at > MAX_COUNTED),
    )


def _count(number: int) -> Count:
    return Count(min(number, MAX_COUNTED), number > MAX_COUNTED)
