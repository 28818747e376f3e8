"""The database roles of services and applications, and the only declaration of their rights.

`tidewheel migrate --roles` creates them and records in `settings` that this database has them. Each `migrate` of such a
database grants what its release needs. `migrate --post` revokes the rest. Roles are those of the server, so each
installation on one server has a prefix of its own.

The rights of services follow from the statements. `tests/migrations/test_service_roles.py` compares them with what
PostgreSQL derives from the statements of all modules that a service imports. After a change of statements the test
prints what to write.

Letters as in PostgreSQL's own lists: r reads, a inserts, w updates or locks rows, d deletes.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import LiteralString, cast

import psycopg
from psycopg import sql

from tidewheel.errors import MigrationError
from tidewheel.postgres.faults import first_line
from tidewheel.postgres.partitions import stored_days
from tidewheel.postgres.session import Conn
from tidewheel.postgres.statements import Statements

SERVICES = ("scheduler", "relay", "intake", "executor", "api", "application")
MONITOR = "monitor"
ROLES = (*SERVICES, MONITOR)

# Functions that no other role may call: they run with the rights of the tables' owner.
FUNCTIONS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "tidewheel_cancel": ("application",),
        "tidewheel_create_day": SERVICES,
        "tidewheel_drop_day": ("scheduler",),
        "tidewheel_enqueue": ("application",),
        "tidewheel_status": ("application",),
    }
)

# Tables, views and sequences, each with the letters of the services that may use it.
RIGHTS: Mapping[str, Mapping[str, str]] = MappingProxyType(
    {
        "active_runs": {
            "scheduler": "rawd",
            "intake": "rawd",
            "executor": "rawd",
            "api": "rawd",
            "application": "rawd",
        },
        "activity": {"scheduler": "rad", "relay": "a", "intake": "a", "executor": "a", "api": "ra"},
        "api_keys": {"scheduler": "rwd", "api": "raw"},
        "archive_lock": {"api": "w"},
        "archived_days": {"scheduler": "r", "intake": "r", "api": "rd", "application": "r"},
        "attempt_outputs": {
            "scheduler": "rawd",
            "intake": "raw",
            "executor": "raw",
            "api": "raw",
            "application": "raw",
        },
        "attempts": {"scheduler": "rad", "intake": "ra", "executor": "ra", "api": "ra", "application": "ra"},
        "audit_log": {"scheduler": "rd", "intake": "raw", "api": "raw"},
        "backfills": {"scheduler": "rwd", "intake": "raw", "api": "raw"},
        "batch_runs": {"scheduler": "rd", "intake": "raw", "executor": "ra", "api": "raw"},
        "batches": {"scheduler": "rwd", "intake": "raw", "executor": "raw", "api": "raw"},
        "calendars": {"scheduler": "rd", "intake": "rawd", "api": "rawd"},
        "cancellations": {"scheduler": "rawd", "intake": "ra", "executor": "r", "api": "ra", "application": "r"},
        "cancellations_id_seq": {"intake": "w", "api": "w"},
        "cancelled_jobs": {"scheduler": "rd", "intake": "ra", "executor": "r", "api": "ra", "application": "r"},
        "catch_up_pace": {"scheduler": "rw", "intake": "rw", "api": "rw"},
        "claims_lock": {"intake": "w", "executor": "d", "api": "wd"},
        "dead_letters": {
            "scheduler": "rawd",
            "intake": "rawd",
            "executor": "rawd",
            "api": "rawd",
            "application": "rawd",
        },
        "dedupes": {"scheduler": "rwd", "intake": "raw", "api": "raw", "application": "raw"},
        "deferred_effects": {
            "scheduler": "rawd",
            "intake": "rawd",
            "executor": "rawd",
            "api": "rawd",
            "application": "rawd",
        },
        "ended_attempts": {"scheduler": "r", "intake": "r", "executor": "r", "api": "r", "application": "r"},
        "executors": {"scheduler": "r", "relay": "r", "executor": "rawd", "api": "rawd"},
        "failed_runs": {"scheduler": "rawd", "intake": "ra", "executor": "ra", "api": "ra", "application": "ra"},
        "finished_runs": {"scheduler": "rad", "intake": "ra", "executor": "ra", "api": "ra", "application": "ra"},
        "freezes": {"scheduler": "rwd", "relay": "r", "intake": "raw", "executor": "r", "api": "raw"},
        "freezes_id_seq": {"intake": "w", "api": "w"},
        "frozen_jobs": {"scheduler": "rad", "relay": "r", "intake": "rad", "executor": "r", "api": "rad"},
        "intake_offsets": {"scheduler": "rd", "intake": "raw", "api": "r"},
        "job_calendars": {"scheduler": "rd", "intake": "rad", "api": "rad"},
        "job_days": {"scheduler": "rawd", "api": "r"},
        "job_edges": {"scheduler": "rd", "intake": "raw", "executor": "r", "api": "raw", "application": "r"},
        "job_rooms": {"scheduler": "rd", "intake": "raw", "api": "rawd"},
        "job_runs": {
            "scheduler": "rawd",
            "relay": "r",
            "intake": "rawd",
            "executor": "rawd",
            "api": "rawd",
            "application": "rawd",
        },
        "job_versions": {"scheduler": "rd", "intake": "raw", "executor": "r", "api": "raw", "application": "r"},
        "jobs": {"scheduler": "rwd", "intake": "raw", "executor": "rw", "api": "raw", "application": "rw"},
        "joins": {"scheduler": "rawd", "intake": "rad", "executor": "rad", "api": "rad"},
        "kept_since_lock": {"scheduler": "w", "intake": "d", "api": "d"},
        "key_limits": {"scheduler": "rd", "intake": "rawd", "executor": "r", "api": "rawd", "application": "r"},
        "members": {"scheduler": "rawd", "relay": "rawd", "executor": "r", "api": "rawd"},
        "message_keys": {"relay": "r", "executor": "r", "api": "r"},
        "order_failures": {"scheduler": "rad", "intake": "rad", "executor": "rad", "api": "rad", "application": "rad"},
        "order_keys": {"scheduler": "rawd", "intake": "rawd", "executor": "rawd", "api": "rawd", "application": "rawd"},
        "outbox": {
            "scheduler": "rad",
            "relay": "rawd",
            "intake": "a",
            "executor": "a",
            "api": "ra",
            "application": "a",
        },
        "overrides": {"scheduler": "rwd", "intake": "rawd", "api": "rawd"},
        "pending_cancels": {"scheduler": "rad", "intake": "ra", "executor": "ra", "api": "ra", "application": "r"},
        "processes": {"scheduler": "rawd", "relay": "rawd", "intake": "rawd", "executor": "rawd", "api": "rawd"},
        "quarantine": {"scheduler": "rad", "relay": "a", "api": "r"},
        "redrives": {"scheduler": "rawd", "api": "raw"},
        "relay_slices": {"relay": "raw"},
        "releases": {"scheduler": "rawd", "intake": "rawd", "executor": "rawd", "api": "rawd", "application": "rawd"},
        "requests": {"scheduler": "rd", "intake": "rawd", "api": "ra", "application": "ra"},
        "retention_lock": {"scheduler": "w"},
        "retention_state": {"scheduler": "raw", "api": "r"},
        "run_days": {"scheduler": "raw", "intake": "r", "api": "r"},
        "run_edges": {"scheduler": "rd", "intake": "raw", "executor": "ra", "api": "raw"},
        "run_inputs": {"scheduler": "rawd", "intake": "raw", "executor": "raw", "api": "raw", "application": "raw"},
        "run_keys": {"scheduler": "rawd", "intake": "raw", "executor": "raw", "api": "raw", "application": "raw"},
        "runs": {"scheduler": "r", "intake": "r", "executor": "r", "api": "r", "application": "r"},
        "schemas": {"scheduler": "r", "relay": "r", "intake": "r", "executor": "r", "api": "r"},
        "settings": {
            "scheduler": "raw",
            "relay": "raw",
            "intake": "raw",
            "executor": "raw",
            "api": "raw",
            "application": "r",
        },
        "sign_ins": {"api": "rawd"},
        "signals": {"scheduler": "rad", "intake": "rad", "executor": "rad", "api": "rad", "application": "rd"},
        "skips": {"scheduler": "rawd", "intake": "rad", "api": "rad"},
        "task_token_keys": {"intake": "r", "executor": "r", "api": "r"},
        "tenant_deletions": {"scheduler": "rawd", "intake": "rw", "api": "rad", "application": "r"},
        "tenant_locks": {
            "scheduler": "rawd",
            "relay": "raw",
            "intake": "raw",
            "executor": "raw",
            "api": "raw",
            "application": "raw",
        },
        "tenant_periods": {"scheduler": "rwd", "intake": "r", "api": "raw"},
        "tenant_rates": {
            "scheduler": "rawd",
            "relay": "raw",
            "intake": "rawd",
            "executor": "rawd",
            "api": "rawd",
            "application": "rawd",
        },
        "tenant_roles": {"api": "rad"},
        "tenants": {
            "scheduler": "rwd",
            "relay": "r",
            "intake": "r",
            "executor": "r",
            "api": "rawd",
            "application": "r",
        },
        "tidewheel_migrations": {"scheduler": "r", "relay": "r", "intake": "r", "executor": "r", "api": "r"},
        "timers": {"scheduler": "rawd", "intake": "rawd", "executor": "rw", "api": "rawd", "application": "rw"},
        "unhandled_announcements": {"scheduler": "rawd", "api": "rawd"},
        "workflows": {"scheduler": "rawd", "intake": "raw", "executor": "raw", "api": "raw", "application": "r"},
        "works": {"scheduler": "rawd", "api": "raw"},
    }
)

# The columns that the monitor's role reads, by table: those of `tidewheel status` and `doctor`, of which none has a
# payload, a result, the text of an attempt's error or a secret.
MONITORED: Mapping[str, str] = MappingProxyType(
    {
        "api_keys": "key_id tenant name expires_at revoked_at last_used_at",
        "archived_days": "day",
        "executors": (
            "executor_id name queues handlers slots heartbeat_count last_heartbeat_at started_at stopping "
            "group_protocol lease"
        ),
        "freezes": "id tenant queue labels key_prefix by_job reason created_by created_at thawed_at",
        "frozen_jobs": "freeze_id job_id",
        "intake_offsets": "topic partition next_offset owner",
        "job_runs": (
            "run_id job_id tenant queue lane handler cause state attempt executor_id scheduled_at publish_at "
            "created_at started_at moved_ahead"
        ),
        "jobs": "job_id tenant key deleted_at",
        "members": "member_id role name last_heartbeat_at started_at held",
        "order_keys": "tenant key blocked_by blocked_at",
        "outbox": "id slice_lane topic publish_at",
        "processes": "process_id role host pid version settings sent_at last_heartbeat_at started_at fallbacks",
        "quarantine": "id kind tenant job_id topic error created_at",
        "releases": "tenant root_run_id due_at error",
        "retention_state": "passed_at behind held_by",
        "settings": "name value",
        "tenant_deletions": "tenant accepted_at state finished_at free_at left_archive",
        "tenants": "tenant created_at",
        "tidewheel_migrations": "name checksum applied_at",
        "timers": "job_id tenant shard due_at scheduled_at hold_reason",
    }
)

_SQL = Statements("tidewheel.migrations")

_LETTERS: Mapping[str, LiteralString] = {"r": "SELECT", "a": "INSERT", "w": "UPDATE", "d": "DELETE"}
_OF_PARTITIONS = "rd"  # of the scheduler, which removes the rows of deleted tenants partition by partition

ROLE_PREFIX = "tidewheel"

# NOINHERIT: the API's role is a member of the tenants' one, and acts as it by SET ROLE only.
# The monitor's role inherits what PostgreSQL grants to exporters.
_CREATE: LiteralString = "CREATE ROLE {} NOLOGIN {} BYPASSRLS"
_BYPASS: LiteralString = "ALTER ROLE {} {} BYPASSRLS"
_STATISTICS = "pg_monitor"  # PostgreSQL's own role for exporters: statistics, settings and sessions of all users
_GRANT: LiteralString = "GRANT {} TO {}"
_GRANT_COLUMNS: LiteralString = "GRANT SELECT ({}) ON {} TO {}"
_REVOKE_COLUMNS: LiteralString = "REVOKE SELECT ({}) ON {} FROM {}"
_LOGIN: LiteralString = "ALTER ROLE {} LOGIN PASSWORD {}"
_TRIES = 5  # roles are those of the server: a migration of another database may change the same one


def role_of(service: str, prefix: str = ROLE_PREFIX) -> str:
    """Return the name of a service's role."""
    return f"{prefix}_{service}"


