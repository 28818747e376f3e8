"""`client.tenants`: create tenants, change their limits, pause, resume and delete them, read usage.

A limit that is None is no bound. A pause is the freeze of all runs of a tenant (docs/tenants.md).
"""

import builtins
import math
from collections.abc import Mapping
from dataclasses import asdict
from datetime import timedelta
from typing import Any, TypedDict, Unpack

from tidewheel.audit import ALL_TENANTS, Change, record_change
from tidewheel.control.client.arguments import as_int
from tidewheel.control.client.connection import Connection
from tidewheel.control.reads.tenants import (
    KEPT_STATES,
    MAX_PERIOD,
    TenantPeriod,
    TenantSummary,
    TenantUsage,
    list_tenants,
    show_tenant,
    tenant_periods,
    tenant_usage,
)
from tidewheel.errors import FieldError, InvalidInput, Refused, TenantDeleted, UnknownFreeze, refuse
from tidewheel.intake.runs import block_claims
from tidewheel.jobs.validation import shown
from tidewheel.jobs.values import MAX_PAYLOAD_BYTES, is_tenant
from tidewheel.nouns.api_keys.model import MAX_RATE as MAX_KEY_RATE
from tidewheel.postgres.notify import Channel
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements
from tidewheel.transitions.tenant_places import limit_in_flight
from tidewheel.transitions.tenant_rates import add_rate_locks
from tidewheel.transitions.tenant_refusals import refusals_of
from tidewheel.transitions.tenant_taking import cancel_tenant, take_tenant

_SQL = Statements("tidewheel.control")
_ADD_TENANT = _SQL["add_tenant"]
_FORGET_JOB_ROOM = _SQL["forget_job_room"]
_LOCK_TENANT = _SQL["lock_tenant"]
_CHANGE_LIMITS = _SQL["change_limits"]
_FREE_NAME = _SQL["free_name"]
_SCHEDULE_DELETION = _SQL["schedule_deletion"]
_KEEP_TENANT = _SQL["keep_tenant"]
_GRANT_ROLE = _SQL["grant_role"]
_REVOKE_ROLE = _SQL["revoke_role"]
_SET_TENANT_PERIOD = _SQL["set_tenant_period"]
_FIND_ROLE = Statements("tidewheel.migrations")["find_role"]

DEFAULT_TENANT = "default"
"""The tenant of requests that name none."""

MIN_RATE = 0.01  # triggers a second: one each hundred seconds
MAX_RATE = 10_000
MAX_IN_FLIGHT = 100_000
MAX_JOBS = 1_000_000
MAX_WEIGHT = 100
GRACE = timedelta(days=1)
"""The time from the request of a deletion to its begin, in which it can be taken back."""
MAX_GRACE = timedelta(days=400)
MAX_KEYS = 10_000
_FRACTIONS = ("triggers_per_second", "key_rate")


class Limits(TypedDict, total=False):
    """Limits of a tenant: a field that is left out stays as it is, and None lifts the limit.

    Attributes:
        weight: The runs that leave in each of its turns while a queue is held back, 1 to 100; None is 1.
        triggers_per_second: The runs a second that may become due; more are delayed.
        in_flight: The runs that may be active at once; more wait.
        jobs: The number of its jobs; more are refused.
        payload_bytes: The size of a payload; a larger one is refused.
        keys: The API keys in force that the tenant's own keys may create, 20 if none.
        key_rate: The requests a second of all its API keys, in each process; a key of the tenant makes none with more,
            100 if none.
    """

    weight: int | None
    triggers_per_second: float | None
    in_flight: int | None
    jobs: int | None
    payload_bytes: int | None
    keys: int | None
    key_rate: float | None


