"""Reads of tenants: their limits, their periods of retention, and what they use.

The operator owns the rows of `tenants`. A list for an unknown tenant is refused, because it would only be empty.
"""

from collections.abc import Mapping
from dataclasses import fields
from datetime import timedelta
from typing import Any, cast

from psycopg.rows import args_row

from tidewheel.errors import UnknownTenant
from tidewheel.ids import first_run_id
from tidewheel.jobs.values import is_tenant
from tidewheel.nouns.operation import Page
from tidewheel.nouns.tenants.model import Count, TenantDeletion, TenantPeriod, TenantSummary, TenantUsage
from tidewheel.postgres.database_clock import read_now
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements
from tidewheel.runs import IN_FLIGHT, RunState
from tidewheel.transitions.tenant_refusals import refusals_of

_SQL = Statements("tidewheel.nouns.tenants")
_FIND_TENANT = _SQL["find_tenant"]
_LIST_TENANTS = _SQL["list_tenants"]
_SHOW_TENANT = _SQL["show_tenant"]
_COUNT_OPEN_RUNS = _SQL["count_open_runs"]
_COUNT_FINISHED_RUNS = _SQL["count_finished_runs"]
_COUNT_TENANT_JOBS = _SQL["count_tenant_jobs"]
_READ_TENANT_PERIODS = _SQL["read_tenant_periods"]
MAX_COUNTED = 5_000
"""The rows of a kind that the usage of a tenant counts: more are shown as at least so many."""
_DAY = timedelta(days=1)
_NAMES = [each.name for each in fields(TenantSummary)][:-1]  # columns of a tenant before those of its deletion


def require_tenant(connection: Conn, tenant: str) -> None:
    """Check that a tenant exists and is not deleted, or raise UnknownTenant."""
    if connection.execute(_FIND_TENANT, {"tenant": tenant}).fetchone() is None:
        raise refusals_of(connection, [tenant])[tenant]


def ensure_seen(name: str, only: str | None) -> str:
    """Return a name; raise UnknownTenant if it is none, or not that of the only tenant that a caller sees."""
    if not is_tenant(name) or only not in {None, name}:
        raise UnknownTenant(name[:64])
    return name


def list_tenants(connection: Conn, *, after: str | None = None, limit: int = 50) -> Page[TenantSummary]:
    """Return a page of the tenants, in the order of their names; deleted ones until their names are free."""
    columns: dict[str, object] = {"after": after or "", "limit": limit + 1}
    with connection.cursor(row_factory=args_row(_summary), binary=True) as cursor:
        found = cursor.execute(_LIST_TENANTS, columns).fetchall()
    return Page(found[:limit], found[limit - 1].tenant if len(found) > limit else None)


def show_tenant(connection: Conn, tenant: str) -> TenantSummary:
    """Return a tenant, even one being deleted or with a reserved name, or raise UnknownTenant."""
    with connection.cursor(row_factory=args_row(_summary), binary=True) as cursor:
        found = cursor.execute(_SHOW_TENANT, {"tenant": tenant}).fetchone()
    if found is None:
        raise UnknownTenant(tenant)
    return found


def tenant_usage(connection: Conn, tenant: str) -> TenantUsage:
    """Return what a tenant uses, or raise UnknownTenant; no read looks at more than some thousand rows."""
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


def tenant_periods(connection: Conn, tenant: str) -> list[TenantPeriod]:
    """Return the shorter periods of a tenant; raise UnknownTenant if it does not exist any more."""
    require_tenant(connection, tenant)
    with connection.cursor(row_factory=args_row(TenantPeriod), binary=True) as cursor:
        return cursor.execute(_READ_TENANT_PERIODS, {"tenant": tenant}).fetchall()


def _count(number: int) -> Count:
    return Count(min(number, MAX_COUNTED), number > MAX_COUNTED)


def _summary(*row: Any) -> TenantSummary:  # noqa: ANN401 - the values of `tenant_columns`
    accepted_at, *_ = deletion = row[len(_NAMES) :]
    limits = dict(zip(_NAMES, row, strict=False))
    return TenantSummary(**limits, deletion=None if accepted_at is None else TenantDeletion(*deletion))
