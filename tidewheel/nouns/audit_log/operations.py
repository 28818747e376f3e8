"""`client.audit_log`: list changes and operations with their actors."""

from typing import Annotated, Unpack

from pydantic import Field

from tidewheel.api_keys import Scope
from tidewheel.nouns.audit_log.model import AuditFilter, AuditLogPage
from tidewheel.nouns.audit_log.reads import list_audit_log
from tidewheel.nouns.operation import Noun, Place, Rows, operation

_AllTenants = Annotated[bool, Field(description="The entries of every tenant and of the whole installation.")]


class AuditLog(Noun):
    """Reads of the audit log."""

    @operation(
        "GET /api/v1/audit-log",
        "list_audit_log",
        scope=Scope.ADMIN,
        authorize=lambda given: Scope.ADMIN if given.get("all_tenants") else None,
    )
    def list(
        self,
        *,
        after: Place | None = None,
        all_tenants: _AllTenants = False,
        limit: Rows = 50,
        **fits: Unpack[AuditFilter],
    ) -> AuditLogPage:
        """List changes and operations with actor, door, result and reason, the newest first.

        Accepted triggers and unchanged submits are not recorded. Nothing verifies an actor that has a question mark.
        """
        with self._call.snapshot(all_tenants=all_tenants) as connection:
            tenant = None if all_tenants else self._call.tenant
            return list_audit_log(connection, tenant, after=after, limit=limit, **fits)