def create_roles(connection: Conn, passwords: Mapping[str, str], tenant_role: str | None, prefix: str) -> None:
    """Create the missing roles, set passwords by service, and record that the database has the roles.

    The caller is in a transaction of the tables' owner. A role with a password may log in. The server gets the verifier
    and not the password. The API acts for a tenant as the tenant role, or as itself.

    Raises:
        MigrationError: A role cannot be created or changed; the message has the statements for a superuser.
    """
    try:
        for service in ROLES:
            name = role_of(service, prefix)
            role = sql.Identifier(name)
            inherits = sql.SQL(_inheritance(service))
            found = connection.execute(_SQL["read_role"], {"role": name, "inherits": service == MONITOR}).fetchone()
            if found is None:
                _change(connection, sql.SQL(_CREATE).format(role, inherits))
            elif found != (True,):
                _change(connection, sql.SQL(_BYPASS).format(role, inherits))
            if service in passwords:
                verifier = connection.pgconn.encrypt_password(
                    passwords[service].encode(), name.encode(), b"scram-sha-256"
                )
                _change(connection, sql.SQL(_LOGIN).format(role, sql.Literal(verifier.decode())))
        for service, of in (("api", tenant_role), (MONITOR, _STATISTICS)):
            name = role_of(service, prefix)
            if of is not None and connection.execute(_SQL["is_member"], {"role": name, "of": of}).fetchone() != (True,):
                _change(connection, sql.SQL(_GRANT).format(sql.Identifier(of), sql.Identifier(name)))
    except psycopg.errors.ReservedName as error:
        raise MigrationError(f"TIDEWHEEL_ROLE_PREFIX: {first_line(error)}; set another prefix") from error
    except psycopg.errors.InsufficientPrivilege as error:
        created = "; ".join(_CREATE.format(role_of(service, prefix), _inheritance(service)) for service in ROLES)
        statements = f"{created}; {_GRANT.format(_STATISTICS, role_of(MONITOR, prefix))};"
        raise MigrationError(
            f"the roles of the services cannot be created: {first_line(error)}; run as a superuser: {statements}"
            " then run `tidewheel migrate --roles` again"
        ) from error
    connection.execute(_SQL["record_service_roles"], {"prefix": prefix})