class Tenants:
    """Requests about any tenants, whatever the tenant of the client is."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def create(self, name: str, **limits: Unpack[Limits]) -> bool:
        """Create a tenant; return False if it exists already, with these limits or others."""
        if not is_tenant(name):
            remedy = "write 1 to 63 of a-z, 0-9, '.', '_' and '-', a letter or digit first"
            raise InvalidInput([FieldError("tenant", f"{name[:64]!r} is not a tenant name", remedy)])
        columns: dict[str, Any] = {"tenant": name, **dict.fromkeys(_BOUNDS), **_checked(limits, name)}

        def add(connection: Conn) -> bool:
            connection.execute(_FREE_NAME, columns)
            if not connection.execute(_ADD_TENANT, columns).rowcount:
                return False
            # A later statement than the insert: it sees the deletion that the insert has waited for.
            if isinstance(refusal := refusals_of(connection, [name])[name], TenantDeleted):
                raise refusal
            self._record(connection, "tenant.create", name)
            if columns["triggers_per_second"] is not None:
                add_rate_locks(connection, [name])
            if columns["in_flight"] is not None:
                limit_in_flight(connection, self._connection.installation, name, columns["in_flight"])
            return True

        return self._connection.write(add, all_tenants=True)

    def list(self, *, after: str = "", limit: int = 50) -> list[TenantSummary]:
        """Return a page of the tenants, in the order of their names."""
        with self._connection.snapshot(all_tenants=True) as connection:
            return list_tenants(connection, after=after, limit=as_int(limit, "limit"))

    def get(self, name: str) -> TenantSummary:
        """Return a tenant with its limits."""
        with self._connection.snapshot(all_tenants=True) as connection:
            return show_tenant(connection, name)

    def limit(self, name: str, **limits: Unpack[Limits]) -> bool:
        """Change limits of a tenant; return False if they are as before."""
        changed = _checked(limits, name)

        def change(connection: Conn) -> bool:
            if connection.execute(_LOCK_TENANT, {"tenant": name}).fetchone() is None:
                raise refusals_of(connection, [name])[name]
            now = {field: value for field, value in asdict(show_tenant(connection, name)).items() if field in _BOUNDS}
            if not connection.execute(_CHANGE_LIMITS, {**now, **changed, "tenant": name}).rowcount:
                return False
            self._record(connection, "tenant.limits", name)
            if "triggers_per_second" in changed:
                add_rate_locks(connection, [name])
            if "jobs" in changed:
                connection.execute(_FORGET_JOB_ROOM, {"tenant": name})
            if "in_flight" in changed:
                # Last, because it locks a key.
                limit_in_flight(connection, self._connection.installation, name, changed["in_flight"])
            return True

        done = self._connection.write(change, all_tenants=True)
        self._connection.notify(Channel.OUTBOX)
        return done

    def pause(self, name: str, *, reason: str | None = None) -> bool:
        """Start no run of a tenant until it is resumed; return False if it was paused already."""
        actor = self._connection.actor
        by = actor.named or actor.name
        document = {"type": "freeze", "scope": "tenant", "reason": reason, "by": by}
        return not self._connection.request(document, tenant=name).unchanged

    def resume(self, name: str) -> bool:
        """End a tenant's pause; `on_resume` of its jobs decides what came due. Return False if there was none."""
        try:
            return not self._connection.request({"type": "thaw", "scope": "tenant"}, tenant=name).unchanged
        except Refused as refused:
            if refused.code != UnknownFreeze.code:
                raise
            return False

    def delete(self, name: str, *, grace: timedelta = GRACE) -> bool:
        """Delete a tenant after a time of grace: its jobs and runs end, then a scheduler removes its rows.

        Until then the tenant is as before, and `undelete` takes the deletion back; `get` has the time, later the
        progress. Without grace it begins with the commit. From its begin on requests for the tenant are refused, its
        keys open nothing, and no claim starts a run of it.

        Returns:
            False if its deletion was accepted before.

        Raises:
            Unavailable: The database does not answer, or a claim has been under way for 10 s.
        """
        if not timedelta(0) <= grace <= MAX_GRACE:
            raise InvalidInput([FieldError("grace", f"{grace} does not fit", f"write 0 to {MAX_GRACE.days} days")])
        if name == DEFAULT_TENANT:
            problem = "tenant default cannot be deleted: requests that name no tenant belong to it"
            remedy = "delete its jobs instead"
            raise InvalidInput([FieldError("tenant", problem, remedy)])

        def delete(connection: Conn) -> bool:
            if connection.execute(_LOCK_TENANT, {"tenant": name}).fetchone() is None:
                refusal = refusals_of(connection, [name])[name]
                if isinstance(refusal, TenantDeleted):
                    return False
                raise refusal
            if grace:
                if not connection.execute(_SCHEDULE_DELETION, {"tenant": name, "grace": grace}).rowcount:
                    return False
                self._record(connection, "tenant.delete", name)
                return True
            take_tenant(connection, name, at_once=True)
            self._record(connection, "tenant.delete", name)
            # As late as possible: no executor can claim from here to the commit.
            block_claims(connection, [])
            cancel_tenant(connection, name)
            return True

        return self._connection.write(delete, all_tenants=True)

    def undelete(self, name: str) -> bool:
        """Take a tenant's deletion back in its time of grace; return False if none was requested."""

        def keep(connection: Conn) -> bool:
            if connection.execute(_LOCK_TENANT, {"tenant": name}).fetchone() is None:
                raise refusals_of(connection, [name])[name]
            kept = connection.execute(_KEEP_TENANT, {"tenant": name}).rowcount == 1
            if kept:
                self._record(connection, "tenant.undelete", name)
            return kept

        return self._connection.write(keep, all_tenants=True)

    def grant_role(self, name: str, role: str) -> bool:
        """Let a database role call the SQL functions for a tenant, `*` for all.

        A role that never had such a grant acts for `default`.

        Returns:
            False if it has the grant already.
        """

        def grant(connection: Conn) -> bool:
            if name != ALL_TENANTS and connection.execute(_LOCK_TENANT, {"tenant": name}).fetchone() is None:
                raise refusals_of(connection, [name])[name]
            if connection.execute(_FIND_ROLE, {"role": role}).fetchone() is None:
                problem = f"the server has no role {role[:64]!r}"
                refuse("role", problem, "write its name as `SELECT rolname FROM pg_roles` shows it")
            granted = connection.execute(_GRANT_ROLE, {"tenant": name, "role": role}).rowcount == 1
            if granted:
                self._record(connection, "tenant.grant_role", name)
            return granted

        return self._connection.write(grant, all_tenants=True)

    def revoke_role(self, name: str, role: str) -> bool:
        """Revoke such a grant; return False if there was none. A role without another one acts for no tenant."""

        def revoke(connection: Conn) -> bool:
            revoked = connection.execute(_REVOKE_ROLE, {"tenant": name, "role": role}).rowcount == 1
            if revoked:
                self._record(connection, "tenant.revoke_role", name)
            return revoked

        return self._connection.write(revoke, all_tenants=True)

    def usage(self, name: str) -> TenantUsage:
        """Return what a tenant uses now."""
        with self._connection.snapshot(all_tenants=True) as connection:
            return tenant_usage(connection, name)

    def retention(self, name: str) -> builtins.list[TenantPeriod]:
        """Return the periods of a tenant that are shorter than those of the installation."""
        with self._connection.snapshot(all_tenants=True) as connection:
            return tenant_periods(connection, name)

    def keep(self, name: str, days: int | None, *, state: str = "any") -> bool:
        """Keep finished runs of a tenant for so many days; what is older goes day by day, once an hour.

        Args:
            days: The days, 1 to 3650; None for no period of its own.
            state: The state of the runs, or `any`.

        Returns:
            False if the period is so already.
        """
        if days is not None and (type(days) is not int or not 1 <= days <= MAX_PERIOD):
            raise InvalidInput([FieldError("days", f"{days} does not fit", f"write 1 to {MAX_PERIOD}, or none")])
        if state not in KEPT_STATES:
            problem, remedy = f"{state[:64]!r} is no state of finished runs", f"write one of {', '.join(KEPT_STATES)}"
            raise InvalidInput([FieldError("state", problem, remedy)])

        def change(connection: Conn) -> bool:
            if connection.execute(_LOCK_TENANT, {"tenant": name}).fetchone() is None:
                raise refusals_of(connection, [name])[name]
            keep = None if days is None else timedelta(days=days)
            if not connection.execute(_SET_TENANT_PERIOD, {"tenant": name, "state": state, "keep": keep}).rowcount:
                return False
            self._record(connection, "tenant.retention", name)
            return True

        return self._connection.write(change, all_tenants=True)

    def _record(self, connection: Conn, action: str, name: str) -> None:
        record_change(connection, self._connection.actor, Change(ALL_TENANTS, action, f"tenant/{name}"))


