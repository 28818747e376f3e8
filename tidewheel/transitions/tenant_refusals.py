"""Refuse a tenant that does not exist, with the reason if it was deleted.

A tenant has a row in `tenants`. From the acceptance of its deletion until its name is free it has one in
`tenant_deletions` instead. So what finds tenants needs no condition, and only a refusal reads the second table.
"""

from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING, cast

from tidewheel.errors import TenantDeleted, UnknownTenant
from tidewheel.postgres.pg_binary import texts
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements

if TYPE_CHECKING:
    from tidewheel.kafka.topics import Topics  # lists that the command line prints need no Kafka client

_SQL = Statements("tidewheel.transitions")

TENANT_DELETED = "tenant_deleted"
"""Reason of what ends because its tenant is deleted; also the author of the cancellation of its runs."""


def refusals_of(connection: Conn, tenants: Iterable[str]) -> dict[str, UnknownTenant]:
    """Return the refusal of each of these tenants, none of which has a row in `tenants`."""
    wanted = sorted(set(tenants))
    return {tenant: UnknownTenant(tenant) for tenant in wanted} | deletions_of(connection, wanted)


def deletions_of(connection: Conn, tenants: Iterable[str]) -> dict[str, UnknownTenant]:
    """Return the refusals of those of these tenants that are being deleted, or whose names are reserved."""
    found = connection.execute(_SQL["find_deletions"], {"tenants": texts(sorted(set(tenants)))}, binary=True).fetchall()
    rows = cast("list[tuple[str, datetime | None, bool]]", found)
    return {tenant: TenantDeleted(tenant, free_at, in_archive=in_archive) for tenant, free_at, in_archive in rows}


def topics_to_read(connection: Conn, topics: "Topics", names: Iterable[str]) -> list[str]:
    """Return the topics of requests to read: those of a tenant only if it exists, or is being deleted."""
    found = topics.all_requests(names)
    tenants = {topic: tenant for topic in found if (tenant := topics.tenant_of(topic)) is not None}
    if not tenants:
        return found
    columns = {"tenants": texts(sorted(tenants.values()))}
    rows = cast("list[tuple[str]]", connection.execute(_SQL["find_read_tenants"], columns, binary=True).fetchall())
    read = {tenant for (tenant,) in rows}
    return [topic for topic in found if topic not in tenants or tenants[topic] in read]
