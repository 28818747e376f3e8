"""Pages and actions of the fleet, tenants, keys, audit log, calendars and questions by address."""

from collections.abc import Mapping

from tidewheel.control.console.actions import Action
from tidewheel.control.console.ask import AskPage
from tidewheel.control.console.audit import AuditLogPage
from tidewheel.control.console.calendar_actions import DeleteCalendar, NewCalendar, PutCalendar
from tidewheel.control.console.calendars import CalendarPage, CalendarsPage
from tidewheel.control.console.fleet import FleetPage, RunDoctor
from tidewheel.control.console.view import Page
from tidewheel.control.doctor.doctor import Doctor
from tidewheel.nouns.api_keys.pages import KeysPage, NewKey, RevokeKey
from tidewheel.nouns.tenants.pages import DELETE, LIMIT, UNDELETE, NewTenant, TenantPage, TenantsPage

ACTIONS: Mapping[str, Action] = {
    "/admin/new-tenant": NewTenant(),
    "/admin/tenants/{name}/limits": LIMIT,
    "/admin/tenants/{name}/delete": DELETE,
    "/admin/tenants/{name}/undelete": UNDELETE,
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
