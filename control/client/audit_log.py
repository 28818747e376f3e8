"""`client.audit_log`: list changes and operations with their actors."""

from typing import Unpack

from tidewheel.control.client.arguments import as_int
from tidewheel.control.client.connection import Connection
from tidewheel.control.reads.audit_log import AuditFilter, AuditPage, Place, list_audit_log


class AuditLog:
    """Reads of the audit log."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def list(
        self,
        *,
        all_tenants: bool = False,
        after: Place | None = None,
        limit: int = 50,
        **fits: Unpack[AuditFilter],
    ) -> AuditPage:
        """List a page of entries of the tenant, or of all with the installation's, after the `next` before."""
        with self._connection.snapshot(all_tenants=all_tenants) as connection:
            tenant = None if all_tenants else self._connection.tenant
            return list_audit_log(connection, tenant, after=after, limit=as_int(limit, "limit"), **fits)
