"""Tenants: their usage beside their limits. A key of one tenant sees its own."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import ClassVar

from starlette.requests import Request

from tidewheel.api_keys import Scope
from tidewheel.control.api.callers import Caller
from tidewheel.control.api.queries import Cursors, PageQuery, TenantQuery, read_query
from tidewheel.control.client.connection import Connection
from tidewheel.control.client.tenants import DEFAULT_TENANT, Tenants
from tidewheel.control.console.job_strip import Strip, strip_of_bins
from tidewheel.control.console.listing import list_view
from tidewheel.control.console.urls import Urls
from tidewheel.control.console.view import Failed, View, page_now, part, read_filters
from tidewheel.control.console.words import NONE, number
from tidewheel.control.reads.activity import read_activity
from tidewheel.control.reads.tenants import Count, TenantSummary, TenantUsage, list_tenants
from tidewheel.errors import UnknownTenant
from tidewheel.jobs.values import Tenant, is_tenant

_CHOSEN_FROM = 50
_HOUR, _BINS = timedelta(hours=1), 20  # of a strip
_SHOWN = 20  # of a page: each has three bounded counts


@dataclass(frozen=True, slots=True)
class Gauge:
    """A usage beside its limit.

    Args:
        used: The usage; None where nothing counts it.
        limit: The limit; None for no bound.
        has_ended: True if the deletion of the tenant has ended its limits.
    """

    name: str
    label: str
    used: Count | None
    limit: float | None
    unit: str = ""
    has_ended: bool = False

    @property
    def words(self) -> str:
        """Usage and limit in words."""
        most = "no limit" if self.limit is None else f"{self.limit:,g}{self.unit}"
        if self.used is None:
            return NONE if self.has_ended else most
        used = number(self.used.count, at_least=self.used.at_least)
        if self.has_ended:
            return f"{used} left"
        return f"{used}, no limit" if self.limit is None else f"{used} of {most}"

    @property
    def share(self) -> int | None:
        """The part of the limit in use, in percent; None without either."""
        if self.used is None or not self.limit:
            return None
        return min(round(100 * self.used.count / self.limit), 100)


def gauges(tenant: TenantSummary, usage: TenantUsage | Failed | None) -> Sequence[Gauge]:
    """Return the usage of a tenant beside its limits."""
    known = usage if isinstance(usage, TenantUsage) else None
    gauge = partial(Gauge, has_ended=tenant.deletion is not None)
    return (
        gauge("jobs", "jobs", known.jobs if known else None, tenant.jobs),
        gauge("in_flight", "active runs", known.in_flight if known else None, tenant.in_flight),
        gauge("triggers_per_second", "triggers", None, tenant.triggers_per_second, " per second"),
        gauge("payload_bytes", "payload", None, tenant.payload_bytes, " bytes"),
        gauge("keys", "API keys", None, tenant.keys),
        gauge("key_rate", "API requests", None, tenant.key_rate, " per second"),
        gauge("weight", "weight", None, tenant.weight),
    )


@dataclass(frozen=True, slots=True)
class TenantsPage:
    """The list of tenants."""

    template: ClassVar[str] = "tenants.html"
    place: ClassVar[str] = "admin"
    scope = Scope.ADMIN

    def read(self, connection: Connection, caller: Caller, request: Request, urls: Urls) -> View:
        """List tenants with their usage; lead a key of one tenant to its own."""
        if not caller.all_tenants:
            return View({}, moved_to=urls("tenant", name=caller.tenant))
        query, errors = read_filters(request, PageQuery)
        limit = min(query.limit, _SHOWN)

        def listed() -> tuple[Sequence[TenantSummary], str | None]:
            cursors = Cursors.of_list("tenants", query, caller.tenant)
            [after] = cursors.read(Tenant) or [""]
            with connection.snapshot(all_tenants=True) as reading:
                found = list_tenants(reading, after=after, limit=limit + 1)
            page = found[:limit]
            return page, cursors.write(page[-1].tenant) if len(found) > limit else None

        tenants = Tenants(connection)

        def row(each: TenantSummary) -> tuple[TenantSummary, Sequence[Gauge]]:
            return each, gauges(each, part(lambda: tenants.usage(each.tenant)))

        def rows(page: Sequence[TenantSummary]) -> dict[str, object]:
            return {"rows": [row(each) for each in page]}

        return list_view("tenants", query, listed, errors=errors, now=page_now(connection), urls=urls, of_page=rows)


@dataclass(frozen=True, slots=True)
class TenantPage:
    """The page of a tenant."""

    template: ClassVar[str] = "tenant.html"
    place: ClassVar[str] = "admin"
    scope = Scope.ADMIN

    def read(self, connection: Connection, caller: Caller, request: Request, urls: Urls) -> View:
        """Read the tenant, its usage and its periods."""
        del urls
        read_query(request, TenantQuery)
        name, tenants = named_tenant(request, caller), Tenants(connection)
        tenant = tenants.get(name)
        usage = part(lambda: tenants.usage(name)) if tenant.deletion is None else None
        now = page_now(connection)
        ended = part(lambda: _ended_strip(connection, name, now)) if tenant.deletion is None else None
        periods = part(lambda: tenants.retention(name)) if tenant.deletion is None else ()
        return View(
            {
                "now": now, "tenant": tenant, "usage": usage, "gauges": gauges(tenant, usage), "ended": ended,
                "periods": periods, "may_change": caller.all_tenants, "is_default": name == DEFAULT_TENANT,
            }
        )  # fmt: skip


def _ended_strip(connection: Connection, name: str, now: datetime) -> Strip:
    """Return the runs of a tenant that ended in the last hour."""
    edges = [now - _HOUR + _HOUR * at / _BINS for at in range(_BINS + 1)]
    with connection.snapshot(all_tenants=True) as reading:
        return strip_of_bins(read_activity(reading, name, edges).bins)


def named_tenant(request: Request, caller: Caller) -> str:
    """Return the tenant that an address names.

    Raises:
        UnknownTenant: It is no name; or the key belongs to another tenant, whether this one exists or not.
    """
    name = str(request.path_params["name"])
    if not is_tenant(name) or not (caller.all_tenants or name == caller.tenant):
        raise UnknownTenant(name[:64])
    return name


def tenant_names(connection: Connection) -> Sequence[str]:
    """Return the tenants among which the top bar lets choose; none if they are too many for a list."""
    with connection.snapshot(all_tenants=True) as reading:
        found = list_tenants(reading, limit=_CHOSEN_FROM + 1)
    return [each.tenant for each in found] if len(found) <= _CHOSEN_FROM else ()
