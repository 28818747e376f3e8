"""Refuse a tenant that does not exist, with the reason if it was deleted.

A tenant has a row in `tenants`. From the acceptance of its deletion until its name is free it has one in
`tenant_deletions` instead. So what finds tenants needs no condition, and only a refusal reads the second table.
"""

from collections.abc import Iterable
from datetime import datetime
from typing import cast

from tidewheel.errors import TenantDeleted, UnknownTenant
from tidewheel.postgres.pg_arrays import texts
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements

_FIND_DELETIONS = Statements("tidewheel.transitions")["find_deletions"]

TENANT_DELETED = "tenant_deleted"
"""Reason of what ends because its tenant is deleted; also the author of the cancellation of its runs."""


def refusals_of(connection: Conn, tenants: Iterable[str]) -> dict[str, UnknownTenant]:
    """Return the refusal of each of these tenants, none of which has a row in `tenants`."""
    wanted = sorted(set(tenants))
    rows = connection.execute(_FIND_DELETIONS, {"tenants": texts(wanted)}, binary=True).fetchall()
    deleted = dict(cast("list[tuple[str, datetime | None]]", rows))
    return {
        tenant: TenantDeleted(tenant, deleted[tenant]) if tenant in deleted else UnknownTenant(tenant)
        for tenant in wanted
    }
