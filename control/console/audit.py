"""The audit log: who changed what, when, by which door. Rows lead to what they are about."""

from typing import ClassVar

from starlette.requests import Request

from tidewheel.api_keys import Scope
from tidewheel.audit import ALL_TENANTS
from tidewheel.control.api.authorization import Caller
from tidewheel.control.api.request_input import Cursors, PageQuery
from tidewheel.control.client.connection import Connection
from tidewheel.control.console.urls import Urls
from tidewheel.control.console.view import View, list_view, page_now, read_filters
from tidewheel.doors.address import after_of, next_cursor, query_with
from tidewheel.ids import job_id
from tidewheel.nouns.audit_log.operations import AuditEntry, AuditLog, list_audit_log
from tidewheel.nouns.audit_log.operations import AuditLogPage as Entries
from tidewheel.nouns.operation import operations

_ACTIONS = (
    "job.submit", "job.delete", "job.pause", "job.resume", "run.cancel", "run.retry", "freeze", "thaw", "calendar.put",
    "tenant.limits", "key.create", "key.revoke",
)  # fmt: skip
"""Actions that the field proposes; every other one is found too."""

# With the name of the id in their address.
_PAGES = {"run": "run_id", "workflow": "root_run_id", "batch": "batch_id", "calendar": "name"}

_LIST = operations(AuditLog)["list"]
_QUERY, _NAMES = query_with(PageQuery, _LIST, _LIST.parameters)


class AuditLogPage:
    """The audit log."""

    template: ClassVar[str] = "audit.html"
    scope = Scope.ADMIN

    def read(self, connection: Connection, caller: Caller, request: Request, urls: Urls) -> View:
        """List entries, the newest first: those of every tenant, unless the address names one."""
        now = page_now(connection)
        query, errors = read_filters(request, _QUERY, now)
        tenant = None if caller.all_tenants and "tenant" not in request.query_params else caller.tenant
        given = {name: getattr(query, spoken) for name, spoken in _NAMES.items() if name != "all_tenants"}

        def listed() -> tuple[Entries, str | None]:
            cursors = Cursors.of_list("audit", query, tenant or ALL_TENANTS)
            with connection.snapshot(all_tenants=tenant is None) as reading:
                page = list_audit_log(reading, tenant, after=after_of(cursors, _LIST), **given)
            return page, next_cursor(cursors, page.next_cursor)

        def rows(page: Entries) -> dict[str, object]:
            return {"rows": [(each, _link(each, caller, urls)) for each in page.entries], "every": tenant is None}

        found = list_view("audit", query, listed, errors=errors, now=now, urls=urls, of_page=rows)
        return View({**found.values, "actions": _ACTIONS}, found.status)


def _link(entry: AuditEntry, caller: Caller, urls: Urls) -> str | None:
    """Return the address of what an entry is about; None if it has no page."""
    kind, _, name = entry.object.partition("/")
    tenant = entry.tenant if caller.all_tenants and entry.tenant != ALL_TENANTS else None
    parts = {"tenant": tenant} if tenant else {}
    if kind == "job" and name:
        return urls.job(name, job_id(entry.tenant, name), **parts)
    if kind in _PAGES and name:
        return urls(kind, **{_PAGES[kind]: name}, **parts)
    if kind == "tenant" and name:
        return urls("tenant", name=name)
    return urls("keys") if kind == "key" else None
