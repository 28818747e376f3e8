"""Refuse an unknown tenant, for which a list would only be empty.

The operator owns the rows of `tenants`.
"""

from tidewheel.errors import UnknownTenant
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements

_FIND_TENANT = Statements("tidewheel.control")["find_tenant"]


def require_tenant(connection: Conn, tenant: str) -> None:
    """Check that a tenant exists.

    Raises:
        UnknownTenant: There is none.
    """
    if connection.execute(_FIND_TENANT, {"tenant": tenant}).fetchone() is None:
        raise UnknownTenant(tenant)
