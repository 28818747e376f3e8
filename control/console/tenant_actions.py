"""Actions on tenants: create, limits, delete."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from starlette.requests import Request

from tidewheel.api_keys import Scope
from tidewheel.control.api.callers import Caller, ensure_all_tenants
from tidewheel.control.client.connection import Connection
from tidewheel.control.client.tenants import Tenants
from tidewheel.control.console.actions import Dialog, Done, Field, text_of
from tidewheel.control.console.confirming import as_shown
from tidewheel.control.console.forms import Form
from tidewheel.control.console.tenants import gauges, named_tenant
from tidewheel.control.console.urls import Urls
from tidewheel.control.console.view import part
from tidewheel.control.console.words import agreed, counted, number
from tidewheel.control.instants import typed_number
from tidewheel.control.reads.tenants import TenantSummary, TenantUsage
from tidewheel.errors import FieldError, InvalidInput, refuse

_GROUPED = re.compile(r"\d{1,3}(,\d{3})+(\.\d+)?")  # as pages show a number; 0,5 is none
_HELP = {
    "jobs": ("Jobs", "A new job that would exceed this number is refused."),
    "in_flight": ("Active runs", "How many runs may be active at once; more wait."),
    "triggers_per_second": ("Triggers per second", "Triggers above this rate are delayed."),
    "payload_bytes": ("Payload, in bytes", "A larger payload is refused."),
    "keys": ("API keys", "The tenant's own keys create no further ones; 20 if empty."),
    "key_rate": ("API requests per second", "Of all its keys together; if empty, each key has a rate of its own."),
    "weight": (
        "Weight",
        "This tenant's share while executors cannot keep up, 1 to 100:"
        " a tenant of weight 2 starts twice as many runs as one of weight 1.",
    ),
}
"""By the limit as REST writes it: its label, and the effect."""


def _fields(tenant: TenantSummary | None, usage: TenantUsage | None) -> Sequence[Field]:
    """Return a field for each limit, with what is used."""
    if tenant is None:
        return tuple(Field(name, label, "number", "", text) for name, (label, text) in _HELP.items())
    made: list[Field] = []
    for each in gauges(tenant, usage):
        used = ""
        if each.used is not None:
            noun = "job" if each.name == "jobs" else "active run"
            used = f" The tenant has {counted(each.used.count, noun, at_least=each.used.at_least)} now."
        value = "" if each.limit is None else f"{each.limit:.10g}"
        label, text = _HELP[each.name]
        made.append(Field(each.name, label, "number", value, text + used))
    return tuple(made)


def _limits_of(tenant: TenantSummary) -> str:
    """Return the limits in a line, which also names their state."""
    return ", ".join(f"{each.label}: {each.words}" for each in gauges(tenant, None))


def _below(usage: TenantUsage, limits: Mapping[str, Any]) -> Sequence[FieldError]:
    """Return what a limit does that is below the usage."""
    found: list[FieldError] = []
    for name, used, effect in (
        ("jobs", usage.jobs, "none is deleted, and each further one is refused"),
        ("in_flight", usage.in_flight, "none is stopped, and no further one starts until fewer are active"),
    ):
        limit = limits[name]
        if limit is not None and 0 <= limit < used.count:
            there = "are active" if name == "in_flight" else "exist"
            count = number(used.count, at_least=used.at_least)
            found.append(FieldError(name, f"{count} {there}, more than {limit:,}", effect))
    return found


def _limits(form: Form) -> dict[str, Any]:
    """Return the limits that were typed; an empty one is lifted."""
    found: dict[str, Any] = {}
    wrong: list[FieldError] = []
    for name in _HELP:
        text = text_of(form, name)
        value = None if text is None else typed_number(text.replace(",", "") if _GROUPED.fullmatch(text) else text)
        if text is not None and value is None:
            wrong.append(FieldError(name, f"{text!r} is not a number", "write digits, or nothing for no limit"))
        found[name] = int(value) if value is not None and value.is_integer() else value
    if wrong:
        raise InvalidInput(wrong)
    return found


@dataclass(frozen=True, slots=True)
class NewTenant:
    """Create a tenant."""

    scope = Scope.ADMIN

    def ask(self, connection: Connection, caller: Caller, request: Request, urls: Urls) -> Dialog:
        """Return the fields of a tenant."""
        ensure_all_tenants(caller)
        name = Field("tenant", "Name", required=True, help="1 to 63 of a-z, 0-9, '.', '_' and '-'.")
        return Dialog(
            "New tenant", "Create the tenant", urls("tenants"), place="admin", keep="Back",
            will=("An empty field means no limit.",), fields=(name, *_fields(None, None)),
        )  # fmt: skip

    def act(self, connection: Connection, caller: Caller, form: Form, request: Request, urls: Urls) -> Done:
        """Create it."""
        ensure_all_tenants(caller)
        name = text_of(form, "tenant") or ""
        if not Tenants(connection).create(name, **_limits(form)):
            refuse("tenant", f"there is a tenant {name!r} already", "choose another name, or change its limits")
        return Done(urls("tenant", name=name), f"Tenant {name} is created.")


@dataclass(frozen=True, slots=True)
class LimitTenant:
    """Change the limits of a tenant."""

    scope = Scope.ADMIN

    def ask(self, connection: Connection, caller: Caller, request: Request, urls: Urls) -> Dialog:
        """Return the limits beside the usage."""
        ensure_all_tenants(caller)
        name, tenants = named_tenant(request, caller), Tenants(connection)
        tenant, usage = tenants.get(name), part(lambda: tenants.usage(name))
        return Dialog(
            f"Limits of {name}", "Set the limits", urls("tenant", name=name), place="admin",
            will=("The limits apply as soon as you set them. An empty field means no limit.",),
            stays=("Runs under way go on.",),
            fields=(as_shown(_limits_of(tenant)), *_fields(tenant, usage if isinstance(usage, TenantUsage) else None)),
        )  # fmt: skip

    def act(self, connection: Connection, caller: Caller, form: Form, request: Request, urls: Urls) -> Done | Dialog:
        """Change them; first show those that are below the usage."""
        ensure_all_tenants(caller)
        name = named_tenant(request, caller)
        tenants, limits = Tenants(connection), _limits(form)
        now = tenants.get(name)
        is_repeat = all(getattr(now, each) == value for each, value in limits.items())
        if not is_repeat and form.get("shown", _limits_of(now)) != _limits_of(now):
            refuse(
                "",
                f"another user changed the limits: {_limits_of(now)}",
                "nothing was changed: compare, then set yours",
            )
        may_be_below = not is_repeat and (limits["jobs"] is not None or limits["in_flight"] is not None)
        usage = part(lambda: tenants.usage(name)) if may_be_below else None
        below = _below(usage, limits) if isinstance(usage, TenantUsage) else ()
        if below and form.get("below") != (named := ", ".join(f"{each.path} {limits[each.path]}" for each in below)):
            dialog = self.ask(connection, caller, request, urls).refused(form, below)
            fields = (*dialog.fields, Field("below", "", "hidden", named))
            return replace(dialog, button="Set the limits all the same", fields=fields)
        changed = tenants.limit(name, **limits)
        words = f"Limits of {name} are set." if changed else f"Nothing was changed: {name} had these limits already."
        return Done(urls("tenant", name=name), words)


@dataclass(frozen=True, slots=True)
class DeleteTenant:
    """Delete a tenant with all that it has."""

    scope = Scope.ADMIN

    def ask(self, connection: Connection, caller: Caller, request: Request, urls: Urls) -> Dialog:
        """Return what a deletion removes."""
        ensure_all_tenants(caller)
        name = named_tenant(request, caller)
        having, ends = _deleted(Tenants(connection).usage(name))
        return Dialog(
            f"Delete tenant {name}{having}?", f"Delete {name}",
            urls("tenant", name=name), place="admin", danger=True, keep="Keep it",
            will=(
                f"In a day the tenant's keys stop working. {ends}".rstrip(),
                "Then its jobs, runs, calendars and dead letters are deleted. Until then you can take this back.",
            ),
            fields=(Field("typed", f"Type {name} to delete it", required=True),),
        )  # fmt: skip

    def act(self, connection: Connection, caller: Caller, form: Form, request: Request, urls: Urls) -> Done:
        """Delete it."""
        ensure_all_tenants(caller)
        name = named_tenant(request, caller)
        if form.get("typed", "").strip() != name:
            refuse("typed", "this is not its name", f"type {name}")
        if not Tenants(connection).delete(name):
            return Done(urls("tenant", name=name), f"Nothing was changed: the deletion of {name} was requested before.")
        return Done(urls("tenant", name=name), f"Tenant {name} will be deleted in a day.")


@dataclass(frozen=True, slots=True)
class UndeleteTenant:
    """Take the deletion of a tenant back."""

    scope = Scope.ADMIN

    def ask(self, connection: Connection, caller: Caller, request: Request, urls: Urls) -> Dialog:
        """Return what it keeps."""
        ensure_all_tenants(caller)
        name = named_tenant(request, caller)
        Tenants(connection).get(name)
        return Dialog(
            f"Keep tenant {name}?", f"Keep {name}", urls("tenant", name=name), place="admin", keep="Back",
            will=("The tenant is not deleted. Nothing of it has changed since the request.",), fields=(),
        )  # fmt: skip

    def act(self, connection: Connection, caller: Caller, form: Form, request: Request, urls: Urls) -> Done:
        """Keep it."""
        ensure_all_tenants(caller)
        name = named_tenant(request, caller)
        kept = Tenants(connection).undelete(name)
        words = f"Tenant {name} is kept." if kept else f"Nothing was changed: no deletion of {name} was requested."
        return Done(urls("tenant", name=name), words)


def _deleted(usage: TenantUsage) -> tuple[str, str]:
    """Return words about a tenant's jobs, and a sentence about its open runs; empty for none."""
    jobs, runs = usage.jobs, usage.open_runs
    having = f" with {counted(jobs.count, 'job', at_least=jobs.at_least)}" if jobs.count else ""
    if not runs.count:
        return having, ""
    many = counted(runs.count, "open run", at_least=runs.at_least)
    also = agreed(runs.count, "ends as cancelled, even if it is", "end as cancelled, also those")
    return having, f"{many} {also} under way."
