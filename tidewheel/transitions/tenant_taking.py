"""Take a tenant that is to be deleted.

From the commit on no request finds it, and its keys open nothing. An operator takes it at once, a scheduler when the
time of grace is over. `scheduler/tenant_deletions.py` does the rest.

A service that imports this module gets the right to delete tenants.
"""

from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements
from tidewheel.transitions.tenant_refusals import TENANT_DELETED

_SQL = Statements("tidewheel.transitions")


def take_tenant(connection: Conn, tenant: str, *, at_once: bool) -> bool:
    """Record the deletion of a tenant, in the caller's transaction; `cancel_tenant` follows.

    Returns:
        False if there is no such tenant, or its time has not come.
    """
    columns: dict[str, object] = {"tenant": tenant, "at_once": at_once}
    taken = connection.execute(_SQL["take_tenant"], columns, binary=True).fetchone()
    if taken is None:
        return False
    connection.execute(_SQL["add_deletion"], {**columns, "created_at": taken[0]})
    connection.execute(_SQL["revoke_keys_of"], columns)
    return True


def cancel_tenant(connection: Conn, tenant: str) -> None:
    """Cancel all runs of a tenant, also those to come."""
    connection.execute(_SQL["cancel_tenant"], {"tenant": tenant, "reason": TENANT_DELETED})
