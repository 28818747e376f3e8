"""Tenants on the web: their pages, with usage beside limits, and what REST adds to its derived routes.

A key of one tenant sees its own. The body of a deletion repeats the name.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any, ClassVar, NamedTuple

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from tidewheel.api_keys import Scope
from tidewheel.control.api.answers import answer, location
from tidewheel.control.api.authorization import Admin, Caller, ensure_all_tenants
from tidewheel.control.api.openapi import add_route, body_of
from tidewheel.control.api.request_input import Cursors, PageQuery, TenantQuery, read_body, read_query
from tidewheel.control.api.workers import Workers
from tidewheel.control.client.connection import Connection
from tidewheel.control.console.actions import Dialog, Done, Field, as_shown, text_of
from tidewheel.control.console.axis import GRID, Axis, Window, axis
from tidewheel.control.console.door import Form
from tidewheel.control.console.grid import NARROW, Strip, strip
from tidewheel.control.console.urls import Urls
from tidewheel.control.console.view import Failed, View, list_view, page_now, part, read_filters
from tidewheel.control.console.words import NONE, agreed, counted, number
from tidewheel.control.instants import typed_number
from tidewheel.control.reads.workload import read_activity
from tidewheel.doors.address import after_of, next_cursor
from tidewheel.doors.rest import Route, Routes
from tidewheel.errors import FieldError, InvalidInput, refuse
from tidewheel.jobs.validation import StrictModel
from tidewheel.jobs.values import Tenant
from tidewheel.nouns.operation import Page, operations
from tidewheel.nouns.tenants.operations import DEFAULT_TENANT, GRACE, ROOT, Grace, Tenants
from tidewheel.nouns.tenants.reads import ChangedTenant, Count, TenantSummary, TenantUsage, ensure_seen, list_tenants
from tidewheel.runs import FINAL

_CHOSEN_FROM = 50
_SHOWN = 20  # of a page: each has three bounded counts
_GROUPED = re.compile(r"\d{1,3}(,\d{3})+(\.\d+)?")  # as pages show a number; 0,5 is none
_LIST = operations(Tenants)["list"]


def _ensure_seen(caller: Caller, arguments: dict[str, Any]) -> None:
    ensure_seen(arguments["name"], None if caller.all_tenants else caller.tenant)


_OF_ONE = Route(prepare=_ensure_seen)
TENANTS: Routes = {
    **{name: _OF_ONE for name, each in operations(Tenants).items() if "{tenant}" in each.route},
    "create": Route(status=HTTPStatus.CREATED),
}


class _Limit(NamedTuple):
    label: str
    unit: str
    title: str  # of its field
    effect: str


_LIMITS: Mapping[str, _Limit] = {
    "jobs": _Limit("jobs", "", "Jobs", "A new job that would exceed this number is refused."),
    "in_flight": _Limit("active runs", "", "Active runs", "So many runs are active at once; further runs wait."),
    "triggers_per_second": _Limit(
        "triggers", " per second", "Triggers per second", "Triggers above this rate are delayed."
    ),
    "payload_bytes": _Limit("payload", " bytes", "Payload, in bytes", "A larger payload is refused."),
    "keys": _Limit("API keys", "", "API keys", "The most keys that the tenant's own keys may create; 20 if empty."),
    "key_rate": _Limit(
        "API requests", " per second", "API requests per second",
        "Of all its keys together; if empty, each key has a rate of its own.",
    ),
    "weight": _Limit(
        "weight", "", "Weight",
        "This tenant's share while executors cannot keep up, 1 to 100:"
        " a tenant of weight 2 starts twice as many runs as one of weight 1.",
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Gauge:
    """A usage beside its limit."""

    name: str
    used: Count | None  # None where nothing counts it
    limit: float | None
    has_ended: bool = False  # by the deletion of the tenant

    @property
    def label(self) -> str:
        """Its name for people."""
        return _LIMITS[self.name].label

    @property
    def words(self) -> str:
        """Usage and limit in words; a count that was cut before its first row is none."""
        most = "no limit" if self.limit is None else f"{self.limit:,g}{_LIMITS[self.name].unit}"
        if self.used is None or (self.used.at_least and not self.used.count):
            return NONE if self.has_ended else most
        used = number(self.used.count, at_least=self.used.at_least)
        if self.has_ended:
            return f"{used} left"
        return used if self.limit is None else f"{used} of {most}"

    @property
    def share(self) -> int | None:
        """The part of the limit in use, in percent; None without either."""
        if self.used is None or not self.limit:
            return None
        return min(round(100 * self.used.count / self.limit), 100)


def gauges(tenant: TenantSummary, usage: TenantUsage | Failed | None) -> Sequence[Gauge]:
    """Return the usage of a tenant beside its limits."""
    used = {"jobs": usage.jobs, "in_flight": usage.in_flight} if isinstance(usage, TenantUsage) else {}
    return [Gauge(name, used.get(name), getattr(tenant, name), tenant.deletion is not None) for name in _LIMITS]


@dataclass(frozen=True, slots=True)
class TenantsPage:
    """The list of tenants."""

    template: ClassVar[str] = "tenants.html"
    scope = Scope.ADMIN

    def read(self, connection: Connection, caller: Caller, request: Request, urls: Urls) -> View:
        """List tenants with their usage; lead a key of one tenant to its own."""
        if not caller.all_tenants:
            return View({}, moved_to=urls("tenant", name=caller.tenant))
        query, errors = read_filters(request, PageQuery)
        tenants = Tenants(connection)

        def listed() -> tuple[Page[TenantSummary], str | None]:
            cursors = Cursors.of_list("tenants", query, caller.tenant)
            page = tenants.list(after=after_of(cursors, _LIST), limit=min(query.limit, _SHOWN))
            return page, next_cursor(cursors, page.next_cursor)

        def row(each: TenantSummary) -> tuple[TenantSummary, Sequence[Gauge]]:
            return each, gauges(each, part(lambda: tenants.usage(each.tenant)))

        def rows(page: Page[TenantSummary]) -> dict[str, object]:
            return {"rows": list(map(row, page))}

        return list_view("tenants", query, listed, errors=errors, now=page_now(connection), urls=urls, of_page=rows)


@dataclass(frozen=True, slots=True)
class TenantPage:
    """The page of a tenant."""

    template: ClassVar[str] = "tenant.html"
    scope = Scope.ADMIN

    def read(self, connection: Connection, caller: Caller, request: Request, urls: Urls) -> View:
        """Read the tenant, its usage and its periods."""
        read_query(request, TenantQuery)
        name, tenants = _named(request, caller), Tenants(connection)
        tenant, now = tenants.get(name), page_now(connection)
        is_here, along = tenant.deletion is None, axis(Window.HOUR, now, windows=GRID)
        usage = part(lambda: tenants.usage(name)) if is_here else None
        ended = part(lambda: _ended_strip(connection, name, along)) if is_here else None
        periods = part(lambda: tenants.retention(name).periods) if is_here else ()
        return View(
            {
                "now": now, "tenant": tenant, "usage": usage, "gauges": gauges(tenant, usage), "ended": ended,
                "along": along, "pitch": NARROW, "periods": periods, "may_change": caller.all_tenants,
                "is_default": name == DEFAULT_TENANT,
            }
        )  # fmt: skip


def _ended_strip(connection: Connection, name: str, along: Axis) -> Strip:
    """Return the runs of a tenant that ended in the last hour, by minute."""
    with connection.snapshot(all_tenants=True) as reading:
        bins = read_activity(reading, name, along.edges[: along.behind + 1]).bins
    return strip([{state: getattr(each, state) for state in FINAL} for each in bins], (), NARROW)


def _named(request: Request, caller: Caller) -> str:
    return ensure_seen(str(request.path_params["name"]), None if caller.all_tenants else caller.tenant)


def tenant_names(connection: Connection) -> Sequence[str]:
    """Return the tenants among which the top bar lets choose; none if they are too many for a list."""
    with connection.snapshot(all_tenants=True) as reading:
        found = list_tenants(reading, limit=_CHOSEN_FROM)
    return [each.tenant for each in found] if found.next_cursor is None else ()


def _fields(tenant: TenantSummary | None, usage: TenantUsage | None) -> Sequence[Field]:
    """Return a field for each limit, with what is used."""
    found: list[Field] = []
    for name, each in _LIMITS.items():
        limit = None if tenant is None else getattr(tenant, name)
        used = "" if usage is None else _used(name, usage)
        found.append(Field(name, each.title, "number", "" if limit is None else f"{limit:.10g}", each.effect + used))
    zone = "" if tenant is None else tenant.timezone or ""
    about = "For cron schedules without one, such as Europe/Berlin; UTC if empty. Stored jobs keep theirs."
    return [*found, Field("timezone", "Time zone", value=zone, help=about)]


def _used(name: str, usage: TenantUsage) -> str:
    if name not in {"jobs", "in_flight"}:
        return ""
    used, noun = (usage.jobs, "job") if name == "jobs" else (usage.in_flight, "active run")
    return f" The tenant has {counted(used.count, noun, at_least=used.at_least)} now."


def _limits_of(tenant: TenantSummary) -> str:
    """Return the limits and the zone in a line, which also names their state."""
    limits = (f"{each.label}: {each.words}" for each in gauges(tenant, None))
    return ", ".join((*limits, f"time zone: {tenant.timezone or 'UTC'}"))


def _below(usage: TenantUsage, limits: Mapping[str, Any]) -> Sequence[FieldError]:
    """Return what a limit does that is below the usage."""
    found: list[FieldError] = []
    full = "none is stopped, and no further one starts until fewer are active"
    for name, used, there, effect in (
        ("jobs", usage.jobs, "exist", "none is deleted, and each further one is refused"),
        ("in_flight", usage.in_flight, "are active", full),
    ):
        limit = limits[name]
        if limit is not None and limit < used.count:
            count = number(used.count, at_least=used.at_least)
            found.append(FieldError(name, f"{count} {there}, more than {limit:,}", effect))
    return found


def _limits(form: Form) -> dict[str, Any]:
    """Return the limits that were typed; an empty one is lifted."""
    found: dict[str, Any] = {}
    wrong: list[FieldError] = []
    for name in _LIMITS:
        text = text_of(form, name)
        value = None if text is None else typed_number(text.replace(",", "") if _GROUPED.fullmatch(text) else text)
        if text is not None and value is None:
            wrong.append(FieldError(name, f"{text!r} is not a number", "write digits, or nothing for no limit"))
        found[name] = int(value) if value is not None and value.is_integer() else value
    if wrong:
        raise InvalidInput(wrong)
    return {**found, "timezone": text_of(form, "timezone")}


@dataclass(frozen=True, slots=True)
class NewTenant:
    """Create a tenant."""

    scope = Scope.ADMIN

    def ask(self, connection: Connection, caller: Caller, request: Request, urls: Urls) -> Dialog:
        """Return the fields of a tenant."""
        ensure_all_tenants(caller)
        name = Field("name", "Name", required=True, help="1 to 63 of a-z, 0-9, '.', '_' and '-'.")
        return Dialog(
            "New tenant", "Create the tenant", urls("tenants"),
            will=("An empty field means no limit.",), fields=(name, *_fields(None, None)),
        )  # fmt: skip

    def act(self, connection: Connection, caller: Caller, form: Form, request: Request, urls: Urls) -> Done:
        """Create it."""
        ensure_all_tenants(caller)
        name = text_of(form, "name") or ""
        if not Tenants(connection).create(name, **_limits(form)):
            refuse("name", f"there is a tenant {name!r} already", "choose another name, or change its limits")
        return Done(urls("tenant", name=name), f"Tenant {name} is created.")


@dataclass(frozen=True, slots=True)
class ChangeTenant:
    """A change of the tenant in the address, by an operator."""

    dialog: Callable[[Tenants, str], Dialog]
    change: Callable[[Tenants, str, Form], str | Dialog]  # the sentence about it, or the next step
    scope = Scope.ADMIN

    def ask(self, connection: Connection, caller: Caller, request: Request, urls: Urls) -> Dialog:
        """Return its dialog."""
        ensure_all_tenants(caller)
        name = _named(request, caller)
        return replace(self.dialog(Tenants(connection), name), back=urls("tenant", name=name))

    def act(self, connection: Connection, caller: Caller, form: Form, request: Request, urls: Urls) -> Done | Dialog:
        """Make it."""
        ensure_all_tenants(caller)
        name = _named(request, caller)
        done, to = self.change(Tenants(connection), name, form), urls("tenant", name=name)
        return Done(to, done) if isinstance(done, str) else replace(done, back=to)


def _limits_dialog(tenants: Tenants, name: str) -> Dialog:
    """Return the limits beside the usage."""
    tenant, usage = tenants.get(name), part(lambda: tenants.usage(name))
    return Dialog(
        f"Limits of {name}", "Set the limits", "",
        will=("The limits apply as soon as you set them. An empty field means no limit.",),
        stays=("Runs under way continue.",),
        fields=(as_shown(_limits_of(tenant)), *_fields(tenant, usage if isinstance(usage, TenantUsage) else None)),
    )  # fmt: skip


def _limit(tenants: Tenants, name: str, form: Form) -> str | Dialog:
    """Change limits; first show those that are below the usage."""
    limits, now = _limits(form), tenants.get(name)
    is_repeat = all(getattr(now, each) == value for each, value in limits.items())
    if not is_repeat and form.get("shown", _limits_of(now)) != _limits_of(now):
        problem = f"another user changed the limits: {_limits_of(now)}"
        refuse("", problem, "nothing was changed: compare, then set yours")
    is_valid = all(limits[each] is None or limits[each] > 0 for each in _LIMITS)  # the operation refuses others
    may_be_below = not is_repeat and is_valid and (limits["jobs"] is not None or limits["in_flight"] is not None)
    usage = part(lambda: tenants.usage(name)) if may_be_below else None
    below = _below(usage, limits) if isinstance(usage, TenantUsage) else ()
    if below and form.get("below") != (named := ", ".join(f"{each.path} {limits[each.path]}" for each in below)):
        dialog = _limits_dialog(tenants, name).refused(form, below)
        fields = (*dialog.fields, Field("below", "", "hidden", named))
        return replace(dialog, button="Set the limits all the same", fields=fields)
    done = tenants.limit(name, **limits)
    return f"Limits of {name} are set." if done else f"Nothing was changed: {name} had these limits already."


def _deletion_dialog(tenants: Tenants, name: str) -> Dialog:
    """Return what a deletion removes."""
    usage = tenants.usage(name)
    jobs, runs = usage.jobs, usage.open_runs
    having = f" with {counted(jobs.count, 'job', at_least=jobs.at_least)}" if jobs.count else ""
    many = counted(runs.count, "open run", at_least=runs.at_least)
    also = agreed(runs.count, "ends as cancelled, even if it is", "end as cancelled, also those")
    return Dialog(
        f"Delete tenant {name}{having}?", f"Delete {name}", "", danger=True,
        will=(
            f"In a day the tenant's keys stop working.{f' {many} {also} under way.' if runs.count else ''}",
            "Then its jobs, runs, calendars and dead letters are deleted. Until then you can take this back.",
        ),
        fields=(Field("typed", f"Type {name} to delete it", required=True),),
    )  # fmt: skip


def _delete(tenants: Tenants, name: str, form: Form) -> str:
    if form.get("typed", "").strip() != name:
        refuse("typed", "this is not its name", f"type {name}")
    if tenants.delete(name):
        return f"Tenant {name} will be deleted in a day."
    return f"Nothing was changed: the deletion of {name} was requested before."


def _undeletion_dialog(tenants: Tenants, name: str) -> Dialog:
    tenants.get(name)
    words = "The tenant is not deleted. Nothing of it has changed since the request."
    return Dialog(f"Keep tenant {name}?", f"Keep {name}", "", will=(words,))


def _undelete(tenants: Tenants, name: str, form: Form) -> str:
    kept = tenants.undelete(name)
    return f"Tenant {name} is kept." if kept else f"Nothing was changed: no deletion of {name} was requested."


LIMIT = ChangeTenant(_limits_dialog, _limit)
DELETE = ChangeTenant(_deletion_dialog, _delete)
UNDELETE = ChangeTenant(_undeletion_dialog, _undelete)


class DeletionBody(StrictModel):
    """Body of a deletion.

    Attributes:
        tenant: The name of the tenant once more, as a confirmation.
        grace: The grace period in which the deletion can be cancelled; 0 for none.
    """

    tenant: Tenant
    grace: Grace = GRACE


def add_deletion(router: APIRouter, writes: Workers) -> None:
    """Add the route of a deletion."""

    async def delete_tenant(request: Request, caller: Admin) -> Response:
        """Delete a tenant with all its data, a day later; requires the rights of all tenants."""
        ensure_all_tenants(caller)
        read_query(request, TenantQuery)
        name = ensure_seen(request.path_params["tenant"], None)
        body = await read_body(request, DeletionBody)
        if body.tenant != name:
            refuse("tenant", f"{body.tenant!r} is not the tenant in the URL", f"write {name!r} to delete it")
        where = location(caller, f"{ROOT}/{name}")
        return await answer(
            writes, caller, lambda connection: Tenants(connection).delete(name, grace=body.grace),
            status=HTTPStatus.ACCEPTED, headers=where,
        )  # fmt: skip

    add_route(
        router, "DELETE", f"{ROOT}/{{tenant}}", delete_tenant, scope=Scope.ADMIN, query=TenantQuery,
        status=HTTPStatus.ACCEPTED, answer=ChangedTenant, body=body_of(DeletionBody),
        sent={"tenant": "acme"},
    )  # fmt: skip
