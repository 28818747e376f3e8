"""Pages and actions of the fleet, tenants, keys, audit log, calendars and questions by address."""

from collections.abc import Mapping

from tidewheel.control.console.actions import Action
from tidewheel.control.console.ask import AskPage
from tidewheel.control.console.audit import AuditLogPage
from tidewheel.control.console.calendar_actions import DeleteCalendar, NewCalendar, PutCalendar
from tidewheel.control.console.calendars import CalendarPage, CalendarsPage
from tidewheel.control.console.fleet import FleetPage, RunDoctor
from tidewheel.control.console.tenant_actions import DeleteTenant, LimitTenant, NewTenant, UndeleteTenant
from tidewheel.control.console.tenants import TenantPage, TenantsPage
from tidewheel.control.console.view import Page
from tidewheel.control.doctor.doctor import Doctor
from tidewheel.nouns.api_keys.pages import KeysPage, NewKey, RevokeKey

ACTIONS: Mapping[str, Action] = {
    "/admin/new-tenant": NewTenant(),
    "/admin/tenants/{name}/limits": LimitTenant(),
    "/admin/tenants/{name}/delete": DeleteTenant(),
    "/admin/tenants/{name}/undelete": UndeleteTenant(),
    "/admin/new-key": NewKey(),
    "/admin/keys/{key_id}/revoke": RevokeKey(),
    "/new-calendar": NewCalendar(),
    "/calendars/{name}/edit": PutCalendar(),
    "/calendars/{name}/delete": DeleteCalendar(),
}


def pages(shards: int, doctor: Doctor) -> Mapping[str, Page]:
    """Return the pages."""
    return {
        "/ask": AskPage(),
        "/fleet": FleetPage(shards, doctor),
        "/admin/tenants": TenantsPage(),
        "/admin/tenants/{name}": TenantPage(),
        "/admin/keys": KeysPage(),
        "/admin/audit": AuditLogPage(),
        "/calendars": CalendarsPage(),
        "/calendars/{name}": CalendarPage(),
    }


def actions(doctor: Doctor) -> Mapping[str, Action]:
    """Return the actions."""
    return {**ACTIONS, "/fleet/doctor": RunDoctor(doctor)}
