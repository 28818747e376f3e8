"""`client.tenants`: create tenants, change their limits, pause, resume and delete them, read usage.

A limit that is None is no bound. A pause is the freeze of all runs of a tenant (docs/tenants.md). The operations are
about any tenants, whatever the tenant of the client is.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from datetime import timedelta
from functools import partial
from typing import Annotated, LiteralString, Unpack

from pydantic import BeforeValidator, Field

from tidewheel.api_keys import Scope
from tidewheel.audit import ALL_TENANTS, Change, record_change
from tidewheel.errors import Refused, TenantDeleted, UnknownFreeze, refuse
from tidewheel.intake.runs import block_claims
from tidewheel.jobs.values import Reason, Tenant, span
from tidewheel.nouns.freezes.operations import Freezes
from tidewheel.nouns.operation import InDoors, Noun, Page, Rows, operation
from tidewheel.nouns.tenants.reads import (
    ChangedTenant,
    KeptState,
    Limits,
    TenantPeriods,
    TenantSummary,
    TenantUsage,
    list_tenants,
    show_tenant,
    tenant_periods,
    tenant_usage,
)
from tidewheel.postgres.notify import Channel
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements
from tidewheel.transitions.run_keys import limit_in_flight
from tidewheel.transitions.tenant_rates import add_rate_locks
from tidewheel.transitions.tenant_refusals import refusals_of
from tidewheel.transitions.tenant_taking import cancel_tenant, take_tenant

_SQL = Statements("tidewheel.nouns.tenants")
_FIND_ROLE = Statements("tidewheel.migrations")["find_role"]

ROOT = "/api/v1/tenants"
_ONE = f"{ROOT}/{{tenant}}"
DEFAULT_TENANT = "default"
"""The tenant of requests that name none."""

_MOST_GRACE = timedelta(days=400)
Grace = Annotated[timedelta, BeforeValidator(span(timedelta(0), _MOST_GRACE))]
"""The time from the request of a deletion to its begin, in which it can be taken back."""
GRACE = timedelta(days=1)
_Name = Annotated[str, InDoors("tenant")]
_Days = Annotated[int, Field(ge=1, le=3650)]


_LIMITS = Limits.__annotations__.keys()
_by_operators = partial(operation, scope=Scope.ADMIN, authorize=lambda _: Scope.ADMIN)


class Tenants(Noun):
    """Tenants."""

    @_by_operators(f"POST {ROOT}", "create_tenant", sent={"tenant": "acme", "in_flight": 500})
    def create(
        self, name: Annotated[Tenant, InDoors("tenant"), Field(description="Its name.")], **limits: Unpack[Limits]
    ) -> ChangedTenant:
        """Create a tenant, with or without limits.

        Returns:
            The tenant; `unchanged` if it already exists, with these limits or others.
        """
        columns: dict[str, object] = {**dict.fromkeys(Limits.__annotations__), **limits, "tenant": name}

        def add(connection: Conn) -> bool:
            connection.execute(_SQL["free_name"], columns)
            if not connection.execute(_SQL["add_tenant"], columns).rowcount:
                return False
            # A later statement than the insert: it sees the deletion that the insert has waited for.
            if isinstance(refusal := refusals_of(connection, [name])[name], TenantDeleted):
                raise refusal
            self._record(connection, "create", name)
            if limits.get("triggers_per_second") is not None:
                add_rate_locks(connection, [name])
            if (in_flight := limits.get("in_flight")) is not None:
                limit_in_flight(connection, self._call.installation, name, in_flight)
            return True

        return self._changed(name, done=self._call.write(add, all_tenants=True))

    @_by_operators(f"GET {ROOT}", "list_tenants")
    def list(self, *, after: Tenant | None = None, limit: Rows = 50) -> Page[TenantSummary]:
        """List tenants by name, each with its limits."""
        with self._call.snapshot(all_tenants=True) as connection:
            return list_tenants(connection, after=after, limit=limit)

    @operation(f"GET {_ONE}", "get_tenant", scope=Scope.READ)
    def get(self, name: _Name) -> TenantSummary:
        """Show a tenant: its state, its limits and the progress of its deletion."""
        with self._call.snapshot(all_tenants=True) as connection:
            return show_tenant(connection, name)

    @_by_operators(f"PATCH {_ONE}", "limit_tenant", sent={"jobs": 1000})
    def limit(self, name: _Name, **limits: Unpack[Limits]) -> ChangedTenant:
        """Change limits of a tenant; limits that you leave out stay."""

        def change(connection: Conn) -> bool:
            now = {each: value for each, value in asdict(show_tenant(connection, name)).items() if each in _LIMITS}
            if not connection.execute(_SQL["change_limits"], {**now, **limits, "tenant": name}).rowcount:
                return False
            self._record(connection, "limits", name)
            if "triggers_per_second" in limits:
                add_rate_locks(connection, [name])
            if "jobs" in limits:
                connection.execute(_SQL["forget_job_room"], {"tenant": name})
            if "in_flight" in limits:
                # Last, because it locks a key.
                limit_in_flight(connection, self._call.installation, name, limits["in_flight"])
            return True

        done = self._locked(name, change)
        self._call.notify(Channel.OUTBOX)
        return self._changed(name, done=done)

    @operation(f"POST {_ONE}:pause", "pause_tenant", scope=Scope.OPERATE, sent={"reason": "audit"})
    def pause(
        self,
        name: _Name,
        *,
        reason: Annotated[Reason | None, Field(description="Shown until the tenant is resumed.")] = None,
    ) -> ChangedTenant:
        """Hold all new runs of a tenant until you resume it; running ones finish."""
        actor = self._call.actor
        with self._call.acting_for(name):
            done = Freezes(self._call).freeze(scope="tenant", reason=reason, by=actor.named or actor.name)
        return self._changed(name, done=done)

    @operation(f"POST {_ONE}:resume", "resume_tenant", scope=Scope.OPERATE)
    def resume(self, name: _Name) -> ChangedTenant:
        """End the pause of a tenant; its jobs' on_resume decides which held occurrences fire."""
        try:
            with self._call.acting_for(name):
                done = Freezes(self._call).thaw(scope="tenant")
        except Refused as refused:
            if refused.code != UnknownFreeze.code:
                raise
            done = False
        return self._changed(name, done=done)

    def delete(self, name: str, *, grace: timedelta = GRACE) -> ChangedTenant:
        """Delete a tenant after a grace period: its jobs and runs end, then a scheduler removes its rows.

        Until then the tenant works as before, and `undelete` cancels the deletion; `get` shows the time, later the
        progress. Without grace, the deletion begins with the commit. From then on, requests for the tenant are
        refused, its API keys stop working, and claims start none of its runs.

        Returns:
            The tenant; `unchanged` if its deletion was already accepted.

        Raises:
            Unavailable: The database does not answer, or a claim has been in progress for 10 s.
        """
        if name == DEFAULT_TENANT:
            problem = "tenant default cannot be deleted, because it owns requests without a tenant"
            refuse("tenant", problem, "delete its jobs instead")
        if not timedelta(0) <= grace <= _MOST_GRACE:
            refuse("grace", f"{grace} is not valid", "write 0s to 400d")

        def delete(connection: Conn) -> bool:
            if grace and not connection.execute(_SQL["schedule_deletion"], {"tenant": name, "grace": grace}).rowcount:
                return False
            if not grace:
                take_tenant(connection, name, at_once=True)
            self._record(connection, "delete", name)
            if not grace:
                # As late as possible: no executor can claim from here to the commit.
                block_claims(connection, [])
                cancel_tenant(connection, name)
            return True

        try:
            return self._changed(name, done=self._locked(name, delete))
        except TenantDeleted:
            return self._changed(name, done=False)

    @_by_operators(f"POST {_ONE}:undelete", "undelete_tenant")
    def undelete(self, name: _Name) -> ChangedTenant:
        """Cancel the deletion of a tenant during its grace period."""
        keep = partial(self._write, _SQL["keep_tenant"], {"tenant": name}, "undelete")
        return self._changed(name, done=self._locked(name, keep))

    def grant_role(self, name: str, role: str) -> bool:
        """Let a database role call the SQL functions for a tenant; `*` for all tenants.

        A role that never had such a grant acts for `default`.
        """

        def grant(connection: Conn) -> bool:
            if connection.execute(_FIND_ROLE, {"role": role}).fetchone() is None:
                problem = f"the database server has no role {role[:64]!r}"
                refuse("role", problem, "copy the name from `SELECT rolname FROM pg_roles`")
            return self._write(_SQL["grant_role"], {"tenant": name, "role": role}, "grant_role", connection)

        return self._locked(name, grant) if name != ALL_TENANTS else self._call.write(grant, all_tenants=True)

    def revoke_role(self, name: str, role: str) -> bool:
        """Revoke this grant; return False if there was none. A role without any grant has no tenant."""
        revoke = partial(self._write, _SQL["revoke_role"], {"tenant": name, "role": role}, "revoke_role")
        return self._call.write(revoke, all_tenants=True)

    @operation(f"GET {_ONE}/usage", "get_tenant_usage", scope=Scope.READ)
    def usage(self, name: _Name) -> TenantUsage:
        """Show a tenant's current usage beside its limits."""
        with self._call.snapshot(all_tenants=True) as connection:
            return tenant_usage(connection, name)

    @operation(f"GET {_ONE}/retention", "get_tenant_retention", scope=Scope.READ)
    def retention(self, name: _Name) -> TenantPeriods:
        """Show a tenant's retention periods that are shorter than the installation's."""
        with self._call.snapshot(all_tenants=True) as connection:
            return TenantPeriods(unchanged=True, tenant=name, periods=tenant_periods(connection, name))

    @_by_operators(f"PUT {_ONE}/retention", "put_tenant_retention", sent={"days": 7, "state": "succeeded"})
    def keep(
        self,
        name: _Name,
        days: Annotated[
            _Days | None, Field(description="The days for which they are kept, 1 to 3650; null removes the period.")
        ],
        *,
        state: Annotated[KeptState, Field(description="The state of the runs, or any.")] = "any",
    ) -> TenantPeriods:
        """Keep a tenant's finished runs for this many days; older days are deleted one by one, once an hour."""
        period = {"tenant": name, "state": state, "keep": None if days is None else timedelta(days=days)}
        done = self._locked(name, partial(self._write, _SQL["set_tenant_period"], period, "retention"))
        return replace(self.retention(name), unchanged=not done)

    def _locked(self, name: str, change: Callable[[Conn], bool]) -> bool:
        """Change a tenant whose row is locked; raise UnknownTenant if there is none."""

        def work(connection: Conn) -> bool:
            if connection.execute(_SQL["lock_tenant"], {"tenant": name}).fetchone() is None:
                raise refusals_of(connection, [name])[name]
            return change(connection)

        return self._call.write(work, all_tenants=True)

    def _write(self, statement: LiteralString, columns: Mapping[str, object], action: str, connection: Conn) -> bool:
        """Execute a statement about one tenant; return True, and record the action, if it has changed a row."""
        done = connection.execute(statement, columns).rowcount > 0
        if done:
            self._record(connection, action, str(columns["tenant"]))
        return done

    def _changed(self, name: str, *, done: bool) -> ChangedTenant:
        return ChangedTenant(unchanged=not done, tenant=self.get(name))

    def _record(self, connection: Conn, action: str, name: str) -> None:
        record_change(connection, self._call.actor, Change(ALL_TENANTS, f"tenant.{action}", f"tenant/{name}"))