def recorded_prefix(connection: Conn) -> str | None:
    """Return the recorded prefix of the services' roles; None if they have none."""
    found = connection.execute(_SQL["read_role_prefix"]).fetchone()
    return None if found is None else str(found[0])


def require_prefix(connection: Conn, prefix: str) -> None:
    """Check that the roles of the database, if it has any, have this prefix."""
    recorded = recorded_prefix(connection)
    if recorded not in (None, prefix):
        raise MigrationError(
            f"TIDEWHEEL_ROLE_PREFIX is {prefix}, but the roles of this database are {recorded}_…; "
            f"set it to {recorded}, or create the roles with `tidewheel migrate --roles`"
        )


def grant_rights(connection: Conn, prefix: str, *, revoke: bool) -> None:
    """Give each role the rights that this release declares, in a transaction of the tables' owner.

    Also revoke all others if that is requested: processes of the release before may need them.
    """
    roles, monitor = [role_of(service, prefix) for service in SERVICES], role_of(MONITOR, prefix)
    if (
        has_monitor := connection.execute(_SQL["find_role"], {"role": monitor}).fetchone() is not None
    ):  # 0.1.0 made none
        roles.append(monitor)
    [(schema,)] = cast("list[tuple[str]]", connection.execute("SELECT current_schema()").fetchall())
    grantees = sql.SQL(", ").join(map(sql.Identifier, roles))
    connection.execute(sql.SQL("GRANT USAGE ON SCHEMA {} TO {}").format(sql.Identifier(schema), grantees))
    for name, services in FUNCTIONS.items():
        named = sql.SQL(", ").join(sql.Identifier(role_of(service, prefix)) for service in services)
        connection.execute(sql.SQL("GRANT EXECUTE ON FUNCTION {} TO {}").format(sql.Identifier(name), named))
    wanted = {
        (table, role_of(service, prefix)): letters
        for table, rights in RIGHTS.items()
        for service, letters in rights.items()
    }
    for stored in stored_days(connection):
        wanted[f"{stored.table}_{stored.day:%Y%m%d}", role_of("scheduler", prefix)] = _OF_PARTITIONS
    columns = {"names": sorted({table for table, _ in wanted}), "roles": roles}
    rows = cast("list[tuple[str, str, list[str]]]", connection.execute(_SQL["find_grants"], columns).fetchall())
    granted = {(table, role): set(rights) for table, role, rights in rows}
    for table, role in sorted(wanted.keys() | granted.keys()):
        rights: list[LiteralString] = [_LETTERS[letter] for letter in wanted.get((table, role), "")]
        have = granted.get((table, role), set())
        if have == set(rights) or (have > set(rights) and not revoke):
            continue
        names = sql.Identifier(table), sql.Identifier(role)
        if revoke:
            connection.execute(sql.SQL("REVOKE ALL ON {} FROM {}").format(*names))
        if rights:
            listed = sql.SQL(", ").join(map(sql.SQL, rights))
            connection.execute(sql.SQL("GRANT {} ON {} TO {}").format(listed, *names))
    if has_monitor:
        _grant_columns(connection, monitor, revoke=revoke)


