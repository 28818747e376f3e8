"""The audit log: `/api/v1/audit-log`. By the code of the command line."""

from dataclasses import dataclass
from typing import Annotated, Literal

from fastapi import APIRouter
from pydantic import AfterValidator
from starlette.requests import Request
from starlette.responses import Response

from tidewheel.api_keys import Scope
from tidewheel.audit import MAX_OBJECT
from tidewheel.control.api import examples
from tidewheel.control.api.answers import answer
from tidewheel.control.api.callers import Admin, ensure_all_tenants
from tidewheel.control.api.openapi import add_route
from tidewheel.control.api.queries import Cursors, Flag, PageQuery, Text, Whole, read_query
from tidewheel.control.api.workers import Workers
from tidewheel.control.client.connection import Connection
from tidewheel.control.reads.audit_log import AuditEntry, AuditFilter, list_audit_log
from tidewheel.jobs.values import Instant, one_line

_KEYS = "/api/v1/keys"


class AuditQuery(PageQuery):
    """Filter of the audit log.

    Attributes:
        all_tenants: True for the entries of every tenant and of the whole installation.
        since: Only entries of this instant or later.
        until: Only entries before this instant.
        actor: Only those of this key, user, message or named person.
        object: Only those of this object, such as job/nightly.
        action: Only this action, such as job.submit.
        door: Only by this door.
    """

    all_tenants: Flag = False
    since: Instant | None = None
    until: Instant | None = None
    actor: Text | None = None
    object: Annotated[str, AfterValidator(one_line(MAX_OBJECT))] | None = None
    action: Text | None = None
    door: Literal["rest", "kafka", "cli", "client", "console"] | None = None


@dataclass(frozen=True, slots=True)
class AuditLogPage:
    """Entries of the audit log, the newest first. A page may be empty and have a cursor."""

    entries: tuple[AuditEntry, ...]
    next_cursor: str | None


@dataclass(frozen=True, slots=True)
class AuditLogApi:
    """Calls about the audit log."""

    reads: Workers

    def add_to(self, router: APIRouter) -> None:
        """Add the route."""
        add_route(
            router, "GET", "/api/v1/audit-log", self.list_audit_log, scope=Scope.ADMIN, query=AuditQuery,
            answer=AuditLogPage, example=examples.AUDIT_LOG,
        )  # fmt: skip

    async def list_audit_log(self, request: Request, caller: Admin) -> Response:
        """List changes and operations with their actors, the newest first."""
        query = read_query(request, AuditQuery)
        if query.all_tenants:
            ensure_all_tenants(caller)
        tenant = None if query.all_tenants else caller.tenant
        cursors = Cursors.of(request, query, caller.tenant)
        place = cursors.read(Instant, Whole)
        after = None if place is None else (place[0], place[1])
        fits: AuditFilter = {
            "since": query.since, "until": query.until, "actor": query.actor, "object": query.object,
            "action": query.action, "door": query.door,
        }  # fmt: skip

        def read(connection: Connection) -> AuditLogPage:
            with connection.snapshot(all_tenants=tenant is None) as reading:
                page = list_audit_log(reading, tenant, after=after, limit=query.limit, **fits)
            return AuditLogPage(tuple(page.entries), cursors.write(*page.next or [None]))

        return await answer(self.reads, caller, read)