_BOUNDS: Mapping[str, tuple[float, float]] = {
    "weight": (1, MAX_WEIGHT),
    "triggers_per_second": (MIN_RATE, MAX_RATE),
    "in_flight": (1, MAX_IN_FLIGHT),
    "jobs": (1, MAX_JOBS),
    "payload_bytes": (1, MAX_PAYLOAD_BYTES),
    "keys": (1, MAX_KEYS),
    "key_rate": (MIN_RATE, MAX_KEY_RATE),
}


def _checked(limits: Mapping[str, object], tenant: str) -> dict[str, Any]:
    """Return limits that fit; all that do not are refused together."""
    wrong: list[FieldError] = []
    for name, value in limits.items():
        if name not in _BOUNDS:
            wrong.append(FieldError(name, "there is no such limit", f"write one of {', '.join(_BOUNDS)}"))
        elif value is not None and (error := _misfit(name, value, tenant)):
            wrong.append(error)
    if wrong:
        raise InvalidInput(wrong)
    return dict(limits)


def _misfit(name: str, value: object, tenant: str) -> FieldError | None:
    least, most = _BOUNDS[name]
    # A whole number of JSON can be too large for a float: only a float can be infinite.
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or (isinstance(value, float) and not math.isfinite(value))
    ):
        return FieldError(name, f"{shown(value)} is not a number", f"write a number of at most {most:,}")
    if value == 0 and name != "weight":
        remedy = f"freeze the tenant instead: tidewheel admin tenant pause {tenant}"
        return FieldError(name, "0 would refuse everything", remedy)
    if not least <= value <= most or (name not in _FRACTIONS and isinstance(value, float)):
        kind = "number" if name in _FRACTIONS else "whole number"
        return FieldError(
            name, f"{shown(value)} does not fit", f"write a {kind} from {least:g} to {most:,}; none lifts the limit"
        )
    return None