def roles_of_default(connection: Conn) -> list[str]:
    """Return the roles that may call the SQL functions for tenant `default` alone."""
    functions = [name for name, services in FUNCTIONS.items() if services == ("application",)]
    rows = connection.execute(_SQL["find_roles_of_default"], {"functions": functions}).fetchall()
    return [name for (name,) in cast("list[tuple[str]]", rows)]


def _inheritance(service: str) -> LiteralString:
    return "INHERIT" if service == MONITOR else "NOINHERIT"


def _grant_columns(connection: Conn, role: str, *, revoke: bool) -> None:
    """Let the monitor's role read its columns; also revoke all others if that is requested."""
    rows = cast(
        "list[tuple[str, list[str]]]", connection.execute(_SQL["find_column_grants"], {"role": role}).fetchall()
    )
    granted = {table: set(columns) for table, columns in rows}
    for table in sorted(MONITORED.keys() | granted.keys()):
        wanted, have = set(MONITORED.get(table, "").split()), granted.get(table, set())
        changes = (
            (sql.SQL(_GRANT_COLUMNS), wanted - have),
            (sql.SQL(_REVOKE_COLUMNS), have - wanted if revoke else ()),
        )
        for change, columns in changes:
            if columns:
                listed = sql.SQL(", ").join(map(sql.Identifier, sorted(columns)))
                connection.execute(change.format(listed, sql.Identifier(table), sql.Identifier(role)))


def _change(connection: Conn, statement: sql.Composed) -> None:
    """Create or change a role, again if a migration of another database has done so at the same time."""
    for tries in range(1, _TRIES + 1):
        try:
            with connection.transaction():
                connection.execute(statement)
            return
        except (psycopg.errors.DuplicateObject, psycopg.errors.UniqueViolation):
            return
        except psycopg.errors.InternalError_:  # "tuple concurrently updated"
            if tries == _TRIES:
                raise
